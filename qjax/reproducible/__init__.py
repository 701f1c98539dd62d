"""Functions of JAX arrays with the same bits in NumPy and PyTorch, gradients too; see `qcore.reproducible`.

Reverse mode has second and higher derivatives, whose bits are not defined: products of the same formats for those of
products, and JAX's derivatives of float64 functions for all others. Forward mode raises.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qcore.reproducible.optimizers.schedules import Cosine, Milestones
from qjax.reproducible.operations import Names
from qjax.reproducible.optimizers import Optimizer, adam, adamw, sgd
from qjax.reproducible.training import FUNCTIONS

if TYPE_CHECKING:
    from qjax.reproducible.modules.checkpoint import load_state_dict, state_dict
    from qjax.reproducible.modules.convert import convert
    from qjax.reproducible.modules.initial import initialize
    from qjax.reproducible.modules.keys import set_key

_arrays = FUNCTIONS
abs = _arrays.abs
adam_step = _arrays.adam_step
add = _arrays.add
argmax = _arrays.argmax
argsort = _arrays.argsort
avg_pool2d = _arrays.avg_pool2d
batch_norm = _arrays.batch_norm
broadcast_to = _arrays.broadcast_to
celu = _arrays.celu
chunk = _arrays.chunk
clamp = _arrays.clamp
clip_by_norm = _arrays.clip_by_norm
conv1d = _arrays.conv1d
conv2d = _arrays.conv2d
conv3d = _arrays.conv3d
cos = _arrays.cos
cross_entropy = _arrays.cross_entropy
divide = _arrays.divide
dropout = _arrays.dropout
elu = _arrays.elu
embedding = _arrays.embedding
equal = _arrays.equal
erf = _arrays.erf
exp = _arrays.exp
expm1 = _arrays.expm1
gelu = _arrays.gelu
group_norm = _arrays.group_norm
hardsigmoid = _arrays.hardsigmoid
hardswish = _arrays.hardswish
hardtanh = _arrays.hardtanh
layer_norm = _arrays.layer_norm
leaky_relu = _arrays.leaky_relu
less = _arrays.less
less_equal = _arrays.less_equal
linear = _arrays.linear
log = _arrays.log
log1p = _arrays.log1p
log_softmax = _arrays.log_softmax
logsumexp = _arrays.logsumexp
matmul = _arrays.matmul
max = _arrays.max
max_pool2d = _arrays.max_pool2d
maximum = _arrays.maximum
mean = _arrays.mean
minimum = _arrays.minimum
moved = _arrays.moved
moving_average = _arrays.moving_average
mse = _arrays.mse
multiply = _arrays.multiply
narrow = _arrays.narrow
norm = _arrays.norm
normalize = _arrays.normalize
pad = _arrays.pad
part = _arrays.part
pow = _arrays.pow
prelu = _arrays.prelu
rate = _arrays.rate
reciprocal = _arrays.reciprocal
relu = _arrays.relu
rms_norm = _arrays.rms_norm
rsqrt = _arrays.rsqrt
scaled_dot_product_attention = _arrays.scaled_dot_product_attention
selu = _arrays.selu
settle = _arrays.settle
sgd_step = _arrays.sgd_step
sigmoid = _arrays.sigmoid
silu = _arrays.silu
sin = _arrays.sin
softmax = _arrays.softmax
softplus = _arrays.softplus
sort = _arrays.sort
sqrt = _arrays.sqrt
subtract = _arrays.subtract
sum = _arrays.sum
take = _arrays.take
take_along_axis = _arrays.take_along_axis
tanh = _arrays.tanh
to_integers = _arrays.to_integers
var = _arrays.var
where = _arrays.where

__all__ = [
    "Cosine",
    "Milestones",
    "Names",
    "Optimizer",
    "abs",
    "adam",
    "adam_step",
    "adamw",
    "add",
    "argmax",
    "argsort",
    "avg_pool2d",
    "batch_norm",
    "broadcast_to",
    "celu",
    "chunk",
    "clamp",
    "clip_by_norm",
    "conv1d",
    "conv2d",
    "conv3d",
    "convert",
    "cos",
    "cross_entropy",
    "divide",
    "dropout",
    "elu",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expm1",
    "gelu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "initialize",
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "linear",
    "load_state_dict",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "minimum",
    "moved",
    "moving_average",
    "mse",
    "multiply",
    "narrow",
    "norm",
    "normalize",
    "pad",
    "part",
    "pow",
    "prelu",
    "rate",
    "reciprocal",
    "relu",
    "rms_norm",
    "rsqrt",
    "scaled_dot_product_attention",
    "selu",
    "set_key",
    "settle",
    "sgd",
    "sgd_step",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sort",
    "sqrt",
    "state_dict",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tanh",
    "to_integers",
    "var",
    "where",
]

_MODULES = {
    "convert": "convert",
    "initialize": "initial",
    "load_state_dict": "checkpoint",
    "set_key": "keys",
    "state_dict": "checkpoint",
}


def __getattr__(name: str) -> Any:
    """What needs flax is imported when it is first used."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.modules.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
