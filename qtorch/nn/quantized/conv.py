"""Convolutions and transposed convolutions in integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from qcore.affine import AffineInteger, QParams
from qcore.affine.functional.convolutions import filters_of, margins_of
from qcore.affine.quantized import PADDING_MODES, check_convolution, check_convolution_sizes
from qcore.arguments import check_choice, check_flag, check_sizes
from qtorch._affine import exported
from qtorch._affine.functional import WIDTHS, conv_to
from qtorch._affine.moves import spread
from qtorch._affine.products import Geometry
from qtorch._affine.programs import law
from qtorch._affine.tensor import QTensor
from qtorch.nn.quantized.base import ProductLayer, checked, layer_name
from qtorch.nn.quantized.weights import QuantizedWeight, in_float32, weight_of

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


class _Convolution(ProductLayer):
    """The base of convolutions and transposed convolutions.

    Attributes:
        dimensions: the number of spatial dimensions.
        shown: names of the attributes that `repr` shows.
    """

    dimensions: ClassVar[int]
    shown: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...],
        dilation: int | tuple[int, ...],
        groups: int,
        bias: bool,
        dtype: torch.dtype | AffineInteger,
        output_dtype: torch.dtype | AffineInteger,
    ) -> None:
        check_flag("bias", bias)
        sizes = check_convolution_sizes(
            in_channels, out_channels, kernel_size, stride, dilation, groups, self.dimensions
        )
        first, second = (in_channels, out_channels) if self.weight_class.channels else (out_channels, in_channels)
        super().__init__((first, second // groups, *sizes[0]), out_channels, bias, dtype, output_dtype)
        self.kernel_size, self.stride, self.dilation = sizes
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups

    @property
    def _outputs(self) -> int:
        return self.out_channels

    def extra_repr(self) -> str:
        settings = "".join(f"{name}={getattr(self, name)}, " for name in self.shown)
        return f"{self.in_channels}, {self.out_channels}, {settings}{super().extra_repr()}"


class _Conv(_Convolution):
    """A convolution; images are padded with the zero point, or with their own integers by `padding_mode`."""

    shown = "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"
    settings: ClassVar = ("in_channels", "out_channels", *shown)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | str | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: torch.dtype | AffineInteger = torch.qint8,
        output_dtype: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        check_choice("padding_mode", padding_mode, PADDING_MODES)
        sizes = kernel_size, stride, dilation, groups
        super().__init__(in_channels, out_channels, *sizes, bias, dtype, output_dtype)
        self.padding, self.padding_mode = self._padding(padding), padding_mode

    def _padding(self, padding: int | str | tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(padding, str):
            return check_sizes("padding", padding, 0, self.dimensions)
        check_choice("padding", padding, ("valid", "same"))
        if padding == "valid":
            return (0,) * self.dimensions
        # An odd extent needs different margins before and after; a geometry has one margin for both sides.
        extents = [gap * (size - 1) for size, gap in zip(self.kernel_size, self.dilation, strict=True)]
        if any(step != 1 for step in self.stride) or any(extent % 2 for extent in extents):
            raise ValueError(
                f"padding='same' with kernel_size={self.kernel_size}, stride={self.stride} and dilation="
                f"{self.dilation}; allowed are strides of 1 and dilation * (kernel_size - 1) that is even"
            )
        return tuple(extent // 2 for extent in extents)

    def forward(self, input: QTensor) -> QTensor:
        """The convolution of a quantized tensor of shape (batch, in_channels, *sizes), or without the batch.

        Raises:
            TypeError: if input is not a QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        if self.padding_mode == "zeros":
            result = self._by_kernel(input, Geometry(self.stride, self.padding, self.dilation, self.groups))
            if result is not None:
                return result
        self._check_input(input)
        if input.ndim == self.dimensions + 1:
            result = self.forward(input.unsqueeze(0))
            return result.reshape(result.shape[1:])
        weight = self.weight()
        geometry = self.stride, self.padding, self.dilation, self.groups, self.padding_mode
        checked(self, check_convolution, input, weight, *geometry, self.dimensions, WIDTHS)
        result = conv_to(input, weight, in_float32(self.bias), geometry, self.output, self.form)
        return result.relu() if self._relu else result


class Conv1d(_Conv):
    """`torch.nn.Conv1d` in integers; dtypes are those of `Conv2d`."""

    dimensions = 1


class Conv2d(_Conv):
    """`torch.nn.Conv2d` in integers: exact sums, requantized (`qcore.affine.requantize`).

    Args:
        dtype: of the weight's integers: torch.qint8, or an `AffineInteger` of up to 16 bits.
        output_dtype: of the result's integers.

    Attributes:
        weight: `weight()` is the quantized weight, of shape (out_channels, in_channels / groups, *kernel_size).
        bias: float32 of shape (out_channels,), or None.
        scale, zero_point: of the result.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> layer = Conv2d(4, 8, 3)
        >>> layer(quantize_per_tensor(torch.zeros(1, 4, 5, 5), 0.1, 7, torch.quint8)).shape
        torch.Size([1, 8, 3, 3])
    """

    dimensions = 2


class Conv3d(_Conv):
    """`torch.nn.Conv3d` in integers; dtypes are those of `Conv2d`."""

    dimensions = 3


class _TransposedWeight(QuantizedWeight):
    """A weight whose outputs, and scales for each output, lie along the second dimension."""

    channels = 1


class _ConvTranspose(_Convolution):
    """A transposed convolution: a convolution of images with zero points between and around their integers."""

    weight_class = _TransposedWeight
    shown = "kernel_size", "stride", "padding", "output_padding", "dilation", "groups"
    settings: ClassVar = ("in_channels", "out_channels", *shown, "padding_mode")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        padding_mode: str = "zeros",
        *,
        dtype: torch.dtype | AffineInteger = torch.qint8,
        output_dtype: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        check_choice("padding_mode", padding_mode, ("zeros",))
        sizes = kernel_size, stride, dilation, groups
        super().__init__(in_channels, out_channels, *sizes, bias, dtype, output_dtype)
        self.padding = check_sizes("padding", padding, 0, self.dimensions)
        self.output_padding = check_sizes("output_padding", output_padding, 0, self.dimensions)
        self._check_more(self.output_padding, "output_padding")

    def _check_more(self, more: tuple[int, ...], name: str) -> None:
        """Raises unless each element of an output padding is less than the stride or the dilation."""
        for one, step, gap in zip(more, self.stride, self.dilation, strict=True):
            if one >= max(step, gap):
                raise ValueError(
                    f"{name}={more} with stride={self.stride} and dilation={self.dilation}; allowed is less than one "
                    "of both"
                )

    def forward(self, input: QTensor, output_size: Sequence[int] | None = None) -> QTensor:
        """The transposed convolution of a quantized tensor of shape (batch, in_channels, *sizes), or without the batch.

        Args:
            input: QTensor.
            output_size: the result's sizes, or None for the sizes that `output_padding` gives.

        Raises:
            TypeError: if input is not a QTensor, or has more than 16 bits.
            ValueError: if its shape, or output_size, does not fit.
        """
        self._check_input(input)
        if input.ndim == self.dimensions + 1:
            result = self.forward(input.unsqueeze(0), output_size)
            return result.reshape(result.shape[1:])
        weight = self.weight()
        if input.ndim != self.dimensions + 2 or input.shape[1] != self.in_channels:
            raise ValueError(
                f"{layer_name(self)}: input has shape {tuple(input.shape)}; allowed are {self.dimensions + 2} "
                f"dimensions and {self.in_channels} channels"
            )
        more = self.output_padding
        if output_size is not None:
            more = checked(self, self._more_for, tuple(input.shape[2:]), output_size)
        if exported.is_near():
            return exported.of_numbers(
                lambda x, w: self._of_numbers(x, w, more), input, weight, output=self.output, form=self.form
            )
        pairs = margins_of(self.kernel_size, self.padding, more, self.dilation)
        # The rest is a convolution with stride 1; its filters are the weight with all axes of the kernel reversed.
        arrays = input, filters_of(weight, self.groups), in_float32(self.bias), self.output
        values = checked(self, law, _transposed, arrays, self.form, pairs, self.stride, self.dilation, self.groups)
        return QTensor._made(values, self.output, self.form)

    def _of_numbers(self, x: torch.Tensor, weight: torch.Tensor, more: tuple[int, ...]) -> torch.Tensor:
        """The float layer's function, which runtimes have as one node."""
        function = getattr(torch.nn.functional, f"conv_transpose{self.dimensions}d")
        return function(x, weight, in_float32(self.bias), self.stride, self.padding, more, self.groups, self.dilation)

    def _more_for(self, sizes: tuple[int, ...], output_size: Sequence[int]) -> tuple[int, ...]:
        """The `output_padding` with which the result has the sizes in output_size."""
        wanted = check_sizes("output_size", tuple(output_size)[-self.dimensions :], 1, self.dimensions)
        whole = zip(sizes, self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        least = [(size - 1) * step - 2 * margin + gap * (count - 1) + 1 for size, step, margin, gap, count in whole]
        more = tuple(size - low for size, low in zip(wanted, least, strict=True))
        if min(more) < 0:
            raise ValueError(f"output_size={wanted}; allowed are sizes from {tuple(least)}")
        self._check_more(more, f"output_size={wanted} needs output_padding")
        return more

    @classmethod
    def _quantized(cls, mod: Any, numbers: torch.Tensor) -> QTensor:
        """The quantized weight; scales for each output lie along its second dimension, for any axis in the settings."""
        made = weight_of(mod, numbers.transpose(0, 1))
        qparams = made.qparams
        axis = None if qparams.axis is None else 1
        return QTensor(made.values.transpose(0, 1), QParams(qparams.scale, qparams.zero_point, axis), made.form)


def _transposed(
    input: QTensor,
    filters: QTensor,
    bias: torch.Tensor | None,
    output: QParams,
    form: AffineInteger,
    pairs: tuple[tuple[int, int], ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    """The integers of a convolution with stride 1 of images with zero points between and around their integers."""
    dimensions, zero = len(stride), input.qparams.zero_point.to(input.values.dtype)
    images = input._with(spread(input.values, zero, pairs, stride, 2))
    geometry = (1,) * dimensions, (0,) * dimensions, dilation, groups, "zeros"
    check_convolution(images, filters, *geometry, dimensions, WIDTHS)
    return conv_to(images, filters, bias, geometry, output, form).values


class ConvTranspose1d(_ConvTranspose):
    """`torch.nn.ConvTranspose1d` in integers; dtypes are those of `ConvTranspose2d`."""

    dimensions = 1


class ConvTranspose2d(_ConvTranspose):
    """`torch.nn.ConvTranspose2d` in integers: exact sums, requantized (`qcore.affine.requantize`).

    Args:
        padding_mode: "zeros".
        dtype: of the weight's integers: torch.qint8, or an `AffineInteger` of up to 16 bits.
        output_dtype: of the result's integers.

    Attributes:
        weight: `weight()` is the quantized weight, of shape (in_channels, out_channels / groups, *kernel_size), with
            one scale, or with scales along the second dimension that all groups share.
        bias: float32 of shape (out_channels,), or None.
        scale, zero_point: of the result.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> layer = ConvTranspose2d(4, 8, 2, stride=2)
        >>> layer(quantize_per_tensor(torch.zeros(1, 4, 5, 5), 0.1, 7, torch.quint8)).shape
        torch.Size([1, 8, 10, 10])
    """

    dimensions = 2


class ConvTranspose3d(_ConvTranspose):
    """`torch.nn.ConvTranspose3d` in integers; dtypes are those of `ConvTranspose2d`."""

    dimensions = 3
