"""Fused layers in floats, as `fuse_modules` makes them; each is a `torch.nn.Sequential` of its parts.

Those for training are in `qtorch.nn.intrinsic.qat`, those in integers in `qtorch.nn.intrinsic.quantized`.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

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


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
