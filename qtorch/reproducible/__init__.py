"""Functions of tensors with the same bits in NumPy and JAX, gradients too; see `qcore.reproducible`.

Eager programs have second and higher derivatives, whose bits are not defined: derivatives of products are products of
the same formats, and all other derivatives are torch's derivatives of float64 functions.
"""

from qcore import reproducible as laws
from qcore.lazy import public_names
from qtorch.reproducible import operations
from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.modules.convert import convert, initialize
from qtorch.reproducible.modules.layers import set_key
from qtorch.reproducible.optimizers import SGD, Adam, AdamW, clip_grad_norm_

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
    "narrow",
    "scaled_dot_product_attention",
    "set_key",
]
__all__ += laws.__all__
__dir__ = public_names(__name__)
