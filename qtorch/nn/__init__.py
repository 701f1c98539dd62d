"""Layers for quantized models: fused, trained with simulated quantization, and computing in integers."""

from qtorch.nn import quantized

__all__ = ["quantized"]
