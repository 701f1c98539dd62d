"""Layers that compute with integers, with the names and arguments of torch's."""

from torch.nn import MaxPool2d  # which takes quantized tensors (`qtorch._affine.torch_functions`)

from qtorch.nn.quantized import dynamic, functional
from qtorch.nn.quantized.activation import ELU, Hardswish, LeakyReLU, PReLU, ReLU, ReLU6, Sigmoid
from qtorch.nn.quantized.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from qtorch.nn.quantized.functional_modules import FloatFunctional, FXFloatFunctional, QFunctional
from qtorch.nn.quantized.linear import Embedding, Linear
from qtorch.nn.quantized.normalization import (
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
)
from qtorch.nn.quantized.quantize import DeQuantize, Quantize

__all__ = [
    "ELU",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "DeQuantize",
    "Embedding",
    "FXFloatFunctional",
    "FloatFunctional",
    "GroupNorm",
    "Hardswish",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "PReLU",
    "QFunctional",
    "Quantize",
    "ReLU",
    "ReLU6",
    "Sigmoid",
    "dynamic",
    "functional",
]
