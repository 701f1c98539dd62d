"""Fused layers in integers: the ReLU is the lower end of what the result is clipped to."""

from qtorch.nn.intrinsic.quantized import dynamic
from qtorch.nn.intrinsic.quantized.layers import (
    BNReLU2d,
    BNReLU3d,
    ConvReLU1d,
    ConvReLU2d,
    ConvReLU3d,
    LinearReLU,
)

__all__ = ["BNReLU2d", "BNReLU3d", "ConvReLU1d", "ConvReLU2d", "ConvReLU3d", "LinearReLU", "dynamic"]
