"""Convolutions and transposed convolutions in integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.affine import AffineInteger, QParams
from qcore.affine.functional.convolutions import filters_of, pad_images
from qcore.arguments import check_choice, check_int, check_size, check_sizes, check_type, quoted
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.layouts import flax_layout
from qjax.nnx.quantized.base import IntegerVariable, Quantized, checked, float_variable, layer_name
from qjax.nnx.quantized.weights import QuantizedWeight, WithKernel, numbers_of
from qjax.quantization import QTensor
from qjax.quantization.functional.products import conv_to

# Paddings with the image's own integers, and their names in `pad_images`
_OWN = {"CIRCULAR": "circular", "REFLECT": "reflect"}
Padding = str | int | Sequence[int | tuple[int, int]]
NAMED_PADDINGS = ("SAME", "VALID", "CAUSAL", *_OWN)


class Conv(WithKernel, Quantized):
    """A convolution of images with channels last in integers: exact sums, requantized.

    Images are padded with the zero point, or with their own integers if `padding` says so.

    Args:
        weight: of up to 16 bits, in torch's layout (out_features, in_features / groups, *kernel_size), with one scale
            or one for each output.
        bias: float32 of shape (out_features,), or None.
        output: the parameters of the result.
        form: the result's integers.
        strides, kernel_dilation: for all dimensions, or for each.
        padding: "SAME", "VALID", "CAUSAL", "CIRCULAR", "REFLECT", a number, or one number or pair for each dimension,
            as for `nnx.Conv`.
        feature_group_count: the number of groups into which channels and outputs are split.
        relu: True if a ReLU follows.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.ones((1, 1, 3, 3)), 0.25, 0, "qint8")
        >>> layer = Conv(weight, None, QParams.of(1.0, 0), UINT8)
        >>> layer(quantize_per_tensor(jnp.ones((1, 3, 3, 1)), 0.5, 7, "quint8")).int_repr()[0, :, :, 0]
        Array([[4, 6, 4],
               [6, 9, 6],
               [4, 6, 4]], dtype=uint8)
    """

    def __init__(
        self,
        weight: QTensor,
        bias: jax.Array | None,
        output: QParams,
        form: AffineInteger,
        strides: int | Sequence[int] | None = 1,
        padding: Padding = "SAME",
        kernel_dilation: int | Sequence[int] | None = 1,
        feature_group_count: int = 1,
        relu: bool = False,
    ) -> None:
        super().__init__(output, form)
        self.weight = QuantizedWeight(weight)
        self.dimensions, self.strides, self.kernel_dilation = _geometry(weight, strides, kernel_dilation)
        self.padding, self.feature_group_count, self.relu = _padding(padding), feature_group_count, relu
        check_size("feature_group_count", feature_group_count)
        self.bias = float_variable("bias", bias, weight.shape[:1])
        self._pairs((1 << 16,) * self.dimensions)  # wrong paddings raise here

    def __call__(self, inputs: QTensor) -> QTensor:
        """The convolution of a quantized array of shape (..., *sizes, in_features).

        Raises:
            TypeError: if inputs is not a QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        self._check_input(inputs)
        weight, bias = self.weight(), None if self.bias is None else self.bias[...]
        channels = weight.shape[1] * self.feature_group_count
        if inputs.ndim <= self.dimensions or inputs.shape[-1] != channels:
            sizes = ", ".join(("depth", "height", "width")[-self.dimensions :])
            allowed = f"(..., {sizes}, {channels}), as weight says"
            raise ValueError(f"{layer_name(self)}: input has shape {inputs.shape}; allowed is {allowed}")
        batch, rest = inputs.shape[: -self.dimensions - 1], inputs.shape[-self.dimensions - 1 :]
        images, pairs = inputs.reshape(-1, *rest), checked(self, self._pairs, rest[:-1])
        if self.padding in _OWN:
            images = checked(self, pad_images, images, pairs, _OWN[self.padding], first=1)
            pairs = ((0, 0),) * self.dimensions
        settings = self.strides, pairs, self.kernel_dilation, self.feature_group_count
        result = conv_to(images, weight, bias, settings, self.output, self.form)
        result = result.reshape(*batch, *result.shape[1:])
        return result.relu() if self.relu else result

    def _pairs(self, sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The numbers of integers to pad before and after images of these sizes."""
        kernel = self.weight.shape[2:]
        reach = [gap * (count - 1) + 1 for count, gap in zip(kernel, self.kernel_dilation, strict=True)]
        if self.padding == "CAUSAL" and self.dimensions == 1:
            pairs = [(reach[0] - 1, 0)]
        elif self.padding in ("SAME", "VALID"):
            pairs = jax.lax.padtype_to_pads(sizes, reach, self.strides, self.padding)
        elif self.padding in _OWN:
            pairs = [((extent - 1) // 2, extent // 2) for extent in reach]
        elif isinstance(self.padding, str):
            raise ValueError(
                f"padding={quoted(self.padding)}; "
                "allowed are SAME, VALID, CIRCULAR, REFLECT, in one dimension CAUSAL, and "
                "numbers"
            )
        else:
            each = for_pairs(self.padding, self.dimensions)
            pairs = [check_sizes("padding", pair, 0, 2) for pair in each]
        for size, (before, after), extent in zip(sizes, pairs, reach, strict=True):
            if size + before + after < extent:
                raise ValueError(f"images have sizes {sizes}; allowed are none smaller than the kernel, {tuple(reach)}")
        return tuple((int(before), int(after)) for before, after in pairs)

    @classmethod
    def of(
        cls,
        layer: nnx.Conv,
        weight: QTensor,
        bias: jax.Array | None,
        output: QParams,
        form: AffineInteger,
        relu: bool,
    ) -> Conv:
        """The integer form of an `nnx.Conv`."""
        geometry = layer.strides, layer.padding, layer.kernel_dilation, layer.feature_group_count
        return cls(weight, bias, output, form, *geometry, relu)


def _geometry(weight: QTensor, strides: Any, dilation: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The number of spatial dimensions of a kernel, and its strides and dilations along them; None is 1."""
    if weight.ndim not in (3, 4, 5):
        raise ValueError(f"weight has shape {weight.shape}; allowed are kernels of one to three dimensions")
    count = weight.ndim - 2
    strides = check_sizes("strides", 1 if strides is None else strides, 1, count)
    return count, strides, check_sizes("kernel_dilation", 1 if dilation is None else dilation, 1, count)


def for_pairs(padding: Any, dimensions: int) -> tuple[Any, ...]:
    """A padding for each dimension, each a number or a pair."""
    each = padding if isinstance(padding, (tuple, list)) else (padding,) * dimensions
    if len(each) != dimensions:
        raise ValueError(f"padding={padding}; allowed are one number, or a number or pair for each of {dimensions}")
    return tuple(each)


def _padding(padding: Any) -> Any:
    """A padding with tuples in place of lists, which flax accepts as attributes of a module."""
    check_type("padding", padding, (str, int, np.integer, tuple, list), "text, an int, or ints and pairs of ints")
    return tuple(map(_padding, padding)) if isinstance(padding, (tuple, list)) else padding


class _TransposedWeight(QuantizedWeight):
    """A weight with outputs, and so scales, along its second dimension."""

    channels = 1


class ConvTranspose(Quantized):
    """A transposed convolution of images with channels last in integers: exact sums, requantized.

    It is a convolution of images that have zero points inserted between and around their integers.

    Args:
        weight: of up to 16 bits, in torch's layout (in_features, out_features, *kernel_size), with one scale or one for
            each output, along axis 1.
        bias: float32 of shape (out_features,), or None.
        output: the parameters of the result.
        form: the result's integers.
        strides, kernel_dilation: for all dimensions, or for each.
        padding: "SAME", "VALID", a number, or a number or pair for each dimension, as for `nnx.ConvTranspose`.

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
        strides: int | Sequence[int] | None = 1,
        padding: Padding = "SAME",
        kernel_dilation: int | Sequence[int] | None = 1,
    ) -> None:
        super().__init__(output, form)
        self.weight = _TransposedWeight(weight)
        self.dimensions, self.strides, self.kernel_dilation = _geometry(weight, strides, kernel_dilation)
        reach = [gap * (size - 1) + 1 for size, gap in zip(weight.shape[2:], self.kernel_dilation, strict=True)]
        self.pairs = _pairs(padding, reach, self.strides)
        self.bias = float_variable("bias", bias, weight.shape[1:2])

    def __call__(self, inputs: QTensor) -> QTensor:
        """The transposed convolution of a quantized array of shape (..., *sizes, in_features).

        Raises:
            TypeError: if inputs is not a QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        self._check_input(inputs)
        weight, bias = self.weight(), None if self.bias is None else self.bias[...]
        if inputs.ndim <= self.dimensions or inputs.shape[-1] != weight.shape[0]:
            raise ValueError(
                f"{layer_name(self)}: input has shape {inputs.shape}; allowed are {self.dimensions} sizes before "
                f"{weight.shape[0]} channels, as weight says"
            )
        batch, rest = inputs.shape[: -self.dimensions - 1], inputs.shape[-self.dimensions - 1 :]
        images = inputs.reshape(-1, *rest)
        between = [(*pair, step - 1) for pair, step in zip(self.pairs, self.strides, strict=True)]
        zero = images.qparams.zero_point.astype(images.values.dtype)
        images = images._with(jax.lax.pad(images.values, zero, [(0, 0, 0), *between, (0, 0, 0)]))
        settings = (1,) * self.dimensions, ((0, 0),) * self.dimensions, self.kernel_dilation, 1
        result = conv_to(images, filters_of(weight, 1), bias, settings, self.output, self.form)
        return result.reshape(*batch, *result.shape[1:])

    @property
    def kernel(self) -> IntegerVariable:
        """The numbers of the weight in flax's layout, as float32, for code of models that reads them."""
        return IntegerVariable(flax_layout(jnp.swapaxes(numbers_of(self.weight), 0, 1), transposed=True))

    @classmethod
    def of(
        cls, layer: nnx.ConvTranspose, weight: QTensor, bias: jax.Array | None, output: QParams, form: AffineInteger
    ) -> ConvTranspose:
        """The integer form of an `nnx.ConvTranspose`; the weight has outputs first."""
        axis = None if weight.qparams.axis is None else 1
        qparams = QParams(weight.qparams.scale, weight.qparams.zero_point, axis)
        swapped = QTensor(jnp.swapaxes(weight.values, 0, 1), qparams, weight.form)
        return cls(swapped, bias, output, form, layer.strides, layer.padding, layer.kernel_dilation)


def _pairs(padding: Any, reach: list[int], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The numbers of zero points to pad before and after images, as in `jax.lax.conv_transpose`."""
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
