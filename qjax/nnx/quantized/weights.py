"""Weights in variables, as integers, as codes of a format, or as floats."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine import QParams
from qcore.arguments import check_type
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.layouts import flax_layout
from qjax.nnx.quantized.base import IntegerVariable
from qjax.quantization import QTensor
from qjax.quantization.integer import packed, packs, unpacked
from qjax.quantization.rounding import CodedArray


class QuantizedWeight(nnx.Module):
    """The integers of a weight in variables; a call returns them as a QTensor.

    Integers of at most 4 bits are packed two in a byte, one row for each output, as by `qjax.pack`. The variable then
    is `packed`, of shape (outputs, bytes), else `int_repr`. Names, shapes and bytes are as in `qtorch.nn.quantized`:
    dimensions are in torch's order, outputs first.

    Args:
        weight: the weight, with one scale for all or along axis 0.

    Raises:
        TypeError, ValueError: if its arrays do not fit each other, or it has another type or axis.

    Example:
        >>> from qcore.affine import AffineInteger
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = QuantizedWeight(
        ...     quantize_per_tensor(jnp.float32([[-1.0, 0.5]]), 0.5, 0, AffineInteger(-8, 7))
        ... )
        >>> weight.packed[...], weight().int_repr()
        (Array([[30]], dtype=uint8), Array([[-2,  1]], dtype=int8))
    """

    channels = 0  # the dimension along which several scales lie

    def __init__(self, weight: QTensor) -> None:
        check_type("weight", weight, QTensor, "a QTensor")
        weight.check()
        if weight.qparams.axis not in (None, self.channels) or weight.form.storage == "int32":
            raise ValueError(
                f"weight has axis={weight.qparams.axis} and integers of {weight.form.storage}; allowed are one scale "
                f"for all or axis={self.channels}, and integers of up to 16 bits"
            )
        self.form, self.shape, self.axis = weight.form, tuple(weight.shape), weight.qparams.axis
        self.is_packed = packs(weight.form)
        if self.is_packed:
            self.packed = IntegerVariable(packed(weight.values))
        else:
            self.int_repr = IntegerVariable(weight.values)
        self.scale = IntegerVariable(jnp.asarray(weight.qparams.scale))
        self.zero_point = IntegerVariable(jnp.asarray(weight.qparams.zero_point))

    def __call__(self) -> QTensor:
        """The weight."""
        values = unpacked(self.packed[...], self.form, self.shape) if self.is_packed else self.int_repr[...]
        return QTensor(values, QParams(self.scale[...], self.zero_point[...], self.axis), self.form)


class CodedWeight(nnx.Module):
    """A weight rounded to a format, in variables: its packed codes, or its numbers if the format has no codes.

    Names, shapes and bytes of the variables are as in `qtorch.nn.rounded.CodedWeight`: dimensions are in torch's order,
    outputs first.

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
    """A float32 weight, or the dequantized numbers of an integer weight.

    Args:
        weight: an array, or a QTensor.

    Example:
        >>> Dequantized(jnp.ones(1))()
        Array([1.], dtype=float32)
    """

    def __init__(self, weight: QTensor | ArrayLike) -> None:
        self.shape = tuple(weight.shape)
        if isinstance(weight, QTensor):
            self.integers = QuantizedWeight(weight)
        else:
            self.values = IntegerVariable(jnp.asarray(weight, jnp.float32))

    def __call__(self) -> jax.Array:
        """The numbers."""
        return self.integers().dequantize() if hasattr(self, "integers") else self.values[...]


Weight = QuantizedWeight | CodedWeight | Dequantized


def rounded_weight(weight: Any) -> CodedWeight | Dequantized:
    """The module that holds the weight of a layer that computes in floats.

    Args:
        weight: a `CodedArray`, a QTensor or floats.
    """
    return CodedWeight(weight) if isinstance(weight, CodedArray) else Dequantized(weight)


class WithKernel:
    """A layer with a weight in torch's layout."""

    weight: Any

    @property
    def kernel(self) -> IntegerVariable:
        """The numbers of the weight in flax's layout, as float32, for code of models that reads them."""
        return IntegerVariable(flax_layout(numbers_of(self.weight)))


def numbers_of(weight: Any) -> jax.Array:
    """The numbers of a weight in a variable, or in a module whose call returns it, as float32."""
    found = weight[...] if isinstance(weight, nnx.Variable) else weight()
    return (found.dequantize() if isinstance(found, QTensor) else found).astype(jnp.float32)
