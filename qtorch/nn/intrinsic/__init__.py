"""Fused layers; those in integers are in `qtorch.nn.intrinsic.quantized`."""

from qtorch.nn.intrinsic import quantized

__all__ = ["quantized"]
