"""Products (GEMM, convolutions, attention) with a defined accumulator: bits of `qcore.linalg` and `qjax.linalg`."""

from qcore.lazy import public_names
from qtorch.linalg.attention import scaled_dot_product_attention
from qtorch.linalg.call import first_scaling
from qtorch.linalg.convolutions import conv1d, conv2d, conv3d
from qtorch.linalg.matrices import bmm, linear, matmul
from qtorch.linalg.modules import Conv1d, Conv2d, Conv3d, Linear, MultiheadAttention

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Linear",
    "MultiheadAttention",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "first_scaling",
    "linear",
    "matmul",
    "scaled_dot_product_attention",
]
__dir__ = public_names(__name__)
