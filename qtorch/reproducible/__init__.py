"""Functions of tensors with the same bits in NumPy and JAX, gradients too; see `qcore.reproducible`.

Eager programs have second and higher derivatives, whose bits are not defined: derivatives of products are products of
the same formats, and all other derivatives are torch's derivatives of float64 functions.
"""

from typing import TYPE_CHECKING

from qcore import reproducible as laws
from qcore.lazy import public_names
from qtorch.reproducible import operations
from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.modules.convert import convert, initialize
from qtorch.reproducible.modules.layers import set_key
from qtorch.reproducible.optimizers import SGD, Adam, AdamW, clip_grad_norm_

if TYPE_CHECKING:  # the names of the functions, and their arguments
    from qcore.reproducible import *

globals().update({name: getattr(FUNCTIONS, name, getattr(laws, name)) for name in laws.__all__})
Names = operations.Names
conv1d = FUNCTIONS.conv1d
conv2d = FUNCTIONS.conv2d
conv3d = FUNCTIONS.conv3d
linear = FUNCTIONS.linear
matmul = FUNCTIONS.matmul
muon_step = FUNCTIONS.muon_step
narrow = FUNCTIONS.narrow
orthogonalize = FUNCTIONS.orthogonalize
scaled_dot_product_attention = FUNCTIONS.scaled_dot_product_attention

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "clip_grad_norm_",
    "conv1d",
    "conv2d",
    "conv3d",
    "convert",
    "initialize",
    "linear",
    "matmul",
    "muon_step",
    "narrow",
    "orthogonalize",
    "scaled_dot_product_attention",
    "set_key",
]
__all__ += laws.__all__
__dir__ = public_names(__name__)
