"""Embeddings whose tables are quantized."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import check_type
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.quantized.base import checked, place_of
from qjax.nnx.quantized.weights import QuantizedWeight, Weight, rounded_weight
from qjax.quantization import QTensor


class Embed(nnx.Module):
    """Rows of a table in integers or in a format, as numbers: `nnx.Embed` with a weight that is quantized for good.

    Args:
        weight: the table of shape (rows, features): a QTensor, the codes of a format, or floats.
        dtype: of the numbers.

    Attributes:
        layer_name: where the layer is in a model, for its errors; `convert` writes it.

    Raises:
        TypeError, ValueError: if weight is not as above.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> table = quantize_per_tensor(jnp.float32([[-1, 0.5], [1, 0.26]]), 0.5, 0, "qint8")
        >>> Embed(table)(jnp.array([1, 0]))
        Array([[ 1. ,  0.5],
               [-1. ,  0.5]], dtype=float32)
    """

    layer_name = ""

    def __init__(self, weight: Any, dtype: Any = "float32") -> None:
        self.weight: Weight = QuantizedWeight(weight) if isinstance(weight, QTensor) else rounded_weight(weight)
        if len(self.weight.shape) != 2:
            raise ValueError(f"weight has shape {self.weight.shape}; allowed is (rows, features)")
        self.dtype = str(jnp.dtype(dtype))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The rows, of shape (*inputs.shape, features); NaN for a row that is not there, as in flax.

        Raises:
            TypeError: if inputs is not an array of integers.
        """
        checked(self, check_type, "inputs", inputs, ArrayLike, "a jax.Array or NumPy array of integers")
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise TypeError(f"{place_of(self)}: inputs has dtype {inputs.dtype}; allowed are integers")
        return jnp.take(self._numbers(), inputs, axis=0)

    def attend(self, query: jax.Array) -> jax.Array:
        """The products of arrays of shape (..., features) with all rows, as `nnx.Embed.attend` has them.

        Raises:
            ValueError: if shapes do not fit.
        """
        features = self.weight.shape[-1]
        if getattr(query, "ndim", 0) == 0 or query.shape[-1] != features:
            shape = getattr(query, "shape", type(query).__name__)
            raise ValueError(f"{place_of(self)}: query has shape {shape}; allowed is (..., {features})")
        return (query.astype(jnp.float32) @ self._numbers().astype(jnp.float32).T).astype(query.dtype)

    def _numbers(self) -> jax.Array:
        weight = self.weight()
        numbers = weight.dequantize() if isinstance(weight, QTensor) else weight
        return numbers.astype(self.dtype)
