"""Layers that compute in floats, with weights stored as the codes of a format, and with rounded outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore import Number
from qcore.lazy import public_names
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.activations import PReLU
from qjax.nnx.functional import relu
from qjax.nnx.layouts import set_torch_weight, torch_weight
from qjax.nnx.quantized.base import IntegerVariable, check_calibrated, float_variable
from qjax.nnx.quantized.weights import CodedWeight, Dequantized, numbers_of
from qjax.quantization import QTensor
from qjax.quantization.scaled import round_with_scale

__all__ = ["CodedWeight", "Dequantized", "RoundedLayer", "ScaledRounding"]
__dir__ = public_names(__name__)

# Layers that keep their class in PyTorch; only their weight is replaced there.
KEEPING_CODE = nnx.ConvTranspose, PReLU


class ScaledRounding(nnx.Module):
    """Rounds arrays to a format with a scale from calibration or training.

    Args:
        number: the format.
        scale: float32 of shape (), or (channels,).
        axis: the axis of the channels.

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

    Quantized inputs are dequantized. flax computes the sums in float32: results have the same bits as PyTorch's where
    sums are exact, as are sums of few products of short numbers; else they may round to a neighbour.

    Args:
        layer: an `nnx.Linear`, `nnx.Conv`, `nnx.ConvTranspose` or `qjax.nnx.PReLU`, whose weight and bias are not used.
        weight: a module whose call returns the weight in torch's layout.
        bias: float32, or None.
        relu: True if a ReLU follows.
        output: a module that rounds the result.

    Attributes:
        layer_name: the layer's name in a model; `convert` writes it.
        observed_by: the name of the rounding of the result, for `report`.

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

    def __init__(
        self,
        layer: nnx.Linear | nnx.Conv | nnx.ConvTranspose | PReLU,
        weight: nnx.Module,
        bias: ArrayLike | None,
        relu: bool,
        output: nnx.Module,
    ) -> None:
        # In PyTorch, layers that keep their class read the weight in its original dtype, the others in float32.
        self.dtype = str(torch_weight(layer).dtype) if isinstance(layer, KEEPING_CODE) else "float32"
        self.layer: Any = nnx.clone(layer, variables=False)
        set_torch_weight(self.layer, None)
        if hasattr(layer, "use_bias"):
            self.layer.bias, self.layer.use_bias, self.layer.dtype = nnx.data(None), bias is not None, None
        self.weight, self.bias, self.relu, self.output = weight, float_variable("bias", bias), relu, output

    def __call__(self, inputs: Any) -> Any:
        """The rounded result in the input's dtype, or a QTensor if `output` returns one; sums are in float32."""
        check_calibrated(self)
        weight: Any = self.weight
        layer: Any = nnx.clone(self.layer)
        set_torch_weight(layer, Names.astype(weight().astype(self.dtype), "float32"))
        if self.bias is not None:
            layer.bias = nnx.data(self.bias)
        x = inputs.dequantize() if isinstance(inputs, QTensor) else inputs
        y = layer(Names.astype(x, "float32")).astype(x.dtype)
        output: Any = self.output
        return output(relu(y) if self.relu else y)

    @property
    def kernel(self) -> IntegerVariable:
        """The numbers of the weight in flax's layout, as float32, for code of models that reads them."""
        layer: Any = nnx.clone(self.layer)
        set_torch_weight(layer, numbers_of(self.weight))
        return IntegerVariable(layer.kernel[...])
