"""Fused layers in integers: the ReLU is the lower bound to which the result is clipped."""

from __future__ import annotations

import torch

from qcore.arguments import check_flag
from qcore.lazy import public_names
from qtorch.nn.intrinsic.quantized import dynamic
from qtorch.nn.quantized.conv import Conv1d, Conv2d, Conv3d
from qtorch.nn.quantized.linear import Linear
from qtorch.nn.quantized.normalization import BatchNorm2d, BatchNorm3d

__all__ = ["BNReLU2d", "BNReLU3d", "ConvReLU1d", "ConvReLU2d", "ConvReLU3d", "LinearReLU", "dynamic"]
__dir__ = public_names(__name__)


class LinearReLU(Linear):
    """`qtorch.nn.quantized.Linear` with a ReLU: the result's integers are at least its zero point.

    Args:
        bias: its `bias_`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.ones(1, 2), 0.1, 7, torch.quint8)
        >>> LinearReLU(2, 3)(x).shape
        torch.Size([1, 3])
    """

    _relu = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: torch.dtype = torch.qint8,
        *,
        output_dtype: torch.dtype = torch.quint8,
    ) -> None:
        check_flag("bias", bias)
        super().__init__(in_features, out_features, bias, dtype, output_dtype=output_dtype)


class ConvReLU1d(Conv1d):
    """`qtorch.nn.quantized.Conv1d` with a ReLU: the result's integers are at least its zero point."""

    _relu = True


class ConvReLU2d(Conv2d):
    """`qtorch.nn.quantized.Conv2d` with a ReLU: the result's integers are at least its zero point."""

    _relu = True


class ConvReLU3d(Conv3d):
    """`qtorch.nn.quantized.Conv3d` with a ReLU: the result's integers are at least its zero point."""

    _relu = True


class BNReLU2d(BatchNorm2d):
    """`qtorch.nn.quantized.BatchNorm2d` with a ReLU: the result's integers are at least its zero point."""

    _relu = True


class BNReLU3d(BatchNorm3d):
    """`qtorch.nn.quantized.BatchNorm3d` with a ReLU: the result's integers are at least its zero point."""

    _relu = True
