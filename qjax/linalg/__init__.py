"""Products (GEMM, convolutions, attention) with a defined accumulator: bits of `qcore.linalg` and `qtorch.linalg`."""

from qcore.lazy import public_names
from qjax.linalg.attention import scaled_dot_product_attention
from qjax.linalg.call import first_scaling, share_scaling
from qjax.linalg.convolutions import conv1d, conv2d, conv3d
from qjax.linalg.matrices import bmm, linear, matmul
from qjax.linalg.states import ScalingState

__all__ = [
    "ScalingState",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "first_scaling",
    "linear",
    "matmul",
    "scaled_dot_product_attention",
    "share_scaling",
]
__dir__ = public_names(__name__)
