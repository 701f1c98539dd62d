"""Layers that compute with integers, with the names and arguments of torch's layers.

A module's list `__all__` makes its classes public here.
"""

from torch.nn import MaxPool2d  # takes quantized tensors (`qtorch._affine.torch_functions`)

from qcore.lazy import public_names
from qtorch.nn.quantized import (
    activation,
    conv,
    dynamic,
    functional,
    functional_modules,
    linear,
    normalization,
    quantize,
)
from qtorch.nn.quantized.activation import *
from qtorch.nn.quantized.conv import *
from qtorch.nn.quantized.functional_modules import *
from qtorch.nn.quantized.linear import *
from qtorch.nn.quantized.normalization import *
from qtorch.nn.quantized.quantize import *

__all__ = ["MaxPool2d", "dynamic", "functional"]
__all__ += activation.__all__
__all__ += conv.__all__
__all__ += functional_modules.__all__
__all__ += linear.__all__
__all__ += normalization.__all__
__all__ += quantize.__all__
__dir__ = public_names(__name__)
