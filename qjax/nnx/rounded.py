"""Layers that compute in floats, with weights that lie in memory as the codes of a format, and rounded outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore import Number
from qjax._namespace import Names
from qjax.nnx.activations import PReLU
from qjax.nnx.functional import relu
from qjax.nnx.layouts import set_torch_weight, torch_weight
from qjax.nnx.quantized.base import IntegerVariable, check_calibrated, float_variable
from qjax.nnx.quantized.weights import CodedWeight, Dequantized
from qjax.quantization import QTensor
from qjax.quantization.scaled import round_with_scale

__all__ = ["CodedWeight", "Dequantized", "RoundedLayer", "ScaledRounding"]

# Layers that keep their class in PyTorch, where only the weight is another.
KEEPING_CODE = nnx.ConvTranspose, PReLU


class ScaledRounding(nnx.Module):
    """Rounds arrays to a format with a scale that calibration, or training, has chosen.

    Args:
        number: the format.
        scale: float32 of shape (), or (channels,).
        axis: that of the channels.

    Example:
        >>> from qjax import parse
        >>> ScaledRounding(parse("e4m3fn"), jnp.float32(2))(jnp.float32([1.3, 2000])).tolist()
        [1.25, 896.0]
    """

    def __init__(self, number: Number, scale: jax.Array, axis: int = 0) -> None:
        self.number, self.axis = number, axis
        self.scale = IntegerVariable(jnp.asarray(scale, jnp.float32).reshape(-1))

    def __call__(self, x: jax.Array) -> jax.Array:
        """x rounded."""
        return round_with_scale(x, self.scale[...], self.number, self.axis)


class RoundedLayer(nnx.Module):
    """A layer in floats whose weight was rounded once, and whose outputs are rounded.

    Quantized inputs are dequantized. Sums are flax's own, in float32: results have the same bits as PyTorch's where
    sums are exact, as those of few products of short numbers are; else they may round to the next number.

    Args:
        layer: an `nnx.Linear`, `nnx.Conv`, `nnx.ConvTranspose` or `qjax.nnx.PReLU`, whose weight and bias are not used.
        weight: a module whose call returns the weight in torch's layout.
        bias: float32, or None.
        relu: True for a ReLU behind it.
        output: a module that rounds the result.

    Attributes:
        layer_name: where the layer is in a model; `convert` writes it.
        observed_by: what rounds the result, for `report`.

    Example:
        >>> from qjax import parse
        >>> from qjax.nnx import Identity
        >>> from qjax.quantization.rounding import CodedArray
        >>> weight = CodedWeight(CodedArray.of(jnp.float32([[1.0, 0.3]]), parse("e2m1fn")))
        >>> layer = RoundedLayer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), weight, None, True, Identity())
        >>> layer(jnp.float32([[1.0, 2.0]]))
        Array([[2.]], dtype=float32)
    """

    layer_name = observed_by = ""
    is_uncalibrated = False

    def __init__(self, layer: Any, weight: nnx.Module, bias: Any, relu: bool, output: nnx.Module) -> None:
        # In PyTorch, layers that keep their class read the weight in the dtype that it had, the others in float32.
        self.dtype = str(torch_weight(layer).dtype) if isinstance(layer, KEEPING_CODE) else "float32"
        self.layer: Any = nnx.clone(layer, variables=False)
        set_torch_weight(self.layer, None)
        if hasattr(layer, "use_bias"):
            self.layer.bias, self.layer.use_bias, self.layer.dtype = nnx.data(None), bias is not None, None
        self.weight, self.bias, self.relu, self.output = weight, float_variable("bias", bias), relu, output

    def __call__(self, input: Any) -> Any:
        """The rounded result in the input's dtype, a QTensor if `output` makes one; sums are float32's."""
        check_calibrated(self)
        weight: Any = self.weight
        layer: Any = nnx.clone(self.layer)
        set_torch_weight(layer, Names.astype(weight().astype(self.dtype), "float32"))
        if self.bias is not None:
            layer.bias = nnx.data(self.bias)
        x = input.dequantize() if isinstance(input, QTensor) else input
        y = layer(Names.astype(x, "float32")).astype(x.dtype)
        output: Any = self.output
        return output(relu(y) if self.relu else y)
