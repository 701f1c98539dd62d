"""Fused layers whose weights, with the batch norm in them, are fake-quantized."""

from qtorch.nn.intrinsic.qat.conv_bn import freeze_bn_stats, update_bn_stats
from qtorch.nn.intrinsic.qat.layers import (
    ConvBn1d,
    ConvBn2d,
    ConvBn3d,
    ConvBnReLU1d,
    ConvBnReLU2d,
    ConvBnReLU3d,
    ConvReLU1d,
    ConvReLU2d,
    ConvReLU3d,
    LinearReLU,
)

__all__ = [
    "ConvBn1d",
    "ConvBn2d",
    "ConvBn3d",
    "ConvBnReLU1d",
    "ConvBnReLU2d",
    "ConvBnReLU3d",
    "ConvReLU1d",
    "ConvReLU2d",
    "ConvReLU3d",
    "LinearReLU",
    "freeze_bn_stats",
    "update_bn_stats",
]
