"""Transposed convolutions in integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine import AffineInteger, QParams
from qcore.affine.arithmetic.convolutions import filters_of
from qcore.arguments import check_choice, check_int, check_sizes
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.quantized.base import Quantized, float_variable, place_of
from qjax.nnx.quantized.conv import for_pairs
from qjax.nnx.quantized.weights import QuantizedWeight
from qjax.quantization import QTensor
from qjax.quantization.functional.products import conv_to


class _TransposedWeight(QuantizedWeight):
    """A weight whose outputs are its second dimension, along which its scales lie."""

    channels = 1


class ConvTranspose(Quantized):
    """A transposed convolution of images with channels last in integers: exact sums, requantized.

    It is the convolution of the images with zero points between and around their integers.

    Args:
        weight: of up to 16 bits, in torch's layout (in_features, out_features, *kernel_size), with one scale or one for
            each output, along axis 1.
        bias: float32 of shape (out_features,), or None.
        output: the parameters of the result.
        form: the result's integers.
        strides, kernel_dilation: for all dimensions, or for each.
        padding: "SAME", "VALID", a number, or a number or pair for each dimension, as for `nnx.ConvTranspose`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.ones((1, 1, 2)), 0.25, 0, "qint8")
        >>> layer = ConvTranspose(weight, None, QParams.of(0.5, 0), UINT8, strides=2)
        >>> layer(quantize_per_tensor(jnp.float32([[[1], [2]]]), 0.5, 7, "quint8")).dequantize().ravel()
        Array([1., 1., 2., 2.], dtype=float32)
    """

    def __init__(
        self,
        weight: QTensor,
        bias: ArrayLike | None,
        output: QParams,
        form: AffineInteger,
        strides: Any = 1,
        padding: Any = "SAME",
        kernel_dilation: Any = 1,
    ) -> None:
        super().__init__(output, form)
        self.weight = _TransposedWeight(weight)
        if weight.ndim not in (3, 4, 5):
            raise ValueError(f"weight has shape {weight.shape}; allowed are kernels of one to three dimensions")
        self.dimensions = weight.ndim - 2
        self.strides = check_sizes("strides", 1 if strides is None else strides, 1, self.dimensions)
        dilation = 1 if kernel_dilation is None else kernel_dilation
        self.kernel_dilation = check_sizes("kernel_dilation", dilation, 1, self.dimensions)
        reach = [gap * (size - 1) + 1 for size, gap in zip(weight.shape[2:], self.kernel_dilation, strict=True)]
        self.pairs = _pairs(padding, reach, self.strides)
        self.bias = float_variable("bias", bias, weight.shape[1:2])

    def __call__(self, input: QTensor) -> QTensor:
        """The transposed convolution of a quantized array of shape (..., *sizes, in_features).

        Raises:
            TypeError: if input is no QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        self.check_input(input)
        weight, bias = self.weight(), None if self.bias is None else self.bias[...]
        if input.ndim <= self.dimensions or input.shape[-1] != weight.shape[0]:
            raise ValueError(
                f"{place_of(self)}: input has shape {input.shape}; allowed are {self.dimensions} sizes before "
                f"{weight.shape[0]} channels, as weight says"
            )
        batch, rest = input.shape[: -self.dimensions - 1], input.shape[-self.dimensions - 1 :]
        images = input.reshape(-1, *rest)
        between = [(*pair, step - 1) for pair, step in zip(self.pairs, self.strides, strict=True)]
        zero = images.qparams.zero_point.astype(images.values.dtype)
        images = images._with(jax.lax.pad(images.values, zero, [(0, 0, 0), *between, (0, 0, 0)]))
        settings = (1,) * self.dimensions, ((0, 0),) * self.dimensions, self.kernel_dilation, 1
        result = conv_to(images, filters_of(weight, 1), bias, settings, self.output, self.form)
        return result.reshape(*batch, *result.shape[1:])

    @classmethod
    def of(
        cls, layer: nnx.ConvTranspose, weight: QTensor, bias: Any, output: QParams, form: AffineInteger
    ) -> ConvTranspose:
        """The layer in integers of an `nnx.ConvTranspose`, of a weight whose outputs are first."""
        axis = None if weight.qparams.axis is None else 1
        qparams = QParams(weight.qparams.scale, weight.qparams.zero_point, axis)
        swapped = QTensor(jnp.swapaxes(weight.values, 0, 1), qparams, weight.form)
        return cls(swapped, bias, output, form, layer.strides, layer.padding, layer.kernel_dilation)


def _pairs(padding: Any, reach: list[int], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """How many zero points stand before and after images, as `jax.lax.conv_transpose` has it."""
    if not isinstance(padding, str):
        each = [(one, one) if isinstance(one, int) else one for one in for_pairs(padding, len(reach))]
        return tuple((check_int("padding", low), check_int("padding", high)) for low, high in each)
    check_choice("padding", padding, ("SAME", "VALID"))
    pairs = []
    for extent, step in zip(reach, strides, strict=True):
        whole = extent + step - 2 + (max(extent - step, 0) if padding == "VALID" else 0)
        first = extent - 1 if padding == "VALID" or step > extent - 1 else -(-whole // 2)
        pairs.append((first, whole - first))
    return tuple(pairs)
