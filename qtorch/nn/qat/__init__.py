"""Layers whose weights are fake-quantized, so that training sees what quantization will do to them."""

from qtorch.nn.qat.layers import Conv1d, Conv2d, Conv3d, Linear

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Linear"]
