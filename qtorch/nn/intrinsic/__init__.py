"""Fused layers in floats, as `fuse_modules` makes them; each is a `torch.nn.Sequential` of its parts.

Those for training are in `qtorch.nn.intrinsic.qat`, those in integers in `qtorch.nn.intrinsic.quantized`.
"""

from typing import TYPE_CHECKING

from qcore.lazy import subpackages
from qtorch.nn.intrinsic import fused
from qtorch.nn.intrinsic.fused import *

if TYPE_CHECKING:
    from qtorch.nn.intrinsic import qat, quantized

__all__ = ["qat", "quantized"]
__all__ += fused.__all__

__getattr__, __dir__ = subpackages(__name__, ["qat", "quantized"])
