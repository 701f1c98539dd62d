"""Functions of JAX arrays with the same bits in NumPy and PyTorch, gradients too; see `qcore.reproducible`.

Reverse mode has second and higher derivatives, whose bits are not defined: derivatives of products are products of the
same formats, and all other derivatives are JAX's derivatives of float64 functions. Forward mode raises.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qcore import reproducible as laws
from qcore.lazy import public_names
from qjax.reproducible import operations
from qjax.reproducible.functions import FUNCTIONS
from qjax.reproducible.optimizers import Optimizer, adam, adamw, sgd

if TYPE_CHECKING:  # the names of the functions, and their arguments
    from qcore.reproducible import *
    from qjax.reproducible.modules.checkpoint import load_state_dict, state_dict
    from qjax.reproducible.modules.convert import convert, initialize
    from qjax.reproducible.modules.layers import set_key

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
    "Optimizer",
    "adam",
    "adamw",
    "conv1d",
    "conv2d",
    "conv3d",
    "convert",
    "initialize",
    "linear",
    "load_state_dict",
    "matmul",
    "muon_step",
    "narrow",
    "orthogonalize",
    "scaled_dot_product_attention",
    "set_key",
    "sgd",
    "state_dict",
]
__all__ += laws.__all__
__dir__ = public_names(__name__)

_MODULES = {
    "convert": "convert",
    "initialize": "convert",
    "load_state_dict": "checkpoint",
    "set_key": "layers",
    "state_dict": "checkpoint",
}


def __getattr__(name: str) -> Any:
    """What needs flax is imported when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.modules.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
