"""Functions of tensors with the same bits in NumPy and JAX, gradients too; see `qcore.reproducible`.

Eager programs have second and higher derivatives, whose bits are not defined: products of the same formats for those
of products, and torch's derivatives of float64 functions for all others.
"""

from qcore.reproducible.optimizers.schedules import Cosine, Milestones
from qtorch.reproducible.modules.convert import convert
from qtorch.reproducible.modules.initial import initialize
from qtorch.reproducible.modules.layers import set_key
from qtorch.reproducible.operations import Names
from qtorch.reproducible.optimizers import SGD, Adam, AdamW, clip_grad_norm_
from qtorch.reproducible.training import FUNCTIONS

_tensors = FUNCTIONS
abs = _tensors.abs
adam_step = _tensors.adam_step
add = _tensors.add
argmax = _tensors.argmax
argsort = _tensors.argsort
avg_pool2d = _tensors.avg_pool2d
batch_norm = _tensors.batch_norm
broadcast_to = _tensors.broadcast_to
celu = _tensors.celu
chunk = _tensors.chunk
clamp = _tensors.clamp
clip_by_norm = _tensors.clip_by_norm
conv1d = _tensors.conv1d
conv2d = _tensors.conv2d
conv3d = _tensors.conv3d
cos = _tensors.cos
cross_entropy = _tensors.cross_entropy
divide = _tensors.divide
dropout = _tensors.dropout
elu = _tensors.elu
embedding = _tensors.embedding
equal = _tensors.equal
erf = _tensors.erf
exp = _tensors.exp
expm1 = _tensors.expm1
gelu = _tensors.gelu
group_norm = _tensors.group_norm
hardsigmoid = _tensors.hardsigmoid
hardswish = _tensors.hardswish
hardtanh = _tensors.hardtanh
layer_norm = _tensors.layer_norm
leaky_relu = _tensors.leaky_relu
less = _tensors.less
less_equal = _tensors.less_equal
linear = _tensors.linear
log = _tensors.log
log1p = _tensors.log1p
log_softmax = _tensors.log_softmax
logsumexp = _tensors.logsumexp
matmul = _tensors.matmul
max = _tensors.max
max_pool2d = _tensors.max_pool2d
maximum = _tensors.maximum
mean = _tensors.mean
minimum = _tensors.minimum
moved = _tensors.moved
moving_average = _tensors.moving_average
mse = _tensors.mse
multiply = _tensors.multiply
narrow = _tensors.narrow
norm = _tensors.norm
normalize = _tensors.normalize
pad = _tensors.pad
part = _tensors.part
pow = _tensors.pow
prelu = _tensors.prelu
rate = _tensors.rate
reciprocal = _tensors.reciprocal
relu = _tensors.relu
rms_norm = _tensors.rms_norm
rsqrt = _tensors.rsqrt
scaled_dot_product_attention = _tensors.scaled_dot_product_attention
selu = _tensors.selu
settle = _tensors.settle
sgd_step = _tensors.sgd_step
sigmoid = _tensors.sigmoid
silu = _tensors.silu
sin = _tensors.sin
softmax = _tensors.softmax
softplus = _tensors.softplus
sort = _tensors.sort
sqrt = _tensors.sqrt
subtract = _tensors.subtract
sum = _tensors.sum
take = _tensors.take
take_along_axis = _tensors.take_along_axis
tanh = _tensors.tanh
to_integers = _tensors.to_integers
var = _tensors.var
where = _tensors.where

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Cosine",
    "Milestones",
    "Names",
    "abs",
    "adam_step",
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
    "clip_grad_norm_",
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
    "sgd_step",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sort",
    "sqrt",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tanh",
    "to_integers",
    "var",
    "where",
]
