"""Modules at the borders of integer layers: floats become integers, and integers become floats."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from qjax.nnx.quantized.base import Quantized, check_calibrated, check_quantized, layer_name
from qjax.quantization import QTensor, quantize_affine


class Quantize(Quantized):
    """Quantizes floats with fixed parameters; `convert` puts it in the place of a `QuantStub`.

    Args:
        output: the parameters.
        form: the integers.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore.affine import UINT8, QParams
        >>> Quantize(QParams.of(0.5, 3), UINT8)(jnp.float32([1, -9])).int_repr()
        Array([5, 0], dtype=uint8)
    """

    def __call__(self, x: Any) -> QTensor:
        """The integers of floats.

        Raises:
            TypeError: if x is not an array of floats.
        """
        check_calibrated(self)
        if isinstance(x, QTensor):
            raise TypeError(f"{layer_name(self)}: x is a QTensor; allowed are arrays of floats: remove this QuantStub")
        return quantize_affine(x, self.output, self.form)


class DeQuantize(nnx.Module):
    """Dequantizes quantized arrays; `convert` puts it in the place of a `DeQuantStub`.

    Attributes:
        layer_name: the layer's name in a model, for its errors.
        dtype: the dtype of the result, float32 by default; `convert` writes the dtype of the model's parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> from qjax.quantization import quantize_per_tensor
        >>> DeQuantize()(quantize_per_tensor(jnp.float32([1.1, -9]), 0.5, 3, "quint8"))
        Array([ 1. , -1.5], dtype=float32)
    """

    layer_name = ""
    dtype: Any = "float32"

    def __call__(self, x: QTensor) -> jax.Array:
        """The numbers.

        Raises:
            TypeError: if x is not a QTensor.
        """
        check_quantized(self, x, "x")
        return x.dequantize().astype(self.dtype)
