"""Arithmetic of quantized arrays, by one law that NumPy, PyTorch and JAX run alike.

The functions take quantized arrays of any framework (`QArray`, `qtorch.quantization.QTensor`,
`qjax.quantization.QTensor`) and return arrays of the same kind. docs/affine.md has the law.
"""

from qcore.affine.arithmetic import activations
from qcore.affine.arithmetic.activations import *
from qcore.affine.arithmetic.activations import unit_qparams
from qcore.affine.arithmetic.elementwise import (
    add,
    add_scalar,
    cat,
    clamp,
    einsum,
    masked_fill,
    matmul,
    mul,
    mul_scalar,
    stack,
    threshold,
)
from qcore.affine.arithmetic.norms import batch_norm, group_norm, layer_norm
from qcore.affine.arithmetic.pools import adaptive_avg_pool, avg_pool, max_pool, mean
from qcore.affine.arithmetic.resize import interpolate
from qcore.lazy import public_names

__all__ = [
    "adaptive_avg_pool",
    "add",
    "add_scalar",
    "avg_pool",
    "batch_norm",
    "cat",
    "clamp",
    "einsum",
    "group_norm",
    "interpolate",
    "layer_norm",
    "masked_fill",
    "matmul",
    "max_pool",
    "mean",
    "mul",
    "mul_scalar",
    "stack",
    "threshold",
    "unit_qparams",
]
__all__ += activations.__all__
__dir__ = public_names(__name__)
