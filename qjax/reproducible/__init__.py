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

if TYPE_CHECKING:
    from qjax.reproducible.modules.checkpoint import load_state_dict, state_dict
    from qjax.reproducible.modules.convert import convert, initialize
    from qjax.reproducible.modules.layers import set_key

Cosine = laws.Cosine
Milestones = laws.Milestones
Names = operations.Names
abs = FUNCTIONS.abs
adam_step = FUNCTIONS.adam_step
add = FUNCTIONS.add
argmax = FUNCTIONS.argmax
argsort = FUNCTIONS.argsort
avg_pool2d = FUNCTIONS.avg_pool2d
batch_norm = FUNCTIONS.batch_norm
broadcast_to = FUNCTIONS.broadcast_to
celu = FUNCTIONS.celu
chunk = FUNCTIONS.chunk
clamp = FUNCTIONS.clamp
clip_by_norm = FUNCTIONS.clip_by_norm
conv1d = FUNCTIONS.conv1d
conv2d = FUNCTIONS.conv2d
conv3d = FUNCTIONS.conv3d
cos = FUNCTIONS.cos
cross_entropy = FUNCTIONS.cross_entropy
divide = FUNCTIONS.divide
dropout = FUNCTIONS.dropout
elu = FUNCTIONS.elu
embedding = FUNCTIONS.embedding
equal = FUNCTIONS.equal
erf = FUNCTIONS.erf
exp = FUNCTIONS.exp
expm1 = FUNCTIONS.expm1
gelu = FUNCTIONS.gelu
group_norm = FUNCTIONS.group_norm
hardsigmoid = FUNCTIONS.hardsigmoid
hardswish = FUNCTIONS.hardswish
hardtanh = FUNCTIONS.hardtanh
layer_norm = FUNCTIONS.layer_norm
leaky_relu = FUNCTIONS.leaky_relu
less = FUNCTIONS.less
less_equal = FUNCTIONS.less_equal
linear = FUNCTIONS.linear
log = FUNCTIONS.log
log1p = FUNCTIONS.log1p
log_softmax = FUNCTIONS.log_softmax
logsumexp = FUNCTIONS.logsumexp
matmul = FUNCTIONS.matmul
max = FUNCTIONS.max
max_pool2d = FUNCTIONS.max_pool2d
maximum = FUNCTIONS.maximum
mean = FUNCTIONS.mean
minimum = FUNCTIONS.minimum
moved = FUNCTIONS.moved
moving_average = FUNCTIONS.moving_average
mse = FUNCTIONS.mse
multiply = FUNCTIONS.multiply
narrow = FUNCTIONS.narrow
norm = FUNCTIONS.norm
normalize = FUNCTIONS.normalize
pad = FUNCTIONS.pad
part = FUNCTIONS.part
pow = FUNCTIONS.pow
prelu = FUNCTIONS.prelu
rate = FUNCTIONS.rate
reciprocal = FUNCTIONS.reciprocal
relu = FUNCTIONS.relu
rms_norm = FUNCTIONS.rms_norm
rsqrt = FUNCTIONS.rsqrt
scaled_dot_product_attention = FUNCTIONS.scaled_dot_product_attention
selu = FUNCTIONS.selu
settle = FUNCTIONS.settle
sgd_step = FUNCTIONS.sgd_step
sigmoid = FUNCTIONS.sigmoid
silu = FUNCTIONS.silu
sin = FUNCTIONS.sin
softmax = FUNCTIONS.softmax
softplus = FUNCTIONS.softplus
sort = FUNCTIONS.sort
sqrt = FUNCTIONS.sqrt
subtract = FUNCTIONS.subtract
sum = FUNCTIONS.sum
take = FUNCTIONS.take
take_along_axis = FUNCTIONS.take_along_axis
tanh = FUNCTIONS.tanh
to_integers = FUNCTIONS.to_integers
var = FUNCTIONS.var
where = FUNCTIONS.where

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
    "narrow",
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
