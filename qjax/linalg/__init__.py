"""Products of arrays with a defined accumulator: the bits of `qcore.accumulate` and `qtorch.linalg`."""

from qjax.linalg.attention import scaled_dot_product_attention
from qjax.linalg.convolutions import conv1d, conv2d, conv3d
from qjax.linalg.matrices import bmm, linear, matmul

__all__ = ["bmm", "conv1d", "conv2d", "conv3d", "linear", "matmul", "scaled_dot_product_attention"]
