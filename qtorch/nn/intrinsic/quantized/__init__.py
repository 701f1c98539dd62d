"""Fused layers in integers: the ReLU is the lower end of what the result is clipped to."""

from __future__ import annotations

from typing import Any

import torch

from qcore.arguments import check_flag
from qtorch.nn.intrinsic.quantized import dynamic
from qtorch.nn.quantized.conv import Conv1d, Conv2d, Conv3d
from qtorch.nn.quantized.linear import Linear
from qtorch.nn.quantized.normalization import BatchNorm2d, BatchNorm3d

__all__ = ["BNReLU2d", "BNReLU3d", "ConvReLU1d", "ConvReLU2d", "ConvReLU3d", "LinearReLU", "dynamic"]


class LinearReLU(Linear):
    """`qtorch.nn.quantized.Linear`, whose integers are no less than the zero point.

    Args:
        in_features, out_features, dtype, output_dtype: as for `qtorch.nn.quantized.Linear`.
        bias: its `bias_`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.ones(1, 2), 0.1, 7, torch.quint8)
        >>> LinearReLU(2, 3)(x).shape
        torch.Size([1, 3])
    """

    _relu = True

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = torch.qint8, **settings: Any
    ) -> None:
        check_flag("bias", bias)
        super().__init__(in_features, out_features, bias, dtype, **settings)


class ConvReLU1d(Conv1d):
    """`qtorch.nn.quantized.Conv1d`, whose integers are no less than the zero point.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `qtorch.nn.quantized.Conv1d`.
        dtype, output_dtype: as for it.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.ones(1, 2, 4), 0.1, 7, torch.quint8)
        >>> ConvReLU1d(2, 3, 2)(x).shape
        torch.Size([1, 3, 3])
    """

    _relu = True


class ConvReLU2d(Conv2d):
    """`qtorch.nn.quantized.Conv2d`, whose integers are no less than the zero point.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `qtorch.nn.quantized.Conv2d`.
        dtype, output_dtype: as for it.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.ones(1, 2, 4, 4), 0.1, 7, torch.quint8)
        >>> ConvReLU2d(2, 3, 2)(x).shape
        torch.Size([1, 3, 3, 3])
    """

    _relu = True


class ConvReLU3d(Conv3d):
    """`qtorch.nn.quantized.Conv3d`, whose integers are no less than the zero point.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode: as for
            `qtorch.nn.quantized.Conv3d`.
        dtype, output_dtype: as for it.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.ones(1, 2, 4, 4, 4), 0.1, 7, torch.quint8)
        >>> ConvReLU3d(2, 3, 2)(x).shape
        torch.Size([1, 3, 3, 3, 3])
    """

    _relu = True


class BNReLU2d(BatchNorm2d):
    """`qtorch.nn.quantized.BatchNorm2d`, whose integers are no less than the zero point.

    Args:
        num_features, eps, momentum, form: as for `qtorch.nn.quantized.BatchNorm2d`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-1.0, 2.0]).reshape(1, 1, 1, 2), 0.5, 20, torch.quint8)
        >>> BNReLU2d(1)(x).dequantize().flatten()
        tensor([0., 2.])
    """

    _relu = True


class BNReLU3d(BatchNorm3d):
    """`qtorch.nn.quantized.BatchNorm3d`, whose integers are no less than the zero point.

    Args:
        num_features, eps, momentum, form: as for `qtorch.nn.quantized.BatchNorm3d`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-1.0, 2.0]).reshape(1, 1, 1, 1, 2), 0.5, 20, torch.quint8)
        >>> BNReLU3d(1)(x).dequantize().flatten()
        tensor([0., 2.])
    """

    _relu = True
