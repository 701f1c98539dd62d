"""Layers with an integer matrix: linear layers multiply with it, and embeddings look up its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine import AffineInteger, QParams
from qcore.affine.quantized import check_linear
from qcore.arguments import check_type
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.quantized.base import IntegerVariable, Quantized, checked, float_variable, layer_name
from qjax.nnx.quantized.weights import QuantizedWeight, Weight, WithKernel, numbers_of, rounded_weight
from qjax.quantization import QTensor
from qjax.quantization.functional.products import WIDTHS, linear_to
from qjax.quantization.rounding import CodedArray

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class Linear(WithKernel, Quantized):
    """input @ weight.T + bias in integers: exact sums, requantized (`qcore.affine.requantize`).

    Args:
        weight: of up to 16 bits, shape (out_features, in_features), with one scale or one for each output.
        bias: float32 of shape (out_features,), or None.
        output: the parameters of the result.
        form: the result's integers.
        relu: True if a ReLU follows.

    Raises:
        TypeError, ValueError: if the weight's arrays do not fit each other.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.float32([[0.5, 0.25]]), 0.01, 0, "qint8")
        >>> layer = Linear(weight, None, QParams.of(0.1, 0), UINT8)
        >>> layer(quantize_per_tensor(jnp.float32([[1.0, 2.0]]), 0.1, 0, "quint8")).dequantize()
        Array([[1.]], dtype=float32)
    """

    def __init__(
        self, weight: QTensor, bias: jax.Array | None, output: QParams, form: AffineInteger, relu: bool = False
    ) -> None:
        super().__init__(output, form)
        self.weight, self.relu = QuantizedWeight(weight), relu
        self.bias = float_variable("bias", bias, weight.shape[:1])

    def __call__(self, inputs: QTensor) -> QTensor:
        """The result for a quantized array of shape (..., in_features).

        Raises:
            TypeError: if inputs is not a QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        self._check_input(inputs)
        weight, bias = self.weight(), None if self.bias is None else self.bias[...]
        checked(self, check_linear, inputs, weight, WIDTHS)
        result = linear_to(inputs, weight, bias, self.output, self.form)
        return result.relu() if self.relu else result

    @classmethod
    def of(
        cls,
        layer: nnx.Linear,
        weight: QTensor,
        bias: jax.Array | None,
        output: QParams,
        form: AffineInteger,
        relu: bool,
    ) -> Linear:
        """The integer form of an `nnx.Linear`."""
        return cls(weight, bias, output, form, relu)


class Embed(nnx.Module):
    """`nnx.Embed` with a quantized weight: rows of a table in integers or in a format, as numbers.

    Args:
        weight: the table of shape (rows, features): a QTensor, the codes of a format, or floats.
        dtype: the dtype of the numbers.

    Attributes:
        layer_name: the layer's name in a model, for its errors; `convert` writes it.

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

    def __init__(self, weight: QTensor | CodedArray | ArrayLike, dtype: DTypeLike = "float32") -> None:
        check_type("weight", weight, (QTensor, CodedArray, ArrayLike), "a QTensor, a CodedArray or an array")
        self.weight: Weight = QuantizedWeight(weight) if isinstance(weight, QTensor) else rounded_weight(weight)
        if len(self.weight.shape) != 2:
            raise ValueError(f"weight has shape {self.weight.shape}; allowed is (rows, features)")
        self.dtype = str(jnp.dtype(dtype))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The rows, of shape (*inputs.shape, features); NaN for an index out of range, as in flax.

        Raises:
            TypeError: if inputs is not an array of integers.
        """
        checked(self, check_type, "inputs", inputs, ArrayLike, "a jax.Array or NumPy array of integers")
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise TypeError(f"{layer_name(self)}: inputs has dtype {inputs.dtype}; allowed are integers")
        return jnp.take(self._numbers(), inputs, axis=0)

    def attend(self, query: jax.Array) -> jax.Array:
        """The products of arrays of shape (..., features) with all rows, as `nnx.Embed.attend` returns them.

        Raises:
            ValueError: if shapes do not fit.
        """
        features = self.weight.shape[-1]
        if getattr(query, "ndim", 0) == 0 or query.shape[-1] != features:
            shape = getattr(query, "shape", type(query).__name__)
            raise ValueError(f"{layer_name(self)}: query has shape {shape}; allowed is (..., {features})")
        return (query.astype(jnp.float32) @ self._numbers().astype(jnp.float32).T).astype(query.dtype)

    def _numbers(self) -> jax.Array:
        return numbers_of(self.weight).astype(self.dtype)

    @property
    def embedding(self) -> IntegerVariable:
        """The table's numbers, for code of models that reads it as that of `nnx.Embed`."""
        return IntegerVariable(self._numbers())
