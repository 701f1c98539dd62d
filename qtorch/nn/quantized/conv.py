"""Convolutions in integers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from qcore.affine.quantized import PADDING_MODES, check_convolution, check_convolution_sizes
from qcore.arguments import check_choice, check_flag, check_sizes
from qtorch._affine.dtypes import integers
from qtorch._affine.functional import WIDTHS, conv_to
from qtorch._affine.integer.kernel import Geometry
from qtorch._affine.tensor import QTensor
from qtorch.nn.quantized.common.base import checked
from qtorch.nn.quantized.common.observed import float_parameters, output_of, weight_of
from qtorch.nn.quantized.common.product import ProductLayer
from qtorch.nn.quantized.common.weights import QuantizedWeight, empty_weight, finish


class _Conv(ProductLayer):
    """A convolution in integers: exact sums, requantized (`qcore.affine.requantize`).

    Around images is the zero point, or by `padding_mode` their own integers.

    Args:
        in_channels, out_channels: of images and results.
        kernel_size, stride, padding, dilation: for all dimensions, or for each; padding may also be "valid" (none) or
            "same", for results of the images' sizes.
        groups: into how many parts channels and outputs are split.
        bias: whether there is a bias.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        dtype: of the weight's integers: torch.qint8, or an `AffineInteger` of up to 16 bits.
        output_dtype: of the result's integers.

    Attributes:
        weight: `weight()` is the quantized weight, of shape (out_channels, in_channels / groups, *kernel_size).
        bias: float32 of shape (out_channels,), or None.
        scale, zero_point: of the result.

    Raises:
        TypeError, ValueError: if an argument is not as above.
    """

    dimensions: ClassVar[int]

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
        dtype: Any = torch.qint8,
        output_dtype: Any = torch.quint8,
    ) -> None:
        super().__init__(form=integers(output_dtype, argument="output_dtype"))
        check_flag("bias", bias)
        check_choice("padding_mode", padding_mode, PADDING_MODES)
        sizes = check_convolution_sizes(
            in_channels, out_channels, kernel_size, stride, dilation, groups, self.dimensions
        )
        self.kernel_size, self.stride, self.dilation = sizes
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.padding, self.padding_mode = self._padding(padding), padding_mode
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = QuantizedWeight(empty_weight(shape, dtype))
        self.register_buffer("bias", torch.zeros(out_channels) if bias else None)

    def _padding(self, padding: Any) -> tuple[int, ...]:
        if not isinstance(padding, str):
            return check_sizes("padding", padding, 0, self.dimensions)
        check_choice("padding", padding, ("valid", "same"))
        if padding == "valid":
            return (0,) * self.dimensions
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
            TypeError: if input is no QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        if self.padding_mode == "zeros":
            result = self._by_kernel(input, Geometry(self.stride, self.padding, self.dilation, self.groups))
            if result is not None:
                return result
        self.check_input(input)
        if input.ndim == self.dimensions + 1:
            result = self.forward(input.unsqueeze(0))
            return result.reshape(result.shape[1:])
        weight = self.weight()
        geometry = self.stride, self.padding, self.dilation, self.groups, self.padding_mode
        checked(self, check_convolution, input, weight, *geometry, self.dimensions, WIDTHS)
        result = conv_to(input, weight, self.bias, geometry, self.output, self.form)
        return result.relu() if self._relu else result

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, "
            f"padding_mode={self.padding_mode}, {super().extra_repr()}"
        )

    @classmethod
    def from_float(cls, mod: Any) -> _Conv:
        """The layer in integers of one in floats that was observed, or trained with fake quantization.

        Args:
            mod: torch's convolution, or a fused one, with `activation_post_process`, and `weight_fake_quant` or
                `qconfig`.

        Raises:
            TypeError: if it has none of these.
            ValueError: if the observer has seen nothing.
        """
        conv: Any = mod[0] if isinstance(mod, torch.nn.Sequential) else mod
        numbers, bias = float_parameters(mod)
        scale, zero_point, form = output_of(mod)
        weight = weight_of(mod, numbers)
        layer = cls(
            *(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation),
            *(conv.groups, bias is not None, conv.padding_mode),
            dtype=weight.form,
            output_dtype=form,
        )
        finish(layer, weight, bias, scale, zero_point)
        return layer


class Conv1d(_Conv):
    """A convolution of one dimension in integers, with the arguments of `torch.nn.Conv1d`.

    `weight()` is the quantized weight, `scale` and `zero_point` are the result's.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv1d`.
        dtype: the type of the weight's integers: torch.qint8, or an `AffineInteger` of up to 16 bits.
        output_dtype: the type of the result's integers.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> layer = Conv1d(4, 8, 3)
        >>> layer(quantize_per_tensor(torch.zeros(1, 4, 5), 0.1, 7, torch.quint8)).shape
        torch.Size([1, 8, 3])
    """

    dimensions = 1


class Conv2d(_Conv):
    """A convolution of two dimensions in integers, with the arguments of `torch.nn.Conv2d`.

    `weight()` is the quantized weight, `scale` and `zero_point` are the result's.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv2d`.
        dtype: the type of the weight's integers: torch.qint8, or an `AffineInteger` of up to 16 bits.
        output_dtype: the type of the result's integers.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> layer = Conv2d(4, 8, 3)
        >>> layer(quantize_per_tensor(torch.zeros(1, 4, 5, 5), 0.1, 7, torch.quint8)).shape
        torch.Size([1, 8, 3, 3])
    """

    dimensions = 2


class Conv3d(_Conv):
    """A convolution of three dimensions in integers, with the arguments of `torch.nn.Conv3d`.

    `weight()` is the quantized weight, `scale` and `zero_point` are the result's.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `torch.nn.Conv3d`.
        dtype: the type of the weight's integers: torch.qint8, or an `AffineInteger` of up to 16 bits.
        output_dtype: the type of the result's integers.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> layer = Conv3d(4, 8, 3)
        >>> layer(quantize_per_tensor(torch.zeros(1, 4, 5, 5, 5), 0.1, 7, torch.quint8)).shape
        torch.Size([1, 8, 3, 3, 3])
    """

    dimensions = 3
