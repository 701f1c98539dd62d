"""Layers that compute with integers, with the names of `qtorch.nn.quantized`."""

from qjax.nnx.quantized.base import IntegerVariable, Quantized, QuantizedWeight
from qjax.nnx.quantized.conv import Conv
from qjax.nnx.quantized.functional_modules import QFunctional
from qjax.nnx.quantized.linear import Linear
from qjax.nnx.quantized.quantize import DeQuantize, Quantize

__all__ = [
    "Conv",
    "DeQuantize",
    "IntegerVariable",
    "Linear",
    "QFunctional",
    "Quantize",
    "Quantized",
    "QuantizedWeight",
]
