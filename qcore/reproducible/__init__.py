"""Functions of float32 numbers with defined bits: elementary functions, sums, softmax, norms, losses, optimizers.

The same bits come out in NumPy, PyTorch (eager and compiled) and JAX (eager and jit), forward and backward. Each law is
written once, over a namespace `xp` of defined operations, and forward and backward by hand. Only second derivatives,
which have no defined bits, are left to the frameworks: they differentiate the backward law in float64, on a namespace
that does not round (`qcore.reproducible.operations.Unrounded`).

**Operations** (`qcore.reproducible.operations.Names`; `qtorch.reproducible` and `qjax.reproducible` have theirs):

- A float32 number of magnitude at most 2^-126 is a zero of its sign, as an operand and as a result. So nothing depends
  on who flushes subnormal numbers, and whether before or after rounding. `xp.settled(x)` says so.
- `xp.add`, `xp.sub`, `xp.mul`, `xp.div`, `xp.sqrt`: of float32 arrays and Python numbers, of which subnormal ones are
  not allowed; each rounded once and settled. The choice in `settled` also stands between a product and a sum, so that
  no compiler contracts them.
- A function of ONE float32 number is evaluated in float64 by the framework's own library and rounded once:
  `xp.narrow(xp.exp(xp.wide(x)))`. Products of `wide` numbers are exact, and may be added up in float64.
- Sums have a fixed order (`qcore.reproducible.sums`): float64, halves by index, an odd rest appended, rounded once.
- `xp.where`, comparisons, `xp.maximum` and shapes round nothing.

**Laws** are `Differentiable(forward, backward)` (`qcore.reproducible.differentiable`):

    def forward(xp, x, weight, eps=1e-5):            # float32 arrays, then options that are static
        ...
        return y, (x, weight)                        # the result, and the arrays that backward needs
    def backward(xp, saved, gradient, eps=1e-5):     # of the result
        ...
        return of_x, of_weight                       # one for each array; None for one that has no gradient

`qcore.reproducible.differentiable.apply(law, *arrays, **options)` runs a law on NumPy arrays,
`qtorch.reproducible.call.differentiable(law)` makes a function of tensors that autograd knows, and
`qjax.reproducible.call.differentiable(law)` one of JAX arrays with its custom_vjp. They settle arguments, and make all
NaN of the results one (0x7fc00000): a law need not.

Example:
    >>> import numpy as np
    >>> from qcore import reproducible
    >>> reproducible.softmax(np.float32([0.0, 1.0, 1e-40])).tolist()
    [0.21194155514240265, 0.5761168599128723, 0.21194155514240265]
"""

from qcore.reproducible.arrays import Arrays
from qcore.reproducible.operations import Names
from qcore.reproducible.optimizers.schedules import Cosine, Milestones

_arrays = Arrays()
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
log = _arrays.log
log1p = _arrays.log1p
log_softmax = _arrays.log_softmax
logsumexp = _arrays.logsumexp
max = _arrays.max
max_pool2d = _arrays.max_pool2d
maximum = _arrays.maximum
mean = _arrays.mean
minimum = _arrays.minimum
moved = _arrays.moved
moving_average = _arrays.moving_average
mse = _arrays.mse
multiply = _arrays.multiply
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
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "minimum",
    "moved",
    "moving_average",
    "mse",
    "multiply",
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
    "selu",
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
