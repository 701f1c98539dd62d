"""Layers that compute with integers, with the names of `qtorch.nn.quantized`."""

from qcore.lazy import public_names
from qjax.nnx.quantized import dynamic
from qjax.nnx.quantized.activation import Activation, PReLU
from qjax.nnx.quantized.base import IntegerVariable, Quantized
from qjax.nnx.quantized.conv import Conv, ConvTranspose
from qjax.nnx.quantized.functional_modules import QFunctional
from qjax.nnx.quantized.linear import Embed, Linear
from qjax.nnx.quantized.normalization import BatchNorm, GroupNorm, LayerNorm
from qjax.nnx.quantized.quantize import DeQuantize, Quantize
from qjax.nnx.quantized.weights import QuantizedWeight

__all__ = [
    "Activation",
    "BatchNorm",
    "Conv",
    "ConvTranspose",
    "DeQuantize",
    "Embed",
    "GroupNorm",
    "IntegerVariable",
    "LayerNorm",
    "Linear",
    "PReLU",
    "QFunctional",
    "Quantize",
    "Quantized",
    "QuantizedWeight",
    "dynamic",
]
__dir__ = public_names(__name__)
