"""Defined float32 functions and their gradients: the same bits in NumPy, torch, compiled torch, JAX and jitted JAX."""

from functools import cache
from operator import mul, truediv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import some
from numerics_support import CASES, by_jax, by_numpy, by_torch, numbers, with_gradient
from support import assert_all_same_bits, assert_same_bits

import qcore.reproducible
import qjax
import qtorch
from qcore.cli.functions import differing, hard_inputs
from qcore.reproducible import Names

IN_PROGRAMS = ("gelu", "layer_norm", "softmax")


@cache
def expected(index):
    return by_numpy(*CASES[index][1:])


@pytest.mark.parametrize("index", range(len(CASES)), ids=[name for name, *_ in CASES])
def test_torch(index):
    assert_all_same_bits(by_torch(*CASES[index][1:]), expected(index))


@pytest.mark.parametrize("distance", [4, pytest.param(1, marks=pytest.mark.heavy)])
def test_jax_in_one_program(distance):
    """Many functions at once, so that XLA may rewrite each with the others in sight; heavy tests take all."""
    chosen = range(0, len(CASES), distance)
    given = [CASES[i][2] for i in chosen]
    found = jax.jit(lambda given: [by_jax(CASES[i][1], arrays) for i, arrays in zip(chosen, given, strict=True)])(given)
    for i, results in zip(chosen, found, strict=True):
        assert len(results) == len(expected(i)), CASES[i][0]
        assert_all_same_bits(results, expected(i))


@pytest.mark.heavy
def test_jax_without_jit():
    index = [case[0] for case in CASES].index("softmax")
    with jax.disable_jit():
        assert_all_same_bits(by_jax(*CASES[index][1:]), expected(index))


def _compiled_agrees(names):
    chosen = [(i, case) for i, case in enumerate(CASES) if case[0] in names]
    given = [[torch.from_numpy(np.array(x)) for x in case[2]] for _, case in chosen]
    floats = [x.requires_grad_() for arrays in given for x in arrays if x.dtype is torch.float32]

    @torch.compile(fullgraph=True)
    def program(given):
        return [case[1](qtorch.reproducible, *arrays) for (_, case), arrays in zip(chosen, given, strict=True)]

    results = program(given)
    gradients = iter(torch.autograd.grad(results, floats, [torch.from_numpy(with_gradient(y.shape)) for y in results]))
    for (i, (name, *_)), y, arrays in zip(chosen, results, given, strict=True):
        found = [y.detach(), *(next(gradients) for x in arrays if x.dtype is torch.float32)]
        assert len(found) == len(expected(i)), name
        assert_all_same_bits(found, expected(i))


@pytest.mark.heavy  # .ci/run takes this one
def test_torch_compiled():
    _compiled_agrees(IN_PROGRAMS)


@pytest.mark.heavy
def test_all_of_torch_compiled():
    names = [name for name, *_ in CASES if name not in ("statistics", "normalize")]  # some of whose gradients are None
    for i in range(0, len(names), 8):
        torch._dynamo.reset()
        _compiled_agrees(names[i : i + 8])


def _temptations(xp, a, b, c, magic, near):
    """What compilers would contract, rewrite, fold, drop or flush."""
    e = xp.float32(xp.exp(xp.float64(a)))
    return {
        "contraction": xp.add(xp.mul(a, b), c),
        "contraction with a constant": xp.sub(c, xp.mul(b, 0.1)),
        "contraction in float64": xp.float32(
            xp.product(xp.float64(a) * xp.float64(b), xp.float64(c)) - xp.float64(near)
        ),
        "folded factors": xp.mul(xp.mul(a, 0.1), 0.3),
        "folded terms": xp.add(xp.add(a, 0.1), 0.3),
        "a term there and back": xp.sub(xp.add(a, magic), magic),
        "a number there and back": xp.sub(xp.add(a, 12582912.0), 12582912.0),
        "division by a constant": xp.div(a, 255.0),
        "division by one number": xp.div(a, magic),
        "division by a row": xp.div(a.reshape((-1, 64)), b[:64]).reshape((-1,)),
        "division by a root": xp.div(a, xp.sqrt(abs(b))),
        "a dropped rounding": xp.sums(e, None, (0,)),
        "flushing": xp.add(xp.mul(a, 2e-38), xp.mul(b, 3e-38)),
    }


def test_compilers_keep_the_law():
    """Red when a new XLA or Inductor contracts, rewrites or flushes where the law relies on its not doing so."""
    arrays = _tempting()
    right, by_xla = _tempted(Names, qjax.reproducible.Names, arrays)
    compiled = torch.compile(lambda *arrays: _temptations(qtorch.reproducible.Names, *arrays), fullgraph=True)
    for found in (by_xla, compiled(*map(torch.from_numpy, arrays))):
        for name, y in right.items():
            assert_same_bits(found[name], y, name)


def _tempting():
    rng = np.random.default_rng(6)
    a, b, c = (rng.normal(size=1 << 14).astype(np.float32) for _ in range(3))
    return [a, b, c, np.float32([12582912.0]), a * b * c]  # the last one nearly cancels a product


def _tempted(of_numpy, of_jax, arrays):
    """What NumPy and XLA make of it."""

    def traced(*arrays):
        with of_jax.arithmetic():
            return _temptations(of_jax, *arrays)

    with Names.arithmetic():
        return _temptations(of_numpy, *arrays), jax.jit(traced)(*map(jnp.asarray, arrays))


def test_xla_breaks_the_law_where_nothing_keeps_it():
    """The test above can fail: without choices, and without float64 in divisions, XLA does most of what tempts it."""
    plain = {"settled": staticmethod(lambda x: x), "product": staticmethod(mul), "div": staticmethod(truediv)}
    bare = [type("Bare", (one,), plain | {"sqrt": one.root}) for one in (Names, qjax.reproducible.Names)]
    right, found = _tempted(*bare, _tempting())
    broken = {name for name, y in right.items() if (np.asarray(found[name]) != y).any()}
    assert broken >= set(right) - {"a term there and back", "a dropped rounding"}


@some((0, 0), (1, 1), package=["qtorch", "qjax"], compiled=[False, True])
def test_hard_inputs(package, compiled):
    rows = [*differing(package, compiled)]
    assert {name for name, *_ in rows} == {*hard_inputs()}
    assert not any(len(wrong) for *_, wrong in rows)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(decoupled):
    """Three steps with clipping and a schedule; a gradient so small that its square is flushed."""
    rng = np.random.default_rng(8)
    start, gradients = numbers(rng, 40), [numbers(rng, 40) for _ in range(3)]
    schedule = qcore.reproducible.Cosine(1e-2, 10, 2)
    p, moments = start, [np.zeros_like(start)] * 2
    for i, g in enumerate(gradients):
        (g,), _ = qcore.reproducible.clip_by_norm([g], 0.5)
        rate = qcore.reproducible.rate(schedule, np.float32(i)[...])
        options = {"weight_decay": 0.1, "decoupled": decoupled}
        p, *moments = qcore.reproducible.adam_step(p, g, *moments, np.float32(i + 1)[...], rate, **options)

    q = torch.nn.Parameter(torch.from_numpy(start.copy()))
    room = qtorch.reproducible
    optimizer = (room.AdamW if decoupled else room.Adam)([q], weight_decay=0.1)
    for i, g in enumerate(gradients):
        q.grad = torch.from_numpy(g.copy())
        room.clip_grad_norm_([q], 0.5)
        optimizer.param_groups[0]["lr"] = room.rate(schedule, torch.tensor(float(i)))
        optimizer.step()
    assert_same_bits(q, p)
    assert_same_bits(optimizer.state[q]["exp_avg_sq"], moments[1])

    room = qjax.reproducible
    own = (room.adamw if decoupled else room.adam)(weight_decay=0.1)

    @jax.jit
    def step(p, g, state, i):
        (g,), _ = room.clip_by_norm([g], 0.5)
        return own.step({"p": p}, {"p": g}, state, room.rate(schedule, i))

    r, state = jnp.asarray(start), own.init({"p": jnp.asarray(start)})
    for i, g in enumerate(gradients):
        tree, state = step(r, g, state, jnp.float32(i))
        r = tree["p"]
    assert_same_bits(r, p)


@pytest.mark.parametrize("name", ["gelu", "silu", "var", "logsumexp", "layer_norm", "cross_entropy", "pow"])
def test_gradients_are_those_of_the_function(name):
    """Beside torch's own gradients in float64."""
    rng = np.random.default_rng(9)
    x, w, b = (torch.from_numpy(rng.uniform(0.5, 2, (4, 6)).astype(np.float32)) for _ in range(3))
    target = torch.tensor([0, 5, 2, 2])
    own, theirs = {
        "gelu": (lambda r: r.gelu(x), lambda x, w, b: torch.nn.functional.gelu(x)),
        "silu": (lambda r: r.silu(x), lambda x, w, b: torch.nn.functional.silu(x)),
        "var": (lambda r: r.var(x, 1), lambda x, w, b: torch.var(x, 1)),
        "logsumexp": (lambda r: r.logsumexp(x, 0), lambda x, w, b: torch.logsumexp(x, 0)),
        "layer_norm": (
            lambda r: r.layer_norm(x, w[0], b[0]),
            lambda x, w, b: torch.nn.functional.layer_norm(x, (6,), w[0], b[0]),
        ),
        "cross_entropy": (
            lambda r: r.cross_entropy(x, target),
            lambda x, w, b: torch.nn.functional.cross_entropy(x, target),
        ),
        "pow": (lambda r: r.pow(x, w), lambda x, w, b: x**w),
    }[name]
    floats = [t.requires_grad_() for t in (x, w, b)]
    doubles = [t.detach().double().requires_grad_() for t in floats]
    y, z = own(qtorch.reproducible), theirs(*doubles)
    torch.testing.assert_close(y.double(), z, rtol=1e-5, atol=1e-6)
    g = torch.from_numpy(with_gradient(tuple(y.shape)))
    for a, c in zip(
        torch.autograd.grad(y, floats, g, allow_unused=True),
        torch.autograd.grad(z, doubles, g.double(), allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (c is None)
        if a is not None:
            torch.testing.assert_close(a.double(), c, rtol=1e-4, atol=1e-5)


def test_wrong_arrays_are_named():
    x = np.ones(2, np.float32)
    for package, xp in ((qcore.reproducible, np), (qtorch.reproducible, torch), (qjax.reproducible, jnp)):
        one = xp.asarray(x)
        with pytest.raises(TypeError, match=r"^b is a float; allowed is a .*of float32$"):
            package.add(one, 1.0)
        with pytest.raises(TypeError, match=r"^a is an? (array|tensor) of (torch.)?float16; allowed .*of float32$"):
            package.multiply(xp.asarray(x.astype(np.float16)), one)
        with pytest.raises(TypeError, match=r"^x is a list; allowed"):
            package.exp([1.0])
