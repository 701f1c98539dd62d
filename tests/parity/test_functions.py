"""Functions in pieces, moves and pools: beside loops, and the same bits in NumPy, torch (eager, compiled) and JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle_functions as oracle
import pytest
import torch
from covering import usually
from numerics_support import by_jax, by_torch, every_kind, numbers, with_gradient
from oracle_functions import F32, add, div, mul, pieces, rounded
from support import assert_all_same_bits, assert_same_bits
from torch import nn
from torch.nn import functional as F

import qjax
import qtorch
from qcore import reproducible

RNG = np.random.default_rng(21)
X, A = every_kind(RNG, 600), np.float32([[3, -1, 2, 2, -0.0], [0.0, np.nan, 1e-40, -2, 5]])
IMAGE, HARD = numbers(RNG, 5, 7), numbers(RNG, 5, 7)
HARD[1:3, 1:3], HARD[4, 4], HARD[0, 5] = 1.5, np.nan, -np.inf
BATCH = numbers(RNG, 2, 6, 3, 4)


def elu(x, positive, negative, divisor):
    below = mul(rounded(np.expm1(div(x, F32(divisor)).astype(np.float64))), F32(negative))
    return np.where(x > 0, mul(x, F32(positive)), below)


def elu_slope(x, positive, negative, divisor):
    below = mul(rounded(np.exp(div(x, F32(divisor)).astype(np.float64))), F32(negative / divisor))
    return np.where(x > 0, F32(positive), below)


def hardsigmoid(x):
    return np.where(x <= -3, F32(0), np.where(x >= 3, F32(1), div(add(x, F32(3)), F32(6))))


SELU = 1.0507009873554805, 1.0507009873554805 * 1.6732632423543772, 1.0
MIDDLE, EVERY_OTHER = np.index_exp[None, 1:4, ..., -2], np.index_exp[::2, 3]
INDEX = np.array([[2, 0, 1, 1], [0, 0, 2, 5]])
# A function of a package and arrays, the arrays, and the oracle of these and the gradient.
CASES = {
    "abs": (lambda r, x: r.abs(x), (X,), pieces(abs, np.sign)),
    "leaky_relu": (
        lambda r, x: r.leaky_relu(x, 0.1),
        (X,),
        pieces(lambda x: np.where(x > 0, x, mul(x, F32(0.1))), lambda x: np.where(x > 0, F32(1), F32(0.1))),
    ),
    "prelu": (lambda r, x, w: r.prelu(x, w), (BATCH, numbers(RNG, 6, 1, 1)), oracle.prelu),
    "clamp": (
        lambda r, x: r.clamp(x, -1, 0.5),
        (X,),
        pieces(lambda x: np.clip(x, F32(-1), F32(0.5)), lambda x: F32((x >= -1) & (x <= 0.5))),
    ),
    "hardtanh": (
        lambda r, x: r.hardtanh(x),
        (X,),
        pieces(lambda x: np.clip(x, F32(-1), F32(1)), lambda x: F32((x > -1) & (x < 1))),
    ),
    "hardsigmoid": (
        lambda r, x: r.hardsigmoid(x),
        (X,),
        pieces(hardsigmoid, lambda x: np.where((x > -3) & (x < 3), F32(1 / 6), F32(0))),
    ),
    "hardswish": (
        lambda r, x: r.hardswish(x),
        (X,),
        pieces(
            lambda x: np.where(x <= -3, F32(0), mul(x, hardsigmoid(x))),
            lambda x: np.where(x <= -3, F32(0), np.where(x >= 3, F32(1), add(div(x, F32(3)), F32(0.5)))),
        ),
    ),
    "elu": (
        lambda r, x: r.elu(x, 0.7),
        (X,),
        pieces(
            partial(elu, positive=1, negative=0.7, divisor=1), partial(elu_slope, positive=1, negative=0.7, divisor=1)
        ),
    ),
    "celu": (
        lambda r, x: r.celu(x, 0.7),
        (X,),
        pieces(
            partial(elu, positive=1, negative=F32(0.7), divisor=F32(0.7)),
            partial(elu_slope, positive=1, negative=F32(0.7), divisor=F32(0.7)),
        ),
    ),
    "selu": (lambda r, x: r.selu(x), (X,), pieces(lambda x: elu(x, *SELU), lambda x: elu_slope(x, *SELU))),
    "maximum": (lambda r, a, b: r.maximum(a, b), (A, A[::-1, :1].copy()), oracle.greater),
    "minimum": (lambda r, a, b: r.minimum(a, b), (A[:1], A[1:]), partial(oracle.greater, sign=-1)),
    "where": (lambda r, c, a, b: r.where(c, a, b), (IMAGE > 0, numbers(RNG, 7), numbers(RNG, 3, 5, 1)), oracle.where),
    "broadcast_to": (
        lambda r, x: r.broadcast_to(x, (3, 5, 7)),
        (numbers(RNG, 5, 1),),
        lambda x, g: [oracle.settled(np.broadcast_to(x, g.shape)), oracle.of_copies(g, x.shape)],
    ),
    "pad": (
        lambda r, x: r.pad(x, ((1, 0), (2, 3)), value=0.5),
        (IMAGE,),
        lambda x, g: [oracle.settled(np.pad(x, ((1, 0), (2, 3)), constant_values=0.5)), oracle.settled(g[1:, 2:-3])],
    ),
    **{
        f"pad by {mode}": (
            lambda r, x, mode=mode: r.pad(x, ((0, 0), (3, 2)), mode),
            (IMAGE,),
            oracle.moved(lambda p, name=name: np.pad(p, ((0, 0), (3, 2)), name)),
        )
        for mode, name in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"))
    },
    "moved": (
        lambda r, x: r.moved(x, lambda p: p[:, [0, 3, 3]].swapaxes(0, 1)[..., None]),
        (IMAGE,),
        oracle.moved(lambda p: p[:, [0, 3, 3]].T[..., None]),
    ),
    "part": (
        lambda r, x: r.part(x, MIDDLE),
        (IMAGE,),
        oracle.moved(lambda p: p[None, 1:4, -2]),
    ),
    "part with steps": (lambda r, x: r.part(x, EVERY_OTHER), (IMAGE,), oracle.moved(lambda p: p[::2, 3])),
    "take": (
        lambda r, x: r.take(x, np.array([[1, 1], [3, 1]]) if r is reproducible else _array(r, [[1, 1], [3, 1]]), 1),
        (BATCH,),
        oracle.moved(lambda p: p[:, [[1, 1], [3, 1]]]),
    ),
    "take_along_axis": (
        lambda r, x, i: r.take_along_axis(x, i, 0),
        (IMAGE[:3], INDEX),
        lambda x, i, g: oracle.at(x, np.where(i < 3, i * 7 + np.arange(4), -1), g),
    ),
    "sort": (lambda r, x: r.sort(x), (HARD,), oracle.sort),
    "embedding with padding": (
        lambda r, w, i: r.embedding(i, w, padding_idx=-4),
        (numbers(RNG, 5, 1), RNG.integers(0, 5, (4, 9))),
        lambda w, i, g: oracle.at(w, i[..., None], g, without=1),
    ),
    "max_pool2d": (
        lambda r, x: r.max_pool2d(x, (2, 2), (3, 2), 1, 2, ceil_mode=True),
        (HARD,),
        partial(oracle.pooled, kernel=(2, 2), stride=(3, 2), padding=(1, 1), dilation=(2, 2), ceil_mode=True),
    ),
    **{
        f"avg_pool2d, {'with' if padded else 'without'} padding": (
            lambda r, x, padded=padded: r.avg_pool2d(x, (2, 3), (2, 2), 1, True, padded),
            (IMAGE,),
            partial(
                oracle.pooled, kernel=(2, 3), stride=(2, 2), padding=(1, 1), ceil_mode=True, mean=True, padded=padded
            ),
        )
        for padded in (True, False)
    },
}


def _array(room, numbers):
    return torch.tensor(numbers) if room is qtorch.reproducible else jnp.array(numbers)


def expected(name):
    function, arrays, right = CASES[name]
    y = np.asarray(function(reproducible, *arrays))
    return y, right(*arrays, with_gradient(y.shape))


@pytest.mark.parametrize("name", CASES)
def test_beside_loops(name):
    """NumPy's result, torch's and its gradients."""
    y, right = expected(name)
    assert_same_bits(y, right[0])
    assert_all_same_bits(by_torch(*CASES[name][:2]), right)


@pytest.mark.parametrize("distance", [2, pytest.param(1, marks=pytest.mark.heavy)])
def test_jax_in_one_program(distance):
    names = [*CASES][::distance]
    given = {name: CASES[name][1] for name in names}
    found = jax.jit(lambda given: {name: by_jax(CASES[name][0], given[name]) for name in names})(given)
    for name in names:
        assert_all_same_bits(found[name], expected(name)[1])


def _compiled(names, backend):
    given = [[torch.from_numpy(np.array(x)) for x in CASES[name][1]] for name in names]
    floats = [x.requires_grad_() for arrays in given for x in arrays if x.dtype is torch.float32]

    @torch.compile(fullgraph=True, backend=backend)
    def program(given):
        return [CASES[name][0](qtorch.reproducible, *arrays) for name, arrays in zip(names, given, strict=True)]

    results = program(given)
    gradients = iter(torch.autograd.grad(results, floats, [torch.from_numpy(with_gradient(y.shape)) for y in results]))
    for name, y, arrays in zip(names, results, given, strict=True):
        found = [y.detach(), *(next(gradients) for x in arrays if x.dtype is torch.float32)]
        assert_all_same_bits(found, expected(name)[1])


def test_torch_compiled():
    _compiled(("where", "pad by reflect", "part"), "aot_eager")


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(0, len(CASES), 7))
def test_all_by_inductor(first):
    torch._dynamo.reset()
    _compiled([*CASES][first : first + 7], "inductor")


@pytest.mark.parametrize("descending", [False, True])
def test_places_of_sorted_and_greatest_numbers(descending):
    """Ties by index, zeros of both signs and the smallest numbers are equal, NaN is the greatest."""
    right = oracle.order(A, descending)
    x, y = torch.from_numpy(A).requires_grad_(), jnp.asarray(A)
    for found in (
        reproducible.argsort(A, 1, descending),
        qtorch.reproducible.argsort(x, 1, descending),
        jax.jit(lambda y: qjax.reproducible.argsort(y, 1, descending))(y),
    ):
        assert np.asarray(found).tolist() == right.tolist()
    first = oracle.order(A, True)[:, 0].tolist()
    for found in (reproducible.argmax(A), qtorch.reproducible.argmax(x), jax.jit(qjax.reproducible.argmax)(y)):
        assert np.asarray(found).tolist() == first


def test_comparisons():
    """The smallest numbers are zeros wherever XLA runs."""
    small = np.float32([0.0, -0.0, 2.0**-126, -1e-40, np.nan, 1])
    a, b = small[:, None], small[None]
    zero = np.where(abs(small) > 2.0**-126, small, 0)
    for name, relation in (("equal", np.equal), ("less", np.less), ("less_equal", np.less_equal)):
        right = np.where(np.isnan(a) | np.isnan(b), False, relation(zero[:, None], zero[None]))
        ours = getattr(qtorch.reproducible, name)(torch.from_numpy(a), torch.from_numpy(b))
        theirs = jax.jit(getattr(qjax.reproducible, name))(a, b)
        for found in (getattr(reproducible, name)(a, b), ours, theirs):
            assert (np.asarray(found) == right).all()


def test_integers_of_numbers():
    """Toward zero, and 0 where integers end, as processors do not agree there."""
    x = np.float32([2.7, -2.7, np.nan, np.inf, 2.0**31, -(2.0**31), 1e-40, 2147483520])
    right = [2, -2, 0, 0, 0, -(2**31), 0, 2147483520]
    ours, theirs = qtorch.reproducible.to_integers(torch.from_numpy(x)), jax.jit(qjax.reproducible.to_integers)(x)
    for found in (reproducible.to_integers(x), ours, theirs):
        assert np.asarray(found).tolist() == right
    model = qtorch.reproducible.convert(Calls(lambda y: torch.from_numpy(x).to(torch.int64)))
    assert model(torch.ones(1, 4)).tolist() == [*right[:4], 2**31, *right[5:]]


def test_group_norm_beside_loops():
    weight, bias = numbers(RNG, 6), numbers(RNG, 6)
    right = oracle.group_norm(BATCH, weight, bias, 3, 1e-3)
    function = lambda r, *a: r.group_norm(a[0], 3, *a[1:], eps=1e-3)  # noqa: E731
    given = BATCH, weight, bias
    found, jitted = by_torch(function, given), jax.jit(lambda *a: by_jax(function, a))(*given)
    assert_same_bits(function(reproducible, *given), right)
    assert_same_bits(found[0], right)
    assert_all_same_bits(jitted, found)
    g = with_gradient(right.shape)
    assert_same_bits(found[3], oracle.of_copies(g, (6, 1, 1)).reshape(-1))


def by_hand(r, q, k, v, mask):
    """Scores, masks and softmax of one head."""
    scores = r.matmul(r.multiply(q, r.divide(_one(r), _one(r, 2.0))), k.swapaxes(-1, -2))
    return r.matmul(r.softmax(r.add(scores, mask)), v)


def _one(room, number=1.0):
    return torch.tensor(number) if room is qtorch.reproducible else jnp.float32(number)


@pytest.mark.heavy
def test_attention_with_masks_and_groups_of_heads():
    """A mask that is added, and heads of keys that serve several of queries."""
    q, k, v, mask = numbers(RNG, 4, 5, 4), numbers(RNG, 2, 3, 4), numbers(RNG, 2, 3, 2), numbers(RNG, 5, 3)
    function = lambda r, *a: r.scaled_dot_product_attention(*a[:3], attn_mask=a[3], enable_gqa=True)  # noqa: E731
    found = by_torch(function, (q, k, v, mask))
    assert_all_same_bits(jax.jit(lambda *a: by_jax(function, a))(q, k, v, mask), found)
    room = qtorch.reproducible
    for head in range(4):
        one = [torch.from_numpy(x) for x in (q[head], k[head // 2], v[head // 2], mask)]
        assert_same_bits(found[0][head], by_hand(room, *one))
    theirs = torch.nn.functional.scaled_dot_product_attention
    given = [torch.from_numpy(x) for x in (q, k, v)]
    near = theirs(*given, attn_mask=torch.from_numpy(mask), enable_gqa=True)
    torch.testing.assert_close(found[0], near, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["same", pytest.param("valid", marks=pytest.mark.heavy)])
def test_convolutions_padded_by_name(padding):
    """An odd zero comes last, as in torch."""
    x, w, b = numbers(RNG, 1, 2, 9), numbers(RNG, 3, 2, 4), numbers(RNG, 3)
    function = lambda r, x, w, b: r.conv1d(x, w, b, 1, padding)  # noqa: E731
    found = by_torch(function, (x, w, b))
    assert_all_same_bits(jax.jit(lambda *a: by_jax(function, a))(x, w, b), found)
    whole = np.pad(x, ((0, 0), (0, 0), (1, 2))) if padding == "same" else x
    right = by_torch(lambda r, x, w, b: r.conv1d(x, w, b), (whole, w, b))
    assert_same_bits(found[0], right[0])
    assert_all_same_bits(found[2:], right[2:])


WRONG = {
    "widths=": lambda r, x: r.pad(x, ((1, 1),) * 3),
    "mode='mirror'": lambda r, x: r.pad(x, ((1, 1),), "mirror"),
    "for an axis of length 3": lambda r, x: r.pad(x, ((3, 0),), "reflect"),
    "shape=": lambda r, x: r.broadcast_to(x, (2, 4)),
    "alpha=0": lambda r, x: r.celu(x, 0),
    "low=": lambda r, x: r.clamp(x, 1, 0),
    "a has shape": lambda r, x: r.maximum(x, x[:, :2]),
    "groups=2": lambda r, x: r.group_norm(x, 2),
    "the length|lengths of": lambda r, x: r.take_along_axis(x, _ints(r, (3, 3))),
    "padding_idx=3": lambda r, x: r.embedding(_ints(r, (2,)), x, padding_idx=3),
    "slope=": lambda r, x: r.leaky_relu(x, float("nan")),
}


def _ints(room, shape):
    return np.zeros(shape, np.int32) if room is reproducible else _array(room, np.zeros(shape, np.int32).tolist())


@pytest.mark.parametrize("words", WRONG)
@pytest.mark.parametrize("room", [reproducible, qtorch.reproducible, qjax.reproducible], ids=lambda room: room.__name__)
def test_wrong_arguments(room, words):
    x = np.ones((2, 3), np.float32)
    with pytest.raises((TypeError, ValueError), match=words):
        WRONG[words](room, torch.from_numpy(x) if room is qtorch.reproducible else x)


class Calls(nn.Module):
    """A linear layer, and functions of torch's of it."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.layer(x))


def in_place(x):
    y = x.clone()
    y += 1
    y.mul_(2)
    y[:, 0], y[x > 0] = 0.5, 3.0
    y.index_copy_(1, torch.tensor([3, 1]), x[:, :2])
    return F.relu(y.masked_fill_(x < 0, -0.5), inplace=True) + y


def integers(x):
    y = x * (torch.arange(4) // 2).cumsum(0) / torch.arange(1, 5) + torch.arange(4) * 0.5 + torch.exp(torch.arange(4))
    return y + F.one_hot(torch.arange(4), 4)[:2].float() + (torch.arange(4) + 0) + (1.0 - (torch.arange(4) > 1).float())


def moves(x):
    first, second = x.split(2, 1)
    y = torch.cat([second, first.flip(1)], 1).roll(1, 0) + torch.zeros_like(x) + torch.ones(2, 4).tril()
    y = y + x.split([1, 3], 1)[1].sum() + x.unbind(1)[0][:, None] + x.chunk(3, 1)[0].sum()
    y = y + x.tensor_split(2, 1)[0].sum()
    y = y + x[:1].expand(2, -1) + x.repeat(2, 3).repeat_interleave(2, 1)[:2, :4] + x.unflatten(1, (2, 2)).flatten(1)
    y = y + F.pad(x[None], (2, 1), mode="reflect")[0, :, :4] + F.pad(x, (-1, 1, 0, 0), value=1.5)
    return y + F.interpolate(x[None, None], scale_factor=2)[0, 0, :2, :4] + x.rot90()[:2, :1]


def choices(x):
    y = torch.where(x > 0, x, 0.0) + x.where(x > 0.5, x * 2) + x.gather(1, x.argsort(1))
    y = y + x.sort(1, descending=True)[0] + x.topk(4).values + x.max(1, keepdim=True)[0] + torch.max(x, x * 2)
    return y + x[torch.tensor([0, 1])] + x[[1, 0]] + x[:, [0, 1, 1, 3]] + x.clamp(min=x.mean()) + x.amin(1, True)


def pools(x):
    y = F.max_pool1d(x[None], 2, ceil_mode=True).mean() + F.avg_pool1d(x[None], 3, 2, 1)[0]
    y = (
        y
        + F.adaptive_avg_pool1d(x[None], 2)[0]
        + F.normalize(x)[:, :2]
        + F.conv1d(x[:, None], torch.ones(1, 1, 3))[:, 0]
    )
    return y + (1.0 - x[:, :2]) + 2.0 / (x[:, :2] ** 2 + 1) + x.norm(dim=1, keepdim=True) + x.std(1, keepdim=True)


def activations(x):
    y = F.leaky_relu(x) + F.hardswish(x) + F.hardsigmoid(x) + F.elu(x) + F.selu(x) + F.celu(x) + F.relu6(x)
    y = y + F.hardtanh(x) + F.mish(x) + F.glu(x).sum() + F.logsigmoid(x) + F.softsign(x) + F.tanhshrink(x) + abs(x)
    return y + F.tanh(x) + F.sigmoid(x) + F.prelu(x, torch.tensor([0.1, 0.2, 0.3, 0.4]))


FUNCTIONS = in_place, integers, moves, choices, pools, activations


def with_gradients(model, function, x):
    y = function(x)
    return [y, *torch.autograd.grad(y.sum(), [*model.parameters()])]


@pytest.mark.parametrize("function", usually([f for f in FUNCTIONS if f is not pools], FUNCTIONS))
def test_functions_of_torch_are_replaced(function):
    """Near torch's numbers and gradients."""
    torch.manual_seed(3)
    model, x = Calls(function), torch.randn(2, 4)
    near = with_gradients(model, model, x)
    for ours, theirs in zip(with_gradients(model, qtorch.reproducible.convert(model), x), near, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_torch_are_replaced_where_dynamo_traces(function):
    torch.manual_seed(3)
    model, x = qtorch.reproducible.convert(Calls(function)), torch.randn(2, 4)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_all_same_bits(with_gradients(model, compiled, x), with_gradients(model, model, x))


REFUSED = {
    "index names a place twice": lambda x: x.index_copy(0, torch.tensor([0, 0]), x),
    "rand, whose numbers": lambda x: x * torch.rand(2, 4),
    "bernoulli_, whose numbers": lambda x: x * x.new_empty(4).bernoulli_(0.5),
    "cumsum, whose order": lambda x: x.cumsum(0),
    "linspace, whose order": lambda x: x * torch.linspace(0, 1, 4),
    "half, whose order": lambda x: x.half(),
    "to: from torch.float32 to torch.float64": lambda x: x.to(torch.float64),
    "mul_: the result has dtype": lambda x: torch.arange(4).mul_(x[0]),
    "arange: step": lambda x: x * torch.arange(0, 1, 0.25),
    "index has no defined bits": lambda x: x.clone().__setitem__(torch.tensor([0, 0]), x[0]),
    "mode='bilinear'": lambda x: F.interpolate(x[None, None], 4, mode="bilinear"),
    "windows of several sizes": lambda x: F.adaptive_avg_pool1d(x[None], 3),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_row_is_refused_by_name(words):
    model = qtorch.reproducible.convert(Calls(REFUSED[words]))
    with pytest.raises((TypeError, ValueError), match=f"the model itself calls .*{words}.*; allowed"):
        model(torch.ones(2, 4))


def test_dynamo_tells_the_guard_of_all_functions():
    """Of those, too, that it takes for functions that nothing overrides."""
    for function in (F.hardswish, F.tanh, torch.rand_like, torch._C._nn.hardswish):
        torch._dynamo.reset()
        model = qtorch.reproducible.convert(Calls(function))
        compiled, x = torch.compile(model, backend="eager", fullgraph=True), torch.full((2, 4), 0.7)
        if function in (F.hardswish, F.tanh):
            assert_same_bits(compiled(x), model(x))
        else:
            with pytest.raises(torch._dynamo.exc.Unsupported, match=function.__name__):
                compiled(x)
