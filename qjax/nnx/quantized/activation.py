"""Activations of quantized arrays whose results have their own scale and zero point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qcore.affine import AffineInteger, QParams, functional
from qcore.affine.rows import OPERATIONS
from qcore.arguments import check_choice
from qjax.nnx.quantized.base import Quantized, checked
from qjax.nnx.quantized.weights import QuantizedWeight
from qjax.quantization import QTensor

if TYPE_CHECKING:
    from qjax import nnx

LAWS = {name: row.law for name, row in OPERATIONS.items() if row.flax}


class Activation(Quantized):
    """A function of `qcore.affine.functional.activations`, and the scale and zero point of its result.

    Args:
        law: the function's name, as the layers of `qjax.nnx` have it: "elu", "hardswish".
        output: the parameters of the result.
        form: the result's integers.
        settings: arguments of the function: alpha of "elu".

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> layer = Activation("elu", QParams.of(0.01, 100), UINT8)
        >>> run = nnx.jit(lambda layer, q: layer(q).dequantize())
        >>> run(layer, quantize_per_tensor(jnp.float32([-9, 1]), 0.1, 100, "quint8"))
        Array([-1.,  1.], dtype=float32)
    """

    def __init__(self, law: str, output: QParams, form: AffineInteger, **settings: float) -> None:
        check_choice("law", law, tuple(LAWS))
        super().__init__(output, form)
        self.law, self.settings = law, tuple(settings.items())

    def __call__(self, input: QTensor) -> QTensor:
        """The result.

        Raises:
            TypeError: if input is not a QTensor.
        """
        self._check_input(input)
        return LAWS[self.law](input, self.output, self.form, **dict(self.settings))


class PReLU(Quantized):
    """x where it is above 0, else x * w, with a quantized slope w for all or for each channel, on the last axis.

    Args:
        weight: the slopes, of up to 16 bits and shape (1,) or (channels,), with one scale or one for each.
        output: the parameters of the result.
        form: the result's integers.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> layer = PReLU(
        ...     quantize_per_tensor(jnp.float32([0.25]), 0.25, 0, "qint8"), QParams.of(0.5, 120), UINT8
        ... )
        >>> layer(quantize_per_tensor(jnp.float32([-4, 8]), 0.5, 120, "quint8")).dequantize()
        Array([-1.,  8.], dtype=float32)
    """

    def __init__(self, weight: QTensor, output: QParams, form: AffineInteger) -> None:
        super().__init__(output, form)
        self.weight = QuantizedWeight(weight)

    def __call__(self, input: QTensor) -> QTensor:
        """The result.

        Raises:
            TypeError: if input is not a QTensor.
            ValueError: if the number of channels is not the number of slopes.
        """
        self._check_input(input)
        return checked(self, functional.prelu, input, self.weight(), self.output, self.form, -1)

    @classmethod
    def of(cls, layer: nnx.PReLU, weight: QTensor, bias: None, output: QParams, form: AffineInteger) -> PReLU:
        """The integer form of a `qjax.nnx.PReLU`."""
        return cls(weight, output, form)
