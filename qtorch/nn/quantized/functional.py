"""Functions of quantized tensors, with the names and arguments of torch's; the law is `qcore.affine.arithmetic`.

Pools, interpolation and clamps keep the input's parameters; other functions take a scale and a zero point.
"""

from qcore.lazy import public_names
from qtorch._affine.functional import celu, conv1d, conv2d, conv3d, elu, hardswish, linear
from qtorch._affine.torch_functions import (
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool2d,
    avg_pool3d,
    clamp,
    hardsigmoid,
    hardtanh,
    interpolate,
    leaky_relu,
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
    "celu",
    "clamp",
    "conv1d",
    "conv2d",
    "conv3d",
    "elu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "interpolate",
    "leaky_relu",
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
__dir__ = public_names(__name__)
