"""Functions of tensors with the same bits in NumPy and JAX, gradients too; see `qcore.numerics`."""

from qcore.numerics.optimizers.schedules import Cosine, Milestones
from qtorch.reproducible.call import Tensors
from qtorch.reproducible.optimizers import Adam, AdamW, clip_grad_norm_
from qtorch.reproducible.tensor_names import Names

_tensors = Tensors()
adam_step = _tensors.adam_step
add = _tensors.add
batch_norm = _tensors.batch_norm
clip_by_norm = _tensors.clip_by_norm
cos = _tensors.cos
cross_entropy = _tensors.cross_entropy
divide = _tensors.divide
erf = _tensors.erf
exp = _tensors.exp
expm1 = _tensors.expm1
gelu = _tensors.gelu
layer_norm = _tensors.layer_norm
log = _tensors.log
log1p = _tensors.log1p
log_softmax = _tensors.log_softmax
logsumexp = _tensors.logsumexp
max = _tensors.max
mean = _tensors.mean
moving_average = _tensors.moving_average
mse = _tensors.mse
multiply = _tensors.multiply
norm = _tensors.norm
normalize = _tensors.normalize
pow = _tensors.pow
rate = _tensors.rate
reciprocal = _tensors.reciprocal
relu = _tensors.relu
rms_norm = _tensors.rms_norm
rsqrt = _tensors.rsqrt
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
    "Adam",
    "AdamW",
    "Cosine",
    "Milestones",
    "Names",
    "adam_step",
    "add",
    "batch_norm",
    "clip_by_norm",
    "clip_grad_norm_",
    "cos",
    "cross_entropy",
    "divide",
    "erf",
    "exp",
    "expm1",
    "gelu",
    "layer_norm",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "max",
    "mean",
    "moving_average",
    "mse",
    "multiply",
    "norm",
    "normalize",
    "pow",
    "rate",
    "reciprocal",
    "relu",
    "rms_norm",
    "rsqrt",
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
