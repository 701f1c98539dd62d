"""Layers in scans: first and last by iteration, delayed scales of each, and the bits of the model written out.

Gradients of sums are compared, not the sums, whose order is XLA's.
"""

from collections import Counter
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from support import assert_all_same_bits, assert_same_bits, assert_same_trees

from qcore import RECIPES, Entry, Product, Recipe
from qcore.linalg.operands import Operand, Scale
from qjax.linalg import ScalingState
from qjax.recipes import first_scaling, lower, report

RNG = np.random.default_rng(0)
LAYERS, WIDTH = 4, 8
KEPT, OF_GRADIENT = (Operand(number, scale=Scale(history=2)) for number in ("e4m3fn:saturate", "e5m2:saturate"))
BACKWARD = Product(OF_GRADIENT, KEPT)
DELAYED = Recipe([Entry("*", "linear", Product(KEPT, KEPT), BACKWARD, BACKWARD)])
LOW, HALF = Product("e4m3fn", "e4m3fn"), Product("bfloat16", "bfloat16")
ENDS = Recipe([Entry("*", "linear", first=1), Entry("*", "linear", HALF, last=2), Entry("*", "linear", LOW)])
PARAMS = {
    "a": jnp.float32(0.3 * RNG.standard_normal((LAYERS, WIDTH, 2 * WIDTH))),
    "b": jnp.float32(0.3 * RNG.standard_normal((LAYERS, 2 * WIDTH, WIDTH))),
}
X = jnp.float32(RNG.standard_normal((5, WIDTH)))


def block(h, a, b):
    return h + jnp.tanh(h @ a) @ b


def slices(p, indices=range(LAYERS)):
    return [(p["a"][i], p["b"][i]) for i in indices]


def unrolled(p, x, order=range(LAYERS)):
    for weights in slices(p, order):
        x = block(x, *weights)
    return jnp.sum(x**2)


def scanned(p, x, wrap=lambda f: f, **options):
    step = wrap(lambda x, weights: (block(x, *weights), None))
    return jnp.sum(jax.lax.scan(step, x, (p["a"], p["b"]), **options)[0] ** 2)


def counted(p, x):
    return jnp.sum(jax.lax.fori_loop(0, LAYERS, lambda i, x: block(x, p["a"][i], p["b"][i]), x) ** 2)


def nested(p, x):
    groups = [w.reshape(2, 2, *w.shape[1:]) for w in (p["a"], p["b"])]
    inner = lambda x, weights: (block(x, *weights), None)  # noqa: E731
    return jnp.sum(jax.lax.scan(lambda x, group: (jax.lax.scan(inner, x, group)[0], None), x, groups)[0] ** 2)


def repeated(p, x):
    """A scan over nothing, in whose first and only iteration the layers are."""
    return jax.lax.scan(lambda total, x: (total + scanned(p, x), None), 0.0, x[None])[0]


SPELLINGS = {
    "scan": scanned,
    "checkpoint": partial(scanned, wrap=jax.checkpoint),
    "reverse": partial(scanned, reverse=True),
    "fori_loop": counted,
    "nested": nested,
    "around": repeated,
}


def spellings(quick):
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name == quick else pytest.mark.heavy) for name in SPELLINGS]
    )


def written_out(name):
    return partial(unrolled, order=range(LAYERS)[::-1]) if name == "reverse" else unrolled


def shares(table):
    found = Counter()
    for one in table:
        found[one.products] += one.multiply_adds
    return found


@spellings("nested")
def test_first_and_last_are_iterations(name):
    """Of two layers an iteration the first of the first and both of the last differ from all others."""
    fn, expected = lower(SPELLINGS[name], ENDS), lower(written_out(name), ENDS)
    found, wanted = (jax.jit(jax.grad(each))(PARAMS, X) for each in (fn, expected))
    assert_same_trees(found, wanted)
    rows, lines = report(fn, PARAMS, X), report(expected, PARAMS, X)
    assert rows.lowered == lines.lowered == 5 / 8
    assert shares(rows) == shares(lines)
    adds = 5 * WIDTH * 2 * WIDTH
    assert [one.multiply_adds // adds for one in rows] == [1, 3, 2, 1, 1]


@spellings("reverse")
def test_delayed_scales_of_each_iteration(name):
    fn, expected = lower(SPELLINGS[name], DELAYED), lower(written_out(name), DELAYED)
    states, lines = first_scaling(fn, PARAMS, X), first_scaling(expected, PARAMS, X)
    lead = (2, 2) if name == "nested" else (LAYERS,)
    assert [one.shape for one in states] == [(*lead, 3, 3)] * 2
    steps = [jax.jit(jax.grad(lambda p, s, f=f: f(p, X, scaling=s), (0, 1))) for f in (fn, expected)]
    for _ in range(2):
        (of_p, states), (of_same, lines) = steps[0](PARAMS, states), steps[1](PARAMS, lines)
        assert_same_trees(of_p, of_same)
        order = slice(None, None, -1 if name == "reverse" else 1)
        for i, state in enumerate(states):
            assert_all_same_bits(np.asarray(state).reshape(LAYERS, 3, 3)[order], lines[i::2])


@pytest.mark.heavy
def test_formats_of_iterations_may_have_states_or_none():
    recipe = Recipe([Entry("*", "linear", first=1), *DELAYED.entries])
    fn = lower(scanned, recipe)
    states = first_scaling(fn, PARAMS, X)
    after = jax.grad(lambda s: fn(PARAMS, X, scaling=s))(states)
    assert isinstance(after[0], ScalingState)
    assert_same_bits(after[0][0], states[0][0])  # the first layer is wide, and its state stays
    assert (np.asarray(after[0])[1:, :, 1] > 0).all()
    two = Product(*(Operand("e4m3fn", scale=Scale(history=3)),) * 2)
    mixed = Recipe([Entry("*", "linear", two, two, two, first=1), *DELAYED.entries])
    with pytest.raises(
        ValueError, match="delayed scales of histories 2, 3 in iterations of a scan; allowed is one history"
    ):
        first_scaling(lower(scanned, mixed), PARAMS, X)


def test_microbatches_in_the_function_share_their_layers():
    """Weights that a scan does not slice are one layer, with one state: the largest magnitude of all microbatches."""

    def loss(p, xs):
        return jax.lax.scan(lambda total, x: (total + jnp.sum((x @ p["w"]) ** 2), None), 0.0, xs)[0]

    w, xs = {"w": PARAMS["a"][0]}, jnp.stack([X, 3 * X, 2 * X])
    fn = lower(loss, DELAYED)
    (state,) = first_scaling(fn, w, xs)
    assert state.shape == (3, 3)
    for given in (state, state.array):  # a bare array too, within a function
        (after,) = jax.grad(lambda s: fn(w, xs, scaling=s))([given])
        assert after[0, 1] == 3 * np.abs(X).max()
    assert [one.multiply_adds for one in report(fn, w, xs)] == [3 * 5 * WIDTH * 2 * WIDTH]
    last = Recipe([Entry("*", "linear", last=1), *DELAYED.entries])
    with_head = lambda p, xs: loss(p, xs) + jnp.sum(xs[0] @ p["head"])  # noqa: E731
    rows = report(lower(with_head, last), w | {"head": PARAMS["a"][1]}, xs)
    assert [one.products is None for one in rows] == [False, True]


def test_layers_of_while_loops_are_one_and_a_warning_says_so():
    def fn(p, x):
        step = lambda state: (state[0] + 1, block(state[1], p["a"][state[0]], p["b"][state[0]]))  # noqa: E731
        return jax.lax.while_loop(lambda state: state[0] < LAYERS, step, (0, x))[1]

    with pytest.warns(UserWarning, match="in a while_loop .* counts as one layer .* Allowed is scan"):
        lower(fn, ENDS)(PARAMS, X)


class Linen(linen.Module):
    scan: bool

    @linen.compact
    def __call__(self, x):
        if self.scan:
            dense = linen.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
            return dense(name="stack")(x, None)[0]
        for i in range(LAYERS):
            x, _ = Block(name=f"stack{i}")(x, None)
        return x


class Block(linen.Module):
    @linen.compact
    def __call__(self, x, _):
        return jnp.tanh(linen.Dense(WIDTH, use_bias=False)(x)), None


W = PARAMS["a"][:, :, :WIDTH]


def of_linen(is_scanned):
    if is_scanned:
        return lambda w, x: Linen(True).apply({"params": {"stack": {"Dense_0": {"kernel": w}}}}, x)
    return lambda w, x: Linen(False).apply(
        {"params": {f"stack{i}": {"Dense_0": {"kernel": w[i]}} for i in range(LAYERS)}}, x
    )


def of_nnx(is_scanned):
    graph, _ = nnx.split(nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=nnx.Rngs(0)))

    def layer(w):
        return nnx.merge(graph, nnx.State({"kernel": nnx.Param(w)}))

    def fn(w, x):
        if is_scanned:
            step = nnx.scan(lambda layer, x: jnp.tanh(layer(x)), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            return step(layer(w), x)
        for i in range(LAYERS):
            x = jnp.tanh(layer(w[i])(x))
        return x

    return fn


def of_equinox(is_scanned):
    layer = eqx.nn.Linear(WIDTH, WIDTH, use_bias=False, key=jax.random.key(0))

    def step(x, w):
        return jnp.tanh(jax.vmap(eqx.tree_at(lambda one: one.weight, layer, w))(x)), None

    def fn(w, x):
        if is_scanned:
            return jax.lax.scan(jax.checkpoint(step), x, w)[0]
        for i in range(LAYERS):
            x, _ = step(x, w[i])
        return x

    return fn


@pytest.mark.heavy
@pytest.mark.parametrize("make", [of_linen, of_nnx, of_equinox])
def test_layers_of_frameworks(make):
    for recipe, key in ((RECIPES["deepseek_v3_fp8"], {}), (RECIPES["nvfp4_pretraining"], {"key": jax.random.key(1)})):
        pair = [lower(make(is_scanned), recipe) for is_scanned in (True, False)]
        tables = [report(fn, W, X) for fn in pair]
        assert tables[0].lowered == tables[1].lowered >= 0.5
        assert_same_bits(*(jax.jit(fn)(W, X, **key) for fn in pair))
    pair = [lower(make(is_scanned), DELAYED) for is_scanned in (True, False)]
    states = [first_scaling(fn, W, X) for fn in pair]
    found = [
        jax.jit(jax.grad(lambda w, s, fn=fn: jnp.sum(fn(w, X, scaling=s) ** 2), (0, 1)))(W, each)
        for fn, each in zip(pair, states, strict=True)
    ]
    assert_same_bits(found[0][0], found[1][0])
    assert_all_same_bits(found[0][1][0], found[1][1])
