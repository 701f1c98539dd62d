"""The product that all dynamic layers use."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine import AffineInteger
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.functional import relu
from qjax.nnx.quantized.base import IntegerVariable, check_real, checked, float_variable
from qjax.nnx.quantized.weights import QuantizedWeight, WithKernel, rounded_weight
from qjax.quantization import QTensor
from qjax.quantization.functional.dynamic import (
    ACTIVATIONS,
    RangedWeight,
    RoundedWeight,
    Weight,
    check_weight,
    halves,
    product,
)
from qjax.quantization.rounding import CodedArray, FormatRounding


class Linear(WithKernel, nnx.Module):
    """x @ weight.T + bias with a quantized weight and x quantized by its own range, a float16 weight, or formats.

    The product is computed in float32, and the result has x's dtype.

    Args:
        weight: QTensor of shape (outputs, features), of up to 16 bits; or floats, which become float16. With a
            rounding a `CodedArray`, a QTensor or floats, whose numbers are multiplied.
        bias: array of shape (outputs,), or None.
        relu: True if a ReLU follows.
        rounding: the rounding of inputs, to a format or to none; None for integers and float16.

    Attributes:
        activations: the integers of x.
        rows: whether each row of x has a range of its own, such as a token; else all of x has one.
        layer_name: the layer's name in a model, for its errors; `quantize_dynamic` writes it.

    Raises:
        TypeError, ValueError: if the weight's arrays do not fit each other.

    Example:
        >>> import jax.numpy as jnp
        >>> Linear(jnp.float32([[0.1, 70000.0]]), None)(jnp.float32([[1, 0]]))
        Array([[0.09997559]], dtype=float32)
    """

    layer_name = ""
    activations, rows = ACTIVATIONS, False  # of layers in older files

    def __init__(
        self,
        weight: QTensor | CodedArray | ArrayLike,
        bias: ArrayLike | None,
        relu: bool = False,
        rounding: FormatRounding | None = None,
    ) -> None:
        self.weight: Any
        if rounding is not None:
            self.weight = rounded_weight(weight)
        elif isinstance(weight, QTensor):
            check_weight("weight", weight)
            self.weight = QuantizedWeight(weight)
        else:
            check_real("weight", weight)
            self.weight = IntegerVariable(halves(cast("ArrayLike", weight)))
        if len(self.weight.shape) != 2:
            raise ValueError(f"weight has shape {tuple(self.weight.shape)}; allowed is (outputs, features)")
        self.bias, self.relu = float_variable("bias", bias, self.weight.shape[:1]), relu
        self.rounding = rounding
        self.set_range(ACTIVATIONS, False)

    def set_range(self, activations: AffineInteger, rows: bool) -> None:
        """Sets the integers of the input, and whether each row of it has a range; files have other than the default."""
        self.activations, self.rows = activations, rows
        if (activations, rows) != (ACTIVATIONS, False):
            self.input_range = IntegerVariable(jnp.int32([activations.qmin, activations.qmax, rows]))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The product; see `qjax.quantization.functional.dynamic_linear`.

        Raises:
            TypeError: if inputs is not an array of floats.
            ValueError: if its shape does not fit.
        """
        y = self.product(inputs).astype(inputs.dtype)
        return relu(y) if self.relu else y

    def product(self, x: jax.Array) -> jax.Array:
        """The product in float32, whatever x's dtype; without the ReLU."""
        return checked(self, product, x, self.operand(), None if self.bias is None else self.bias[...])

    @property
    def is_half(self) -> bool:
        """True with a weight of float16."""
        return isinstance(self.weight, IntegerVariable)

    def operand(self) -> Weight:
        """The weight in the form that `dynamic_linear` takes."""
        if self.is_half:
            return self.weight[...]
        if self.rounding is not None:
            return RoundedWeight(self.weight(), self.rounding)
        return RangedWeight(self.weight(), self.activations, self.rows)
