"""Layers that multiply in floats, with weights that lie in memory as the codes of a format, and rounded outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore import Number
from qjax.nnx.functional import relu
from qjax.nnx.quantized.base import IntegerVariable, QuantizedWeight, check_calibrated, float_variable
from qjax.quantization import QTensor
from qjax.quantization.rounding import CodedArray
from qjax.quantization.scaled import round_with_scale

__all__ = ["CodedWeight", "Dequantized", "RoundedLayer", "ScaledRounding"]


class CodedWeight(nnx.Module):
    """A weight rounded to a format in variables, as its packed codes; for formats without codes, as the numbers.

    Names, shapes and bytes of the variables are those of `qtorch.nn.rounded.CodedWeight`: dimensions are in torch's
    order, outputs first.

    Args:
        array: the codes, and the scales of blocks.

    Example:
        >>> from qjax import parse
        >>> weight = CodedWeight(CodedArray.of(jnp.float32([[1.0, -1.2], [0.3, 7.0]]), parse("e2m1fn")))
        >>> weight.codes[...].ravel(), weight()
        (Array([162, 113], dtype=uint8), Array([[ 1. , -1. ],
               [ 0.5,  6. ]], dtype=float32))
    """

    def __init__(self, array: CodedArray) -> None:
        self.number, self.shape, self.scales = array.number, tuple(array.shape), len(array.scales)
        self.codes = IntegerVariable(array.codes)
        for index, scale in enumerate(array.scales):
            setattr(self, f"scales{index}", IntegerVariable(scale))

    def __call__(self) -> jax.Array:
        """The numbers, in float32."""
        scales = tuple(getattr(self, f"scales{index}")[...] for index in range(self.scales))
        return CodedArray(self.codes[...], scales, self.number, self.shape).numbers()


class Dequantized(nnx.Module):
    """A weight of float32, or the numbers of one in integers.

    Args:
        weight: an array, or a QTensor.

    Example:
        >>> Dequantized(jnp.ones(1))()
        Array([1.], dtype=float32)
    """

    def __init__(self, weight: Any) -> None:
        if isinstance(weight, QTensor):
            self.integers = QuantizedWeight(weight)
        else:
            self.values = IntegerVariable(jnp.asarray(weight, jnp.float32))

    def __call__(self) -> jax.Array:
        """The numbers."""
        return self.integers().dequantize() if hasattr(self, "integers") else self.values[...]


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
    """A linear layer or convolution in floats whose weight was rounded once, and whose outputs are rounded.

    Quantized inputs are dequantized. Sums are flax's own, in float32: results have the same bits as PyTorch's where
    sums are exact, as those of few products of short numbers are; else they may round to the next number.

    Args:
        layer: an `nnx.Linear` or `nnx.Conv`, whose kernel and bias are not used.
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
        >>> weight = CodedWeight(CodedArray.of(jnp.float32([[1.0, 0.3]]), parse("e2m1fn")))
        >>> layer = RoundedLayer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), weight, None, True, Identity())
        >>> layer(jnp.float32([[1.0, 2.0]]))
        Array([[2.]], dtype=float32)
    """

    layer_name = observed_by = ""
    is_uncalibrated = False

    def __init__(self, layer: Any, weight: nnx.Module, bias: Any, relu: bool, output: nnx.Module) -> None:
        self.layer = nnx.clone(layer, variables=False)
        self.layer.kernel, self.layer.bias = nnx.data(None), nnx.data(None)
        self.weight, self.bias, self.relu, self.output = weight, float_variable("bias", bias), relu, output

    def __call__(self, input: Any) -> Any:
        """The rounded result in the input's dtype, a QTensor if `output` makes one; sums are float32's."""
        check_calibrated(self)
        weight: Any = self.weight
        layer: Any = nnx.clone(self.layer)
        layer.kernel = nnx.Param(jnp.moveaxis(weight(), (0, 1), (-1, -2)))
        layer.bias, layer.use_bias = nnx.data(self.bias), self.bias is not None
        x = input.dequantize() if isinstance(input, QTensor) else input
        y = layer(x.astype(jnp.float32)).astype(x.dtype)
        output: Any = self.output
        return output(relu(y) if self.relu else y)
