"""Functions of quantized tensors, with the names and arguments of torch's; the law is `qcore.affine.arithmetic`.

Pools, interpolation and clamps keep the input's parameters; other functions take a scale and a zero point.
"""

from qcore.lazy import public_names
from qtorch._affine import activations, pools
from qtorch._affine.activations import *
from qtorch._affine.functional import conv1d, conv2d, conv3d, linear
from qtorch._affine.pools import *
from qtorch._affine.torch_functions import (
    clamp,
    hardtanh,
    interpolate,
    relu,
    relu6,
    threshold,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)

__all__ = [
    "clamp",
    "conv1d",
    "conv2d",
    "conv3d",
    "hardtanh",
    "interpolate",
    "linear",
    "relu",
    "relu6",
    "threshold",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]
__all__ += activations.__all__
__all__ += pools.__all__
__dir__ = public_names(__name__)
