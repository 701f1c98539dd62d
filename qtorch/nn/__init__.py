"""Layers for quantized models: fused, for training with simulated quantization, and in integers."""

from typing import TYPE_CHECKING

from qcore.lazy import subpackages

if TYPE_CHECKING:
    from qtorch.nn import intrinsic, qat, quantized, rounded

__all__ = ["intrinsic", "qat", "quantized", "rounded"]

__getattr__, __dir__ = subpackages(__name__, __all__)
