"""Functions of tensors with the same bits in NumPy and JAX, gradients too; see `qcore.numerics`.

Eager programs have second and higher derivatives, whose bits are not defined: products of the same formats for those
of products, and torch's derivatives of float64 functions for all others.
"""

from qcore.numerics.optimizers.schedules import Cosine, Milestones
from qtorch.reproducible.modules.convert import convert
from qtorch.reproducible.modules.initial import initialize
from qtorch.reproducible.modules.layers import set_key
from qtorch.reproducible.optimizers import SGD, Adam, AdamW, clip_grad_norm_
from qtorch.reproducible.tensor_names import Names
from qtorch.reproducible.training import FUNCTIONS

_tensors = FUNCTIONS
adam_step = _tensors.adam_step
add = _tensors.add
avg_pool2d = _tensors.avg_pool2d
batch_norm = _tensors.batch_norm
chunk = _tensors.chunk
clip_by_norm = _tensors.clip_by_norm
conv1d = _tensors.conv1d
conv2d = _tensors.conv2d
conv3d = _tensors.conv3d
cos = _tensors.cos
cross_entropy = _tensors.cross_entropy
divide = _tensors.divide
dropout = _tensors.dropout
embedding = _tensors.embedding
erf = _tensors.erf
exp = _tensors.exp
expm1 = _tensors.expm1
gelu = _tensors.gelu
layer_norm = _tensors.layer_norm
linear = _tensors.linear
log = _tensors.log
log1p = _tensors.log1p
log_softmax = _tensors.log_softmax
logsumexp = _tensors.logsumexp
matmul = _tensors.matmul
max = _tensors.max
max_pool2d = _tensors.max_pool2d
mean = _tensors.mean
moving_average = _tensors.moving_average
mse = _tensors.mse
multiply = _tensors.multiply
narrow = _tensors.narrow
norm = _tensors.norm
normalize = _tensors.normalize
pow = _tensors.pow
rate = _tensors.rate
reciprocal = _tensors.reciprocal
relu = _tensors.relu
rms_norm = _tensors.rms_norm
rsqrt = _tensors.rsqrt
scaled_dot_product_attention = _tensors.scaled_dot_product_attention
settle = _tensors.settle
sgd_step = _tensors.sgd_step
sigmoid = _tensors.sigmoid
silu = _tensors.silu
sin = _tensors.sin
softmax = _tensors.softmax
softplus = _tensors.softplus
sqrt = _tensors.sqrt
subtract = _tensors.subtract
sum = _tensors.sum
tanh = _tensors.tanh
var = _tensors.var

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Cosine",
    "Milestones",
    "Names",
    "adam_step",
    "add",
    "avg_pool2d",
    "batch_norm",
    "chunk",
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
    "embedding",
    "erf",
    "exp",
    "expm1",
    "gelu",
    "initialize",
    "layer_norm",
    "linear",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "max_pool2d",
    "mean",
    "moving_average",
    "mse",
    "multiply",
    "narrow",
    "norm",
    "normalize",
    "pow",
    "rate",
    "reciprocal",
    "relu",
    "rms_norm",
    "rsqrt",
    "scaled_dot_product_attention",
    "set_key",
    "settle",
    "sgd_step",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "subtract",
    "sum",
    "tanh",
    "var",
]
