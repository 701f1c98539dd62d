"""Second and third derivatives of functions with defined bits, beside torch's own in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import qjax
import qtorch

_X = np.linspace(-1.5, 1.7, 24, dtype=np.float32).reshape(4, 6)
_X[0, 0] = 0  # where formulas meet
_AWAY = np.where(_X == 0, np.float32(0.1), _X)  # torch's second derivatives at 0 are neither side's there
_P = abs(_X) + np.float32(0.3)
_W, _B = np.linspace(0.3, 1.2, 6, dtype=np.float32), np.linspace(-1, 1, 6, dtype=np.float32)
_MATRIX = np.linspace(-1, 1, 18, dtype=np.float32).reshape(3, 6)
_IMAGES, _KERNEL = (np.sin(np.arange(np.prod(s)), dtype=np.float32).reshape(s) for s in ((2, 3, 4, 4), (4, 3, 3, 3)))
_ROWS, _TARGET = np.array([1, 3, 1, 0]), np.array([0, 5, 2, 2])


def _layer_norm(x, w, b, axis, centred=True):
    """By its definition: torch's own takes mean and deviation for constants in its third derivative."""
    c = x - x.mean(axis, keepdim=True) if centred else x
    h = c / (c.square().mean(axis, keepdim=True) + 1e-5).sqrt() * w
    return h + b if centred else h


def _kept(x):
    return x * qtorch.reproducible.dropout(torch.ones(4, 6), 0.3, 7).double()


def _attention(x, y):
    return F.scaled_dot_product_attention(x, y, y * y, is_causal=True)


# name: (function of a package's room and arrays, torch's function, arrays); linear functions stand in an exponential.
CASES = {
    **{name: (name, getattr(torch, name), [_X]) for name in ("exp", "expm1", "tanh", "sigmoid", "erf", "sin", "cos")},
    **{name: (name, getattr(torch, name), [_P]) for name in ("log", "log1p", "sqrt", "rsqrt", "reciprocal")},
    **{name: (name, getattr(F, name), [_X]) for name in ("gelu", "silu", "softplus")},
    "gelu_tanh": (lambda r, x: r.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), [_X]),
    "relu": (lambda r, x: r.exp(r.relu(x)), lambda x: x.relu().exp(), [_X]),
    "add": (lambda r, x, w: r.exp(r.add(x, w)), lambda x, w: (x + w).exp(), [_X, _W]),
    "subtract": (lambda r, x, w: r.exp(r.subtract(x, w)), lambda x, w: (x - w).exp(), [_X, _W]),
    "multiply": (lambda r, x, w: r.exp(r.multiply(x, w)), lambda x, w: (x * w).exp(), [_X, _W]),
    "divide": ("divide", torch.div, [_X, _W]),
    "pow": ("pow", torch.pow, [_P, _W]),
    "sum": (lambda r, x: r.exp(r.sum(x, 1)), lambda x: x.sum(1).exp(), [_X]),
    "mean": (lambda r, x: r.exp(r.mean(x, 1)), lambda x: x.mean(1).exp(), [_X]),
    "max": (lambda r, x: r.exp(r.max(x, 1)), lambda x: x.amax(1).exp(), [_X]),
    "var": (lambda r, x: r.exp(r.var(x, 1)), lambda x: x.var(1).exp(), [_X]),
    "norm": (lambda r, x: r.norm(x, 1), lambda x: x.norm(dim=1), [_X]),
    "logsumexp": (lambda r, x: r.logsumexp(x, 1), lambda x: x.logsumexp(1), [_X]),
    "softmax": (lambda r, x: r.softmax(x, 1), lambda x: x.softmax(1), [_X]),
    "log_softmax": (lambda r, x: r.log_softmax(x, 0), lambda x: x.log_softmax(0), [_X]),
    "layer_norm": ("layer_norm", lambda *a: _layer_norm(*a, 1), [_X, _W, _B]),
    "rms_norm": (
        lambda r, x, w: r.rms_norm(x, w, eps=1e-5),
        lambda x, w: _layer_norm(x, w, None, 1, False),
        [_X, _W],
    ),
    "batch_norm": (lambda r, *a: r.batch_norm(*a)[0], lambda *a: _layer_norm(*a, 0), [_X, _W, _B]),
    "normalize": (
        lambda r, x, w, b: r.exp(r.normalize(x, r.one(_B), r.one(_P[0]), w, b)),
        lambda x, w, b: ((x - torch.tensor(_B)) / (torch.tensor(_P[0]).double() + 1e-5).sqrt() * w + b).exp(),
        [_X, _W, _B],
    ),
    "cross_entropy": (
        lambda r, x: r.cross_entropy(x, r.one(_TARGET)),
        lambda x: F.cross_entropy(x, torch.tensor(_TARGET)),
        [_X],
    ),
    "mse": (lambda r, x, y: r.exp(r.mse(x, y)), lambda x, y: F.mse_loss(x, y).exp(), [_X, _P]),
    "linear": (lambda r, *a: r.exp(r.linear(*a)), lambda *a: F.linear(*a).exp(), [_X, _MATRIX, _B[:3]]),
    "matmul": (lambda r, x, w: r.exp(r.matmul(x, w.T)), lambda x, w: (x @ w.T).exp(), [_X, _MATRIX]),
    "conv1d": ("conv1d", F.conv1d, [_IMAGES[:, :, 0], _KERNEL[:, :, 0], _B[:4]]),
    "conv2d": ("conv2d", F.conv2d, [_IMAGES, _KERNEL, _B[:4]]),
    "conv3d": ("conv3d", F.conv3d, [_IMAGES[:, :, None], _KERNEL[:, :, None], _B[:4]]),
    "scaled_dot_product_attention": (
        lambda r, x, y: r.scaled_dot_product_attention(x, y, r.multiply(y, y), is_causal=True),
        _attention,
        [_X, _P],
    ),
    "max_pool2d": (lambda r, x: r.exp(r.max_pool2d(x, 2)), lambda x: F.max_pool2d(x, 2).exp(), [_IMAGES]),
    "avg_pool2d": (lambda r, x: r.exp(r.avg_pool2d(x, 2)), lambda x: F.avg_pool2d(x, 2).exp(), [_IMAGES]),
    "embedding": (lambda r, w: r.exp(r.embedding(r.one(_ROWS), w)), lambda w: w[torch.tensor(_ROWS)].exp(), [_X]),
    "dropout": (lambda r, x: r.exp(r.dropout(x, 0.3, 7)), lambda x: _kept(x).exp(), [_X]),
    "chunk": (lambda r, x: r.exp(r.multiply(*r.chunk(x, 2))), lambda x: (x[:, :3] * x[:, 3:]).exp(), [_X]),
    "narrow": (lambda r, x: r.exp(r.narrow(x, 1, 2, 3)), lambda x: x[:, 2:5].exp(), [_X]),
    **{
        name: (lambda r, x, name=name: r.exp(getattr(r, name)(x)), lambda x, f=f: f(x).exp(), [_X])
        for name, f in {
            "abs": torch.abs,
            **{name: getattr(F, name) for name in ("hardtanh", "hardswish")},
        }.items()
    },
    **{name: (name, getattr(F, name), [_AWAY]) for name in ("elu", "selu")},
    "hardsigmoid": (lambda r, x: r.exp(r.hardsigmoid(x)), lambda x: (x / 6 + 0.5).clamp(0, 1).exp(), [3 * _X]),
    "celu": (lambda r, x: r.celu(x, 0.5), lambda x: F.celu(x, 0.5), [_AWAY]),
    "leaky_relu": (lambda r, x: r.exp(r.leaky_relu(x, 0.2)), lambda x: F.leaky_relu(x, 0.2).exp(), [_X]),
    "prelu": (lambda r, x, w: r.exp(r.prelu(x, w)), lambda x, w: F.prelu(x, w).exp(), [_AWAY, _W]),
    "clamp": (lambda r, x: r.exp(r.clamp(x, -0.4, 0.7)), lambda x: x.clamp(-0.4, 0.7).exp(), [_X]),
    "maximum": (lambda r, x, w: r.exp(r.maximum(x, w)), lambda x, w: x.maximum(w).exp(), [_X, _W]),
    "minimum": (lambda r, x, w: r.exp(r.minimum(x, w)), lambda x, w: x.minimum(w).exp(), [_X, _W]),
    "where": (
        lambda r, x, w: r.exp(r.where(r.less(r.one(_X), r.one(_P)), x, w)),
        lambda x, w: torch.where(torch.tensor(_X < _P), x, w).exp(),
        [_X, _W],
    ),
    "group_norm": (
        lambda r, x, w, b: r.group_norm(x, 2, w, b),
        lambda x, w, b: _layer_norm(x.unflatten(1, (2, 3)), 1, 0, 2).flatten(1) * w + b,
        [_X, _W, _B],
    ),
    "pad": (
        lambda r, x: r.exp(r.pad(x, ((0, 0), (1, 2)), "reflect")),
        lambda x: F.pad(x, (1, 2), "reflect").exp(),
        [_X],
    ),
    "broadcast_to": (
        lambda r, w: r.exp(r.multiply(r.broadcast_to(w, (4, 6)), r.one(_X))),
        lambda w: (w * torch.tensor(_X)).exp(),
        [_W],
    ),
    "part": (lambda r, x: r.exp(r.part(x, (slice(1, 3), 2))), lambda x: x[1:3, 2].exp(), [_X]),
    "take": (lambda r, x: r.exp(r.take(x, r.one(_ROWS), 0)), lambda x: x[torch.tensor(_ROWS)].exp(), [_X]),
    "take_along_axis": (
        lambda r, x: r.exp(r.take_along_axis(x, r.one(_ROWS[:, None]), 1)),
        lambda x: x.take_along_dim(torch.tensor(_ROWS[:, None]), 1).exp(),
        [_X],
    ),
    "sort": (
        lambda r, x: r.exp(r.multiply(r.sort(x, 1, True), r.one(_W))),
        lambda x: (x.sort(1, True)[0] * torch.tensor(_W)).exp(),
        [_X],
    ),
    "moved": (lambda r, x: r.exp(r.moved(x, lambda x: x.swapaxes(0, 1))), lambda x: x.T.exp(), [_X]),
    "settle": (lambda r, x: r.exp(r.settle(x)), torch.exp, [_X]),
}
# Functions for optimizers, which are not differentiated, of integers and truth, and what is no function of arrays.
OTHERS = set(
    "argmax argsort equal less less_equal to_integers adam_step adam_step_with_codes "
    "decode_state encode_state StateCodes muon_step orthogonalize clip_by_norm moving_average rate sgd_step "
    "Cosine Milestones Names convert initialize set_key Optimizer adam adamw sgd load_state_dict state_dict "
    "Adam AdamW SGD clip_grad_norm_".split()
)


class _Room:
    """A package's functions, and its arrays from NumPy's."""

    def __init__(self, package, one):
        self.package, self.one = package, one

    def __getattr__(self, name):
        return getattr(self.package, name)


QUICK = ("softmax", "layer_norm", "relu")  # of JAX, which compiles each

TORCH = _Room(qtorch.reproducible, lambda x: torch.from_numpy(np.array(x)))
JAX = _Room(qjax.reproducible, jnp.asarray)


def _called(name, room):
    function = CASES[name][0]
    return getattr(room, function) if isinstance(function, str) else lambda *arrays: function(room, *arrays)


def _directions(arrays):
    return [np.sin(1.0 + np.arange(x.size)).reshape(x.shape) for x in arrays]


def _by_torch(function, arrays, dtype, order):
    """Gradients of a number, of its derivative along directions, and so on."""
    xs = [torch.from_numpy(np.array(x)).to(dtype).requires_grad_() for x in arrays]
    along = [torch.from_numpy(d).to(dtype) for d in _directions(arrays)]
    y = function(*xs)
    number, found = (y * torch.cos(torch.arange(y.numel()).to(dtype)).reshape(y.shape)).sum(), []
    for _ in range(order):
        gradients = torch.autograd.grad(number, xs, create_graph=True, materialize_grads=True)
        found.append([g.detach() for g in gradients])
        number = sum((g * d).sum() for g, d in zip(gradients, along, strict=True))
    return found


def _assert_near(found, right):
    scale = max(float(abs(r).max()) for r in right)
    for x, r in zip(found, right, strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), r.numpy(), rtol=1e-5, atol=1e-5 * scale)


def test_every_function_has_a_case():
    functions = {*qtorch.reproducible.__all__, *qjax.reproducible.__all__} - OTHERS
    assert functions == {*CASES} - {"gelu_tanh"}


@pytest.mark.parametrize("name", CASES)
def test_torch(name):
    arrays = CASES[name][2]
    right = _by_torch(CASES[name][1], arrays, torch.float64, 3)
    found = _by_torch(_called(name, TORCH), arrays, torch.float32, 3)
    for of_ours, of_theirs in zip(found, right, strict=True):
        _assert_near(of_ours, of_theirs)


def _second_by_jax(name):
    """The gradient of a gradient along directions."""
    function, arrays = _called(name, JAX), CASES[name][2]
    places = tuple(range(len(arrays)))

    def number(*arrays):
        y = function(*arrays)
        return (y * jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)).sum()

    def along(*arrays):
        pairs = zip(jax.grad(number, places)(*arrays), _directions(arrays), strict=True)
        return sum((g * d.astype(np.float32)).sum() for g, d in pairs)

    return jax.grad(along, places), tuple(map(jnp.asarray, arrays))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in CASES]
)
def test_jax(name):
    function, arrays = _second_by_jax(name)
    _assert_near(jax.jit(function)(*arrays), _by_torch(CASES[name][1], CASES[name][2], torch.float64, 2)[1])


@pytest.mark.heavy
def test_jax_without_jit_and_third_order():
    function, arrays = _second_by_jax("tanh")
    right = _by_torch(torch.tanh, [_X], torch.float64, 3)
    _assert_near(function(*arrays), right[1])
    (d,) = _directions([_X])
    third = jax.grad(lambda x: (function(x)[0] * d.astype(np.float32)).sum())
    _assert_near([third(*arrays)], right[2])
    with pytest.raises(TypeError, match="forward-mode"):
        jax.hessian(lambda x: qjax.reproducible.tanh(x).sum())(arrays[0])


@pytest.mark.parametrize("recipe", [None, "mxfp8"])
def test_gradient_penalty(recipe):
    """The gradient of a gradient's square, of a model without it and then switched; MXFP8 rounds all products."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    x = torch.linspace(-1, 1, 64).reshape(2, 32).requires_grad_()

    def penalty():
        y = model(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(0 * y.sum() + gradient.square().sum(), model[0].weight)[0]

    right = penalty()
    qtorch.reproducible.convert(model, *([] if recipe is None else [qtorch.RECIPES[recipe]]))
    error = (penalty() - right).norm() / right.norm()
    assert error < 1e-5 if recipe is None else 1e-3 < error < 0.2
