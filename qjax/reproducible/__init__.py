"""Functions of JAX arrays with the same bits in NumPy and PyTorch, gradients too; see `qcore.numerics`."""

from qcore.numerics.optimizers.schedules import Cosine, Milestones
from qjax.reproducible.array_names import Names
from qjax.reproducible.call import Arrays
from qjax.reproducible.optimizers import Optimizer, adam, adamw

_arrays = Arrays()
adam_step = _arrays.adam_step
add = _arrays.add
batch_norm = _arrays.batch_norm
clip_by_norm = _arrays.clip_by_norm
cos = _arrays.cos
cross_entropy = _arrays.cross_entropy
divide = _arrays.divide
erf = _arrays.erf
exp = _arrays.exp
expm1 = _arrays.expm1
gelu = _arrays.gelu
layer_norm = _arrays.layer_norm
log = _arrays.log
log1p = _arrays.log1p
log_softmax = _arrays.log_softmax
logsumexp = _arrays.logsumexp
max = _arrays.max
mean = _arrays.mean
moving_average = _arrays.moving_average
mse = _arrays.mse
multiply = _arrays.multiply
norm = _arrays.norm
normalize = _arrays.normalize
pow = _arrays.pow
rate = _arrays.rate
reciprocal = _arrays.reciprocal
relu = _arrays.relu
rms_norm = _arrays.rms_norm
rsqrt = _arrays.rsqrt
sigmoid = _arrays.sigmoid
silu = _arrays.silu
sin = _arrays.sin
softmax = _arrays.softmax
softplus = _arrays.softplus
sqrt = _arrays.sqrt
subtract = _arrays.subtract
sum = _arrays.sum
tanh = _arrays.tanh
var = _arrays.var

__all__ = [
    "Cosine",
    "Milestones",
    "Names",
    "Optimizer",
    "adam",
    "adam_step",
    "adamw",
    "add",
    "batch_norm",
    "clip_by_norm",
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
