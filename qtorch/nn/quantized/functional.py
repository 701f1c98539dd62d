"""Functions of quantized tensors, with the names and arguments of torch's; the law is `qcore.affine.arithmetic`.

Pools, interpolation and clamps keep the input's parameters; other functions take a scale and a zero point.
"""

from qcore.lazy import public_names
from qtorch._affine import activations
from qtorch._affine.activations import *
from qtorch._affine.functional import conv1d, conv2d, conv3d, linear
from qtorch._affine.torch_functions import (
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool2d,
    avg_pool3d,
    clamp,
    hardtanh,
    interpolate,
    max_pool1d,
    max_pool2d,
    relu,
    relu6,
    threshold,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)

__all__ = [
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool2d",
    "avg_pool3d",
    "clamp",
    "conv1d",
    "conv2d",
    "conv3d",
    "hardtanh",
    "interpolate",
    "linear",
    "max_pool1d",
    "max_pool2d",
    "relu",
    "relu6",
    "threshold",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]
__all__ += activations.__all__
__dir__ = public_names(__name__)
