"""The product that dynamic layers are made of."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from qjax.nnx.functional import relu
from qjax.nnx.quantized.base import IntegerVariable, QuantizedWeight, check_real, checked, float_variable
from qjax.quantization import QTensor
from qjax.quantization.functional.dynamic import check_weight, dynamic_linear, halves


class Linear(nnx.Module):
    """x @ weight.T + bias in float32, of a quantized weight and x quantized by its own range, or of a float16 weight.

    Args:
        weight: QTensor of shape (outputs, features), of up to 16 bits; or floats, which become float16.
        bias: of shape (outputs,), or None.
        relu: True for a ReLU behind it.

    Attributes:
        layer_name: where the layer is in a model, for its errors; `quantize_dynamic` writes it.

    Raises:
        TypeError, ValueError: if the weight's arrays do not fit each other.

    Example:
        >>> import jax.numpy as jnp
        >>> Linear(jnp.float32([[0.1, 70000.0]]), None)(jnp.float32([[1, 0]]))
        Array([[0.09997559]], dtype=float32)
    """

    layer_name = ""

    def __init__(self, weight: Any, bias: Any, relu: bool = False) -> None:
        if not isinstance(weight, QTensor):
            check_real("weight", weight)
            weight = halves(weight)
        check_weight("weight", weight)
        self.weight: Any = QuantizedWeight(weight) if isinstance(weight, QTensor) else IntegerVariable(weight)
        self.bias, self.relu = float_variable("bias", bias, weight.shape[:1]), relu

    def __call__(self, x: jax.Array) -> jax.Array:
        """The product; see `qjax.quantization.functional.dynamic_linear`.

        Raises:
            TypeError: if x is no array of floats.
            ValueError: if its shape does not fit.
        """
        weight = self.weight() if isinstance(self.weight, QuantizedWeight) else self.weight[...]
        y = checked(self, dynamic_linear, x, weight, None if self.bias is None else self.bias[...])
        return relu(y) if self.relu else y
