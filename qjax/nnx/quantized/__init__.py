"""Layers that compute with integers, with the names of `qtorch.nn.quantized`."""

from qcore.lazy import public_names
from qjax.nnx.quantized import dynamic, normalization
from qjax.nnx.quantized.activation import Activation, PReLU
from qjax.nnx.quantized.base import IntegerVariable, Quantized
from qjax.nnx.quantized.conv import Conv, ConvTranspose
from qjax.nnx.quantized.functional_modules import QFunctional
from qjax.nnx.quantized.linear import Embed, Linear
from qjax.nnx.quantized.normalization import *
from qjax.nnx.quantized.quantize import DeQuantize, Quantize
from qjax.nnx.quantized.weights import QuantizedWeight

__all__ = [
    "Activation",
    "Conv",
    "ConvTranspose",
    "DeQuantize",
    "Embed",
    "IntegerVariable",
    "Linear",
    "PReLU",
    "QFunctional",
    "Quantize",
    "Quantized",
    "QuantizedWeight",
    "dynamic",
]
__all__ += normalization.__all__
__dir__ = public_names(__name__)
