"""Fused layers in floats, as `fuse_modules` makes them; each is a `torch.nn.Sequential` of its parts.

Those for training are in `qtorch.nn.intrinsic.qat`, those in integers in `qtorch.nn.intrinsic.quantized`.
"""

from typing import TYPE_CHECKING

from qcore.lazy import subpackages
from qtorch.nn.intrinsic.fused import (
    BNReLU2d,
    BNReLU3d,
    ConvBn1d,
    ConvBn2d,
    ConvBn3d,
    ConvBnReLU1d,
    ConvBnReLU2d,
    ConvBnReLU3d,
    ConvReLU1d,
    ConvReLU2d,
    ConvReLU3d,
    Fused,
    LinearReLU,
)

if TYPE_CHECKING:
    from qtorch.nn.intrinsic import qat, quantized

__all__ = [
    "BNReLU2d",
    "BNReLU3d",
    "ConvBn1d",
    "ConvBn2d",
    "ConvBn3d",
    "ConvBnReLU1d",
    "ConvBnReLU2d",
    "ConvBnReLU3d",
    "ConvReLU1d",
    "ConvReLU2d",
    "ConvReLU3d",
    "Fused",
    "LinearReLU",
    "qat",
    "quantized",
]

__getattr__, __dir__ = subpackages(__name__, __all__)
