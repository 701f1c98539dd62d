"""Functions of float32 numbers with defined bits: elementary functions, sums, softmax, norms, losses, optimizers.

NumPy, PyTorch (eager and compiled) and JAX (eager and jit) return the same bits, forward and backward. Each law is
written once, forward and backward by hand, with the operations of a namespace `xp`. Second derivatives have no defined
bits: the frameworks differentiate the backward law in float64, with operations that do not round
(`qcore.reproducible.operations.Unrounded`).

**Operations** (`qcore.reproducible.operations.Names`; `qtorch.reproducible` and `qjax.reproducible` have their own):

- A float32 number of magnitude at most 2^-126 is a zero of its sign, as an operand and as a result. So bits do not
  depend on hardware that flushes subnormal numbers. `xp.settled(x)` makes these zeros; its results are called settled.
- `xp.add`, `xp.sub`, `xp.mul`, `xp.div`, `xp.sqrt` take float32 arrays and Python numbers that are not subnormal. Each
  result is rounded once and settled. The choice in `settled` stands between a product and a sum, so no compiler
  contracts them.
- A function of one float32 number is evaluated in float64 by the framework's own library and rounded once:
  `xp.float32(xp.exp(xp.float64(x)))`. Products of such float64 numbers are exact, and may be added up in float64.
- Sums have a fixed order (`xp.sums`): float64, halves by index, an odd rest appended, rounded once.
  Softmax adds integers instead (`xp.exact_total`), which have no order.
- `xp.where`, comparisons, `xp.maximum` and shapes round nothing.

**Laws** are `Differentiable(forward, backward)` (`qcore.reproducible.differentiable`):

    def forward(xp, x, weight, eps=1e-5):            # float32 arrays, then options that are static
        ...
        return y, (x, weight)                        # the result, and the arrays that backward needs
    def backward(xp, saved, gradient, eps=1e-5):     # of the result
        ...
        return of_x, of_weight                       # one for each array, or None

A package runs laws by `apply(law, *arrays, **options)` (NumPy) or `differentiable(law)` (PyTorch, JAX) in its
`reproducible.functions`. They settle arguments, and write 0x7fc00000 for each NaN of the results.

**Public functions** are methods of a class in the file of their laws. `qcore.reproducible.binding` makes the functions
of each package from them, with docstrings whose examples run in that package.

Example:
    >>> import numpy as np
    >>> from qcore import reproducible
    >>> reproducible.softmax(np.float32([0.0, 1.0, 1e-40])).tolist()
    [0.21194155514240265, 0.5761168599128723, 0.21194155514240265]
"""

from qcore.lazy import public_names
from qcore.reproducible.functions import FUNCTIONS
from qcore.reproducible.operations import Names
from qcore.reproducible.optimizers import Cosine, Milestones
from qcore.reproducible.state_codes import StateCodes

abs = FUNCTIONS.abs
adam_step = FUNCTIONS.adam_step
adam_step_with_codes = FUNCTIONS.adam_step_with_codes
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
cos = FUNCTIONS.cos
cross_entropy = FUNCTIONS.cross_entropy
decode_state = FUNCTIONS.decode_state
divide = FUNCTIONS.divide
dropout = FUNCTIONS.dropout
elu = FUNCTIONS.elu
embedding = FUNCTIONS.embedding
encode_state = FUNCTIONS.encode_state
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
log = FUNCTIONS.log
log1p = FUNCTIONS.log1p
log_softmax = FUNCTIONS.log_softmax
logsumexp = FUNCTIONS.logsumexp
max = FUNCTIONS.max
max_pool2d = FUNCTIONS.max_pool2d
maximum = FUNCTIONS.maximum
mean = FUNCTIONS.mean
minimum = FUNCTIONS.minimum
moved = FUNCTIONS.moved
moving_average = FUNCTIONS.moving_average
mse = FUNCTIONS.mse
multiply = FUNCTIONS.multiply
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
    "Cosine",
    "Milestones",
    "Names",
    "StateCodes",
    "abs",
    "adam_step",
    "adam_step_with_codes",
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
    "decode_state",
    "divide",
    "dropout",
    "elu",
    "embedding",
    "encode_state",
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
__dir__ = public_names(__name__)
