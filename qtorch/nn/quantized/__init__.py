"""Layers that compute with integers, with the names and arguments of torch's."""

from qtorch.nn.quantized.conv import Conv1d, Conv2d, Conv3d
from qtorch.nn.quantized.functional_modules import FloatFunctional, FXFloatFunctional, QFunctional
from qtorch.nn.quantized.linear import Linear
from qtorch.nn.quantized.quantize import DeQuantize, Quantize

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "DeQuantize",
    "FXFloatFunctional",
    "FloatFunctional",
    "Linear",
    "QFunctional",
    "Quantize",
]
