"""Linear layers in integers."""

from __future__ import annotations

from typing import Any

import jax

from qcore.affine import AffineInteger, QParams
from qcore.affine.quantized import check_linear
from qjax.nnx.quantized.base import Quantized, checked, float_variable
from qjax.nnx.quantized.weights import QuantizedWeight
from qjax.quantization import QTensor
from qjax.quantization.functional.products import WIDTHS, linear_to


class Linear(Quantized):
    """input @ weight.T + bias in integers: exact sums, requantized (`qcore.affine.requantize`).

    Args:
        weight: of up to 16 bits, shape (out_features, in_features), with one scale or one for each output.
        bias: float32 of shape (out_features,), or None.
        output: the parameters of the result.
        form: the result's integers.
        relu: True for a ReLU behind it.

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

    def __call__(self, input: QTensor) -> QTensor:
        """The layer of a quantized array of shape (..., in_features).

        Raises:
            TypeError: if input is no QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        self.check_input(input)
        weight, bias = self.weight(), None if self.bias is None else self.bias[...]
        checked(self, check_linear, input, weight, WIDTHS)
        result = linear_to(input, weight, bias, self.output, self.form)
        return result.relu() if self.relu else result

    @classmethod
    def of(cls, layer: Any, weight: QTensor, bias: Any, output: QParams, form: AffineInteger, relu: bool) -> Linear:
        """The layer in integers of an `nnx.Linear`."""
        return cls(weight, bias, output, form, relu)
