"""qjax.auto_low.lower against the same programs with quantizers put in by hand: values and gradients, bit for bit.

Data are small integers, so that every product is exact however XLA fuses it.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial, reduce

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.custom_derivatives import SymbolicZero
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxprs_in_params
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec
from support import assert_same_bits

import qjax
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Quantization, Rule
from qjax.auto_low import lower
from qjax.auto_low.groups import GROUPS

F, G = FloatingPoint(5, 1), FloatingPoint(5, 2)
NEAREST = {"forward_rounding": "nearest", "backward_rounding": "nearest"}
STOCHASTIC = {"forward_rounding": "stochastic", "backward_rounding": "stochastic"}
ROUNDINGS = pytest.mark.parametrize("rounding", [NEAREST, STOCHASTIC], ids=["nearest", "stochastic"])
KEY = jax.random.key(5)


@pytest.fixture(autouse=True)
def compile_quickly():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def integers(shape, seed=0, bound=4):
    return jnp.float32(np.random.default_rng(seed).integers(-bound, bound + 1, shape))


def key_at(path, key=KEY):
    """The key of laws: each number folded in after the other."""
    return reduce(jax.random.fold_in, path, key)


def by_hand(**arguments):
    """What a program calls where a layer ends: q(output, *numbers)."""
    quantizer = qjax.quantizer(**arguments)
    return lambda y, *path: quantizer(y, key_at(path))


def identity(y, *path):
    return y


def assert_same_trees(actual, expected):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual) == len(expected) > 0
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


def value_and_gradients(fn):
    """The results of fn, and the gradients of a sum of them with integer weights."""

    def run(*args):
        y, backward = jax.vjp(fn, *args)
        return y, backward(jax.tree.map(lambda leaf: integers(leaf.shape, 9, 40), y))

    return run


def check(program, *args, rounding=NEAREST, gradients=True, **options):
    """program(q)(*args): lowered where q is the identity, it has the bits that it has with a quantizer as q."""
    arguments = {"forward_number": F, "backward_number": G} | rounding
    run = value_and_gradients if gradients else lambda fn: fn
    expected = jax.jit(run(program(by_hand(**arguments))))(*args)
    lowered = run(partial(lower(program(identity), **arguments, **options), key=KEY))
    assert_same_trees(jax.jit(lowered)(*args), expected)
    if rounding is NEAREST:
        assert_same_trees(lowered(*args), expected)
    for one, other in zip(expected, jax.jit(run(program(identity)))(*args), strict=True):
        assert (ravel_pytree(one)[0] != ravel_pytree(other)[0]).any()


def layer(q, w, x, *path):
    return q(x @ w, *path)


W, X = integers((4, 4), 1), integers((3, 4), 2)


# Models


class Block(linen.Module):
    q: Callable

    @linen.compact
    def __call__(self, x, i):
        return jax.nn.relu(self.q(linen.Dense(4)(x), 1, i, 0)), None


class Linen(linen.Module):
    q: Callable

    @linen.compact
    def __call__(self, x):
        x = jax.nn.relu(self.q(linen.Conv(4, (3,))(x), 0))
        blocks = linen.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        x, _ = blocks(self.q)(x, jnp.arange(3))
        return self.q(linen.DenseGeneral((2, 3))(x), 2)


@ROUNDINGS
def test_flax_linen(rounding):
    x = integers((2, 5, 3), bound=2)
    params = Linen(identity).init(jax.random.key(0), x)
    params = jax.tree.map(lambda p: integers(p.shape, p.size, 1), params)
    check(lambda q: Linen(q).apply, params, x, rounding=rounding)


class Recurrent(nnx.Module):
    """nnx's cell, scanned by nnx; q is told of one layer more before each of its outputs."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, use_bias=False, rngs=rngs)
        self.inside, self.carried = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, use_bias=False, rngs=rngs)

    def __call__(self, x, q):
        x = q(self.first(x), 0)

        @nnx.scan(in_axes=(None, nnx.Carry, 0, 0), out_axes=(nnx.Carry, 0))
        def cells(self, h, x, i):
            h = jax.nn.relu(q(self.inside(x), 1, i, 0) + q(self.carried(h), 1, i, 1))
            return h, h

        h, states = cells(self, jnp.zeros_like(x[0]), x, jnp.arange(len(x)))
        return q(self.last(states), 2), h


@ROUNDINGS
def test_flax_nnx(rounding):
    graph, state = nnx.split(Recurrent())
    state = jax.tree.map(lambda p: integers(p.shape, p.size, 1), state)
    x = integers((3, 2, 3), 1, 2)
    check(lambda q: lambda state, x: nnx.merge(graph, state)(x, q), state, x, rounding=rounding)
    model = nnx.merge(graph, state)
    if rounding is NEAREST:
        expected = model(x, by_hand(forward_number=F, **NEAREST))
        lowered = lower(lambda model, x: model(x, identity), forward_number=F, **NEAREST)
        assert_same_trees(lowered(model, x), expected)


class Equinox(eqx.Module):
    first: eqx.nn.Conv1d
    stack: eqx.nn.Linear
    last: eqx.nn.Linear
    activation: Callable = jax.nn.relu

    def __init__(self):
        self.first, self.last = eqx.nn.Conv1d(2, 3, 2, key=KEY), eqx.nn.Linear(4, 3, key=KEY)
        self.stack = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 4, key=key))(jax.random.split(KEY, 2))

    def __call__(self, x, q):
        x = self.activation(q(self.first(x), 0))
        arrays, rest = eqx.partition(self.stack, eqx.is_array)

        def block(x, slices):
            layer, i = eqx.combine(slices[0], rest), slices[1]
            return self.activation(q(jax.vmap(layer)(x), 1, i, 0)), None

        x, _ = jax.lax.scan(block, x, (arrays, jnp.arange(2)))
        return q(jax.vmap(self.last)(x), 2)


@ROUNDINGS
def test_equinox(rounding):
    model = jax.tree.map(lambda p: integers(p.shape, p.size, 1) if eqx.is_array(p) else p, Equinox())
    arrays, rest = eqx.partition(model, eqx.is_array)
    x = integers((2, 5), 3, 2)
    check(lambda q: lambda arrays, x: eqx.combine(arrays, rest)(x, q), arrays, x, rounding=rounding)
    expected = model(x, by_hand(forward_number=F, **rounding))
    assert_same_trees(lower(model, forward_number=F, **rounding)(x, identity, key=KEY), expected)
    lowered = lower(lambda model, x: model(x, identity), forward_number=F, **rounding)
    assert_same_trees(lowered(model, x, key=KEY), expected)
    assert_same_trees(eqx.filter_jit(lowered)(model, x, key=KEY), expected)


# Control flow and transformations


def scan(q, **options):
    def program(w, x):
        def step(carry, i):
            y = jax.nn.relu(layer(q, w, carry, 1, i, 0))
            return layer(q, w, y, 1, i, 1), y

        x = layer(q, w, x, 0)
        carry, ys = jax.lax.scan(step, x, jnp.arange(3), **options)
        return layer(q, w, carry, 2), ys

    return program


def fori(q):
    return lambda w, x: jax.lax.fori_loop(0, 3, lambda i, x: layer(q, w, x, 0, i, 0), x)


def switch(q):
    def program(w, x):
        branches = [lambda x: layer(q, w, layer(q, w, x, 0, 0), 0, 1), lambda x: layer(q, w + 1, x, 0, 0)]
        y = jax.lax.switch((x[0, 0] > 100).astype(int), branches, x)
        return y, layer(q, w, x, 1)

    return program


def conditional(q):
    def program(w, x):
        y = jax.lax.cond(x.sum() > 1e6, lambda x: x, lambda x: layer(q, w, layer(q, w, x, 0, 0), 0, 1), x)
        z = jax.lax.cond(x.sum() > 1e6, lambda x: x, lambda x: 2 * x, x)  # holds no layer and takes no number
        return layer(q, w, y + z, 1)

    return program


def looked_through(wrap):
    """jit and checkpoint change no number."""

    def program(q):
        inner = wrap(lambda w, x: layer(q, w, jax.nn.relu(layer(q, w, x, 1)), 2))
        return lambda w, x: layer(q, w, inner(w, layer(q, w, x, 0)), 3)

    return program


def vmapped(q):
    """The batch is part of the one product, so q gets it whole."""
    return lambda w, x: q(x @ w, 0) if q is not identity else jax.vmap(lambda row: row @ w)(x)


PROGRAMS = {
    "scan": scan,
    "scan backwards": partial(scan, reverse=True),
    "fori_loop": fori,
    "switch": switch,
    "cond": conditional,
    "jit": looked_through(jax.jit),
    "checkpoint": looked_through(jax.checkpoint),
    "checkpoint that saves": looked_through(partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)),
    "checkpoint of jit": looked_through(lambda f: jax.checkpoint(jax.jit(jax.jit(f)), prevent_cse=False)),
    "vmap": vmapped,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_constructs(name):
    check(PROGRAMS[name], W, X)


@pytest.mark.parametrize("name", ["scan backwards", "fori_loop", "switch", "cond", "checkpoint of jit", "vmap"])
def test_keys_of_constructs(name):
    check(PROGRAMS[name], W, X, rounding=STOCHASTIC)


@ROUNDINGS
def test_while_loop_and_its_condition(rounding):
    def program(q):
        def condition(state):
            i, x = state
            return (layer(q, w, x, 1, i, 0)[0, 0] < 1e6) & (i < 3)

        def body(state):
            i, x = state
            return i + 1, layer(q, w, x, 1, i, 1)

        w = W
        return lambda x: jax.lax.while_loop(condition, body, (0, layer(q, w, x, 0)))[1]

    check(program, X, rounding=rounding, gradients=False)


def test_the_condition_of_a_while_loop_is_rounded():
    """To multiples of 64, with a key for each round: at 0, 2, 8, 18, 32, 50 the loop ends by chance."""

    def fn(x):
        return jax.lax.while_loop(lambda x: x @ x < 64, lambda x: x + 1, x)

    number, ends = FixedPoint(8, -6), set()
    for seed in range(6):
        key, x, rounds = jax.random.key(seed), jnp.zeros(2), 0
        while qjax.quantize(x @ x, number, key=key_at((0, rounds, 0), key)) < 64:
            x, rounds = x + 1, rounds + 1
        assert_same_bits(lower(fn, forward_number=number)(jnp.zeros(2), key=key), x)
        ends.add(rounds)
    assert len(ends) > 2
    assert_same_bits(lower(fn, forward_number=number, **NEAREST)(jnp.zeros(2)), np.float32([5, 5]))
    assert_same_bits(fn(jnp.zeros(2)), np.float32([6, 6]))


def equations(jaxpr, scope=""):
    """All equations of a jaxpr and of those inside, with their name scopes."""
    for equation in jaxpr.eqns:
        name = f"{scope}/{equation.source_info.name_stack}"
        yield name, equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner, name)


@pytest.mark.parametrize(
    "wrap",
    [
        partial(jax.checkpoint, prevent_cse=False),
        partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable),
        lambda f: lambda w, x: jax.lax.scan(lambda x, _: (f(w, x), None), x, length=4, unroll=2)[0],
        jax.named_scope("outer"),
        set_xla_metadata(tag="tag"),
    ],
)
def test_the_lowered_program_is_the_program(wrap):
    """Its products, what it saves and recomputes, its options and its names, in order."""

    def program(fn):
        kept = ("prevent_cse", "differentiated", "policy", "unroll", "length")
        traced = jax.make_jaxpr(jax.grad(lambda w, x: fn(w, x).sum()))(W, X)
        for name, equation in equations(traced.jaxpr):
            primitive = equation.primitive.name
            if primitive in ("dot_general", "optimization_barrier"):
                yield primitive, "outer" in name, equation.ctx.xla_metadata
            elif kept[0] in equation.params or kept[-1] in equation.params:
                yield primitive, {option: equation.params.get(option) for option in kept}

    fn = wrap(lambda w, x: jnp.square(jnp.square(x @ w) @ w))
    assert list(program(lower(fn, forward_number=F, backward_number=G, **NEAREST))) == list(program(fn))


@pytest.mark.parametrize("prevent_cse", [False, True])
def test_a_backward_pass_in_fn_still_recomputes(prevent_cse):
    """XLA would otherwise find the recomputed product among the first ones."""
    fn = jax.checkpoint(lambda x: jnp.square(jnp.square(x) @ W).sum(), prevent_cse=prevent_cse)
    traced = jax.make_jaxpr(lower(jax.grad(fn), forward_number=F, **NEAREST))(X)
    assert ("optimization_barrier" in str(traced)) == prevent_cse


# Functions with their own derivatives


def own_jvp(symbolic_zeros):
    def program(q):
        @jax.custom_jvp
        def f(w, x, fixed):
            return layer(q, w, jax.nn.relu(layer(q, w, x, 1, 0)), 1, 1) + fixed

        def rule(primals, tangents):
            (w, x, fixed), (dw, dx, dfixed) = primals, tangents
            assert isinstance(dfixed, SymbolicZero) == symbolic_zeros
            return f(w, x, fixed), 100 * (x @ dw) + 10 * dx @ jnp.ones((4, 4))

        f.defjvp(rule, symbolic_zeros=symbolic_zeros)
        return lambda w, x: layer(q, w, f(w, layer(q, w, x, 0), 1.0), 2)

    return program


def own_vjp(symbolic_zeros):
    def program(q):
        def inside(w, x):
            h = layer(q, w, x, 1, 0)
            return layer(q, w, jax.nn.relu(h), 1, 1), h

        @jax.custom_vjp
        def f(w, x, fixed):
            return inside(w, x)[0], x + fixed, jnp.arange(2)

        def forward(w, x, fixed):
            if symbolic_zeros:
                assert (w.perturbed, x.perturbed, fixed.perturbed) == (True, True, False)
                w, x, fixed = w.value, x.value, fixed.value
            y, h = inside(w, x)
            return (y, x + fixed, jnp.arange(2)), (fixed, w, h)

        def backward(saved, grads):
            (fixed, w, h), (g, unused, integers) = saved, grads
            assert isinstance(unused, SymbolicZero) == symbolic_zeros
            assert integers.dtype == jax.dtypes.float0
            return h.T @ g, 100 * g @ w + fixed, None

        f.defvjp(forward, backward, symbolic_zeros=symbolic_zeros)
        return lambda w, x: layer(q, w, f(w, layer(q, w, x, 0), 1.0)[0], 2)

    return program


@ROUNDINGS
@pytest.mark.parametrize("symbolic_zeros", [False, True])
@pytest.mark.parametrize("own", [own_jvp, own_vjp])
def test_own_derivatives_stay_and_values_are_rounded(own, symbolic_zeros, rounding):
    check(own(symbolic_zeros), W, X, rounding=rounding)


@pytest.mark.parametrize("own", [own_jvp, own_vjp])
def test_own_derivatives_inside_other_constructs(own):
    def program(q):
        f = jax.checkpoint(jax.jit(own(False)(q)))
        return lambda w, x: jax.lax.scan(lambda x, _: (jnp.sign(f(w, x)), f(w, x)), x, length=2)

    check(program, W, X)
    check(lambda q: lambda w, x: jax.vmap(own(False)(q), (None, 0))(w, x[:, None]), W, X)


def test_own_derivatives_of_a_function_without_layers():
    @jax.custom_vjp
    def f(x, n):
        return x * n

    f.defvjp(lambda x, n: (x * n, n), lambda n, g: (7 * n * g, None))
    check(lambda q: lambda w, x: f(layer(q, w, x, 0), 3), W, X)


def test_no_gradient_is_dropped_in_silence():
    """JAX refuses gradients of what a custom_vjp function captured; so does the lowered one."""

    def fn(w, x):
        @jax.custom_vjp
        def f(x):
            return x @ w

        f.defvjp(lambda x: (x @ w, None), lambda _, g: (g,))
        return f(x)

    lowered = lower(fn, forward_number=F, **NEAREST)
    assert_same_bits(lowered(W, X), by_hand(forward_number=F, **NEAREST)(X @ W))
    with pytest.raises(Exception, match="closed-over value"):
        jax.grad(lambda w: jax.jit(fn)(w, X).sum())(W)
    with pytest.raises(Exception, match="closed-over value"):
        jax.grad(lambda w: lowered(w, X).sum())(W)


def test_derivatives_inside_fn_are_programs_whose_products_are_layers():
    """lower(grad(f)) against what differentiation makes of f, written out; grad(lower(f)) is something else."""

    def loss(w, x):
        return (jnp.square(x @ w)).sum() / 2

    q = by_hand(forward_number=F, **NEAREST)
    lowered = lower(jax.grad(loss), forward_number=F, **NEAREST)(W, X)
    assert_same_bits(lowered, q(X.T @ q(X @ W)))
    other = jax.grad(lower(loss, forward_number=F, **NEAREST))(W, X)
    assert_same_bits(other, X.T @ q(X @ W))
    assert (lowered != other).any()


@ROUNDINGS
def test_gradients_of_gradients(rounding):
    """In reverse mode, of a function with a quantizer's gradient in its own program."""
    arguments = {"forward_number": F, "backward_number": G} | rounding
    f, q = lower(jnp.matmul, **arguments), by_hand(**arguments)

    def second(f):
        return jax.grad(lambda x: (jax.grad(lambda x: (f(x) ** 2).sum())(x) ** 2).sum())(X)

    assert_same_bits(second(lambda x: f(x, W, key=KEY)), second(lambda x: q(x @ W, 0)))


# vmap, shard_map, named axes


@ROUNDINGS
def test_vmap_of_the_lowered_repeats_the_words_and_takes_a_key_an_example(rounding):
    f, q = lower(lambda w, b, x: w @ x + b, forward_number=F, **rounding), by_hand(forward_number=F, **rounding)
    b = integers(4, 3)
    rows = jnp.stack([q(W @ row + b, 0) for row in X])
    assert_same_bits(jax.vmap(lambda x: f(W, b, x, key=KEY))(X), rows)
    keys = jax.random.split(KEY, 3)
    quantizer = qjax.quantizer(forward_number=F, **rounding)
    rows = [quantizer(W @ row + b, jax.random.fold_in(key, 0)) for row, key in zip(X, keys, strict=True)]
    assert_same_bits(jax.vmap(lambda x, key: f(W, b, x, key=key))(X, keys), jnp.stack(rows))


def test_named_axes():
    f = lower(lambda x: jax.lax.psum(x @ W, "i"), forward_number=F, **NEAREST)
    q = by_hand(forward_number=F, **NEAREST)
    expected = jnp.broadcast_to(q(X @ W).sum(0), (3, 4))
    assert_same_bits(jax.vmap(f, axis_name="i")(X), expected)


@pytest.mark.parametrize(
    ("check_vma", "rounding"), [(False, NEAREST), (True, STOCHASTIC)], ids=["nearest", "stochastic"]
)
def test_shard_map(check_vma, rounding):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = PartitionSpec("i"), PartitionSpec()

    def body(w, x):
        return jax.lax.psum(x @ w, "i") @ w

    program = jax.shard_map(body, mesh=mesh, in_specs=(everywhere, rows), out_specs=everywhere, check_vma=check_vma)
    arguments = {"forward_number": F, "backward_number": G} | rounding
    lowered, q = partial(lower(program, **arguments), key=KEY), by_hand(**arguments)
    x = integers((6, 4), 2)

    def expected(w, x):
        return q(sum(q(half @ w, 0, 0) for half in (x[:3], x[3:])) @ w, 0, 1)

    expected = jax.jit(value_and_gradients(expected))(W, x)
    assert_same_trees(jax.jit(value_and_gradients(lowered))(W, x), expected)
    assert_same_bits(lowered(W, x), expected[0])


def test_shardings_of_an_inner_jit_become_constraints():
    auto = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    columns, rows = (NamedSharding(auto, PartitionSpec(*spec)) for spec in ((None, "i"), ("i", None)))
    inner = jax.jit(jnp.matmul, in_shardings=(None, columns), out_shardings=columns)
    lowered = lower(lambda x, w: inner(x, w), forward_number=F, **NEAREST)
    y = jax.jit(lowered)(X, W)
    assert_same_bits(y, by_hand(forward_number=F, **NEAREST)(X @ W))
    assert y.sharding.is_equivalent_to(columns, 2)
    other = jax.jit(jnp.matmul, in_shardings=(rows, None))
    traced = jax.make_jaxpr(lower(lambda x, w: other(inner(w, w), w), forward_number=F, **NEAREST))(X, W)
    found = [e.params["sharding"] for _, e in equations(traced.jaxpr) if e.primitive.name == "sharding_constraint"]
    assert found == [columns, columns, rows]


def test_options_of_shard_map_stay():
    mesh = jax.make_mesh((2, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = PartitionSpec("i")
    program = jax.shard_map(lambda x: x @ W, mesh=mesh, in_specs=rows, out_specs=rows, axis_names={"i"})
    options = ("mesh", "out_specs", "check_vma", "newly_manual_axes")

    def options_of(fn):
        traced = jax.make_jaxpr(fn)(integers((4, 4)))
        return [[e.params[name] for name in options] for _, e in equations(traced.jaxpr) if "mesh" in e.params]

    assert options_of(lower(program, forward_number=F, **NEAREST)) == options_of(program) != []


# What a layer is


IMAGE = 1.37 * integers((1, 6, 6, 2), 4)

LAYERS = {
    "conv": ("conv", lambda x, q: q(jax.lax.conv(x, jnp.ones((3, 6, 2, 2)), (1, 1), "VALID"))),
    "linear": ("linear", lambda x, q: q(jnp.einsum("bijk,bilk->bijl", x, x))),
    "embedding": ("embedding", lambda x, q: q(x[0, jnp.argmax(x[0, :, 0, 0], keepdims=True)])),
    "max pool": ("pool", lambda x, q: q(linen.max_pool(x, (2, 2)))),
    "average pool": ("pool", lambda x, q: q(linen.avg_pool(x, (2, 2), padding="SAME", count_include_pad=False))),
    "max pool and a division": ("pool", lambda x, q: q(linen.max_pool(x, (2, 2))) / 3),
    "sum pool": (
        "pool",
        lambda x, q: 7 / q(jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1,) * 4, "VALID")),
    ),
    "pad": ("pad", lambda x, q: q(jnp.pad(x, 1, mode="reflect"))),
    "tanh": ("activation", lambda x, q: q(jnp.tanh(x))),
    "relu": ("activation", lambda x, q: q(jax.nn.relu(x))),
    "silu": ("activation", lambda x, q: q(jax.nn.silu(x))),
    "hard_swish": ("activation", lambda x, q: q(jax.nn.hard_swish(x))),
    "softplus": ("activation", lambda x, q: q(jax.nn.softplus(x))),
    "log_softmax": ("activation", lambda x, q: q(jax.nn.log_softmax(x))),
    "jitted softmax": ("activation", lambda x, q: q(jax.jit(jax.nn.softmax)(x))),
    "standardize": ("normalization", lambda x, q: q(jax.nn.standardize(x))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_groups(name):
    group, program = LAYERS[name]
    arguments = {"forward_number": F, "backward_number": G} | NEAREST
    expected, plain = jax.jit(partial(program, q=qjax.quantizer(**arguments))), jax.jit(partial(program, q=identity))
    others = [other for other in GROUPS if other != group]
    assert_same_bits(jax.jit(lower(plain, [group], **arguments))(IMAGE), expected(IMAGE))
    assert_same_bits(jax.jit(lower(plain, others, **arguments))(IMAGE), plain(IMAGE))
    assert (expected(IMAGE) != plain(IMAGE)).any()
    gradient = jax.jit(jax.grad(lambda f, x: (1.3 * f(x)).sum(), argnums=1), static_argnums=0)
    assert_same_bits(gradient(lower(plain, [group], **arguments), IMAGE), gradient(expected, IMAGE))


@pytest.mark.parametrize(
    ("group", "program"),
    [
        ("embedding", lambda x: jnp.take_along_axis(x * x, jnp.int32(x[:1] > 0), 1)),  # of a computed value
        ("embedding", lambda x: x[0, 2, jnp.arange(2)] + jax.lax.dynamic_slice(x, (0, 0, 0, 0), (1, 1, 2, 2))),
        ("pool", lambda x: linen.avg_pool(jnp.ones((1, 4, 4, 1)), (2, 2)) * 3.3 + x[0, 0, 0, 0]),  # of constants
        ("linear", lambda x: x + (jnp.ones((5, 3)) @ jnp.ones(3)).sum()),
        ("activation", lambda x: x + jax.lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c), 1.0)),
        ("linear", lambda x: jnp.int8(x[0, 0]).T @ jnp.int8(x[0, 0])),  # no format's carrier
        ("linear", lambda x: jnp.linalg.solve(x[0, :2, 0] + 9 * jnp.eye(2), x[0, 0, :2])),  # the solver's own
        ("activation", lambda x: jax.nn.softmax(x) + jax.nn.gelu(x, approximate=False)),
    ],
)
def test_no_layers(group, program):
    assert_same_bits(lower(program, [group], F, **NEAREST)(IMAGE), program(IMAGE))


Q = by_hand(forward_number=F, **NEAREST)
B = integers(4, 3) + 0.5
BIASES = {
    "vector": (lambda w, b, x: x @ w + b, lambda w, b, x: Q(x @ w + b)),
    "first": (lambda w, b, x: b + x @ w, lambda w, b, x: Q(b + x @ w)),
    "one example": (lambda w, b, x: w @ x[0] + b, lambda w, b, x: Q(w @ x[0] + b)),
    "transposed": (lambda w, b, x: (w @ x.T).T + b, lambda w, b, x: Q((w @ x.T).T + b)),
    "heads": (
        lambda w, b, x: (x @ w).reshape(3, 2, 2) + b.reshape(2, 2),
        lambda w, b, x: Q((x @ w).reshape(3, 2, 2) + b.reshape(2, 2)),
    ),
    "captured": (lambda w, b, x: x @ w + B, lambda w, b, x: Q(x @ w + B)),
    "of a stack": (lambda w, b, x: x @ w + jnp.stack([b, b])[1], lambda w, b, x: Q(x @ w) + b),
    "in a stack": (lambda w, b, x: x @ w + w[1], lambda w, b, x: Q(x @ w + w[1])),
    "computed": (lambda w, b, x: x @ w + 2 * b, lambda w, b, x: Q(x @ w) + 2 * b),
    "constant": (lambda w, b, x: x @ w + 0.5, lambda w, b, x: Q(x @ w) + 0.5),
    "residual": (lambda w, b, x: x @ w + x, lambda w, b, x: Q(x @ w) + x),
    "used twice": (lambda w, b, x: (lambda y: y + b + y)(x @ w), lambda w, b, x: (lambda y: y + b + y)(Q(x @ w))),
    "of a jitted function": (lambda w, b, x: x @ w + jax.jit(jnp.negative)(b), lambda w, b, x: Q(x @ w) - b),
    "through jit": (lambda w, b, x: x @ w + jax.jit(jnp.ravel)(b), lambda w, b, x: Q(x @ w + b)),
    "moved and used twice": (
        lambda w, b, x: (lambda y: y + b[:2] + y)((x @ w).reshape(3, 2, 2)),
        lambda w, b, x: (lambda y: y + b[:2] + y)(Q(x @ w).reshape(3, 2, 2)),
    ),
    "second": (lambda w, b, x: x @ w + b + b, lambda w, b, x: Q(x @ w + b) + b),
    "subtracted": (lambda w, b, x: x @ w - b, lambda w, b, x: Q(x @ w) - b),
    "widening": (lambda w, b, x: (x @ w)[:, 0] + x, lambda w, b, x: Q(x @ w)[:, 0] + x),
    "widening a row": (lambda w, b, x: (x[:1] @ w) + x, lambda w, b, x: Q(x[:1] @ w) + x),
    "two products": (lambda w, b, x: x @ w + x @ w.T + b, lambda w, b, x: Q(x @ w) + Q(x @ w.T) + b),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases(name):
    program, expected = BIASES[name]
    x = X[:, :4] if name not in ("widening",) else integers((3, 3), 6)
    w = W if name != "widening" else integers((3, 4), 7)
    assert_same_bits(lower(program, forward_number=F, **NEAREST)(w, B, x), expected(w, B, x))


# Weights, rules


def rounded_weight(w, *path, rounding="nearest", number=F):
    return qjax.quantize(w, number, rounding, key=key_at(path))


W7, X7 = integers((4, 4), 7, 20), integers((3, 4), 8, 20)
WEIGHTS = {
    "second of two": (lambda x, w: x @ w, (X7, W7), lambda r, x, w: x @ r(w)),
    "the one of a container": (lambda p, x: p["w"] @ x, ({"w": W7}, X7[0]), lambda r, p, x: r(p["w"]) @ x),
    "of the earlier container": (
        lambda p, b: p["w"] @ b["x"],
        ({"w": W7}, {"x": X7[0]}),
        lambda r, p, b: r(p["w"]) @ b["x"],
    ),
    "captured": (lambda x: W7 @ x, (X7[0],), lambda r, x: r(W7) @ x),
    "captured NumPy": (lambda x: jnp.dot(np.asarray(W7), x), (X7[0],), lambda r, x: r(W7) @ x),
    "no carrier": (
        lambda p, x: jnp.matmul(jnp.int8(p["w"]), jnp.int8(x), preferred_element_type=jnp.float32),
        ({"w": W7}, X7[0]),
        lambda r, p, x: jnp.matmul(jnp.int8(p["w"]), jnp.int8(x), preferred_element_type=jnp.float32),
    ),
    "a container's, not captured data": (lambda p: p[0] @ X7[0], ([W7],), lambda r, p: r(p[0]) @ X7[0]),
    "not computed": (lambda w, x: jax.nn.relu(x) @ w, (W7, X7), lambda r, w, x: jax.nn.relu(x) @ r(w)),
    "no weight": (lambda x: jnp.square(x) @ jnp.square(x).T, (X7,), lambda r, x: jnp.square(x) @ jnp.square(x).T),
    "no layer's output": (
        lambda w, x: (lambda y: y @ y.T)(jnp.square(x) @ w),
        (W7, X7),
        lambda r, w, x: (lambda y: y @ y.T)(jnp.square(x) @ r(w)),
    ),
    "slice, cast": (
        lambda w, x: jnp.square(x) @ jnp.reshape(w[:, 1:3].astype(jnp.bfloat16), (4, 2)),
        (W7, X7),
        lambda r, w, x: jnp.square(x) @ r(w[:, 1:3].astype(jnp.bfloat16)),
    ),
    "kernel": (
        lambda k, x: jax.lax.conv(x, k, (1,), "SAME"),
        (integers((2, 3, 2), 1, 20), X7[None, :, :]),
        lambda r, k, x: jax.lax.conv(x, r(k), (1,), "SAME"),
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name):
    program, args, expected = WEIGHTS[name]
    lowered = lower(program, weight_number=F)
    y, gradients = value_and_gradients(lowered)(*args)
    assert_same_trees((y, gradients), value_and_gradients(partial(expected, rounded_weight))(*args))
    assert name in ("no weight", "no carrier") or (y != program(*args)).any()


def test_weights_have_a_word_of_their_own_and_come_with_outputs():
    def program(p, x):
        return jax.lax.scan(lambda x, w: (x @ w + p["b"], None), x @ p["w"][0], p["w"])[0]

    p = {"w": jnp.stack([W7, W7 + 1]), "b": integers(4, 3)}
    arguments = {"forward_number": G, "backward_number": F} | STOCHASTIC
    lowered = lower(program, **arguments, weight_number="e4m3fn", weight_rounding="stochastic")
    q, r = by_hand(**arguments), partial(rounded_weight, rounding="stochastic", number="e4m3fn")

    def expected(p, x):
        x = q(x @ r(p["w"][0], 0, 2), 0)
        for i in range(2):
            x = q(x @ r(p["w"][i], 1, i, 0, 2) + p["b"], 1, i, 0)
        return x

    actual = jax.jit(value_and_gradients(partial(lowered, key=KEY)))(p, X)
    assert_same_trees(actual, jax.jit(value_and_gradients(expected))(p, X))


def test_weights_of_an_equinox_model():
    model = jax.tree.map(lambda p: integers(p.shape, p.size, 20) if eqx.is_array(p) else p, Equinox())
    rounded = jax.tree.map(lambda p: rounded_weight(p) if eqx.is_array(p) and p.size > 4 else p, model)
    rounded = eqx.tree_at(lambda m: m.stack.bias, rounded, model.stack.bias)
    x = integers((2, 5), 3, 2)
    lowered = lower(lambda model, x: model(x, identity), weight_number=F)
    assert_same_bits(lowered(model, x), rounded(x, identity))
    assert_same_bits(lower(model, weight_number=F)(x, identity), rounded(x, identity))


def outputs(number):
    return Quantization(number, None, "nearest", "nearest")


class Named(linen.Module):
    @linen.compact
    def __call__(self, x, q):
        x = q(linen.Dense(4, name="first")(x), "first")
        x = linen.Dense(4, name="second")(q(jnp.tanh(x), "activation"))
        head = jax.named_scope("inner")(lambda x: x @ W7)
        with jax.named_scope("outer"):
            x = jax.jit(lambda x: jax.lax.scan(lambda x, _: (q(head(x), "inner"), None), x, length=2)[0])(x)
            x = q(jax.vmap(head)(x), "inner")
        return q(jax.nn.relu(q(x @ W, "others")), "activation")


def test_the_first_rule_that_matches_counts_and_may_say_nothing():
    x = integers((4, 4), 4, 2)
    params = jax.tree.map(lambda p: integers(p.shape, p.size), Named().init(jax.random.key(0), x, identity))
    numbers = {"first": G, "inner": F, "activation": "e2m1fn", "others": "int2"}
    rules = [
        Rule("Named.first", "linear", outputs(G)),
        Rule("Named.second"),
        Rule("Named.f*", None, outputs("int2")),
        Rule("*.outer.inner", None, outputs(F)),
        Rule("*", "activation", outputs("e2m1fn")),
    ]
    lowered = lower(Named().apply, ["linear"], "int2", forward_rounding="nearest", rules=rules)
    quantizers = {name: qjax.quantizer(number, None, "nearest") for name, number in numbers.items()}
    expected = Named().apply(params, x, lambda y, name: quantizers[name](y))
    assert_same_bits(lowered(params, x, identity), expected)


# The function's arguments and results


def test_arguments_and_results_are_those_of_fn():
    def fn(x, mode, /, *, model, scale=2.0, extra=None):
        assert (mode, scale, extra, model["name"]) == ("double", 3.0, None, "m")
        assert isinstance(model["f"](x), jax.core.Tracer)
        y = scale * model["f"](x @ model["w"])
        return {"y": (y, None), "static": [mode, model["f"], 7], "count": model["n"] + 1, "none": jnp.zeros((0, 3))}

    model = {"name": "m", "f": jax.nn.relu, "w": np.asarray(W), "n": jnp.arange(2)}
    result = lower(fn, forward_number=F, **NEAREST)(np.asarray(X), "double", model=model, scale=3.0)
    assert_same_bits(result["y"][0], 3 * jax.nn.relu(by_hand(forward_number=F, **NEAREST)(X @ W)))
    assert result["y"][1] is None
    assert result["static"] == ["double", jax.nn.relu, 7]
    assert result["count"].tolist() == [1, 2]
    assert result["none"].shape == (0, 3)


@pytest.mark.parametrize("key", [5, (0, 5), KEY, jax.random.key_data(KEY), np.uint32([0, 5])], ids=str)
def test_keys(key):
    lowered = lower(jnp.matmul, forward_number=F)
    assert_same_bits(lowered(X, W, key=key), by_hand(forward_number=F)(X @ W, 0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dtype):
    with jax.enable_x64(dtype == "float64"):
        x, w, b = (jnp.asarray(np.asarray(a), dtype) for a in (X, W, B))
        y = lower(lambda w, b, x: x @ w + b, forward_number=F)(w, b, x, key=KEY)
        assert y.dtype == dtype
        assert_same_bits(y, by_hand(forward_number=F)(x @ w + b, 0))


def test_blocks_and_weak_types():
    number = BlockFloatingPoint(3, 0)
    y = lower(lambda w, x: jax.vmap(lambda x: w @ x)(x), forward_number=number, **NEAREST)(W, X)
    assert_same_bits(y, qjax.quantize(X @ W.T, number, "nearest"))  # a block for each example
    y = lower(lambda w, x: (x @ w).reshape(2, 6), forward_number=number, **NEAREST)(W, X)
    assert_same_bits(y, qjax.quantize(X @ W, number, "nearest").reshape(2, 6))

    def weak(x):
        carry, ys = jax.lax.scan(lambda c, _: (jnp.tanh(c), c), x, length=2)
        assert carry.weak_type
        y = jax.lax.cond(x > 0, jnp.tanh, lambda c: c, carry)
        return carry, *ys, y, jax.lax.while_loop(lambda c: c > 2, jnp.tanh, 3 * x)

    assert [*map(float, jax.jit(lower(weak, ["activation"], F, **NEAREST))(1.0))] == [0.75, 1, 0.75, 0.75, 1]


def test_jit_traces_once_and_eager_calls_see_what_changed():
    traces, scale = [], [1.0]

    def fn(x):
        traces.append(x)
        return scale[0] * (x @ W)

    lowered = lower(fn, forward_number=F)
    jitted = jax.jit(lowered)
    first = [jitted(X, key=jax.random.key(seed)) for seed in range(3)]
    assert len(traces) == 1
    assert (first[0] != first[1]).any()
    assert_same_bits(lowered(X, key=KEY), by_hand(forward_number=F)(X @ W, 0))
    scale[0] = 2.0
    assert_same_bits(lowered(X, key=KEY), 2 * by_hand(forward_number=F)(X @ W, 0))


def test_static_arguments_and_donated_buffers():
    def fn(x, power, w=W):
        return (x @ w) ** power

    f = jax.jit(lower(fn, forward_number=F, **NEAREST), static_argnames="power", donate_argnums=0)
    donated = X + 0
    with pytest.warns(UserWarning, match="donated"):
        y = f(donated, 3, w=W[:, :2])
    assert_same_bits(y, by_hand(forward_number=F, **NEAREST)(X @ W[:, :2]) ** 3)
    inner = jax.jit(lambda x: x @ W, donate_argnums=0)
    assert_same_bits(lower(inner, forward_number=F, **NEAREST)(X), by_hand(forward_number=F, **NEAREST)(X @ W))
    assert not X.is_deleted()


def test_effects_stay(capfd):
    def fn(x):
        jax.debug.print("product {p}", p=x[0] @ W[0])
        return jax.lax.scan(lambda c, _: (jax.debug.print("in scan"), (c @ W, None))[1], x, length=2)[0]

    lower(fn, forward_number=F, **NEAREST)(X).block_until_ready()
    jax.effects_barrier()
    q = by_hand(forward_number=F, **NEAREST)
    assert capfd.readouterr().out == f"product {q(X[0] @ W[0])}\nin scan\nin scan\n"


# Wrong calls


GROUPS_LISTED = "conv, linear, embedding, pool, pad, activation, normalization"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layer_types": ["conv", "rnn"]}, ValueError, f"layer_types has 'rnn'; allowed are {GROUPS_LISTED}"),
        ({"layer_types": "conv"}, TypeError, f"layer_types='conv' is a str; allowed is a list of {GROUPS_LISTED}"),
        ({"layer_types": [int]}, TypeError, "layer_types has <class 'int'>, a type; allowed are conv"),
        ({"rules": [Rule(layer_type="rnn")]}, ValueError, "rules' layer_type has 'rnn'; allowed are conv"),
        ({"rules": [Rule(layer_type=int)]}, TypeError, "rules' layer_type has <class 'int'>, a type; allowed are conv"),
        ({"rules": ["conv"]}, TypeError, "rules has 'conv', a str; allowed are Rule"),
        ({"rules": Rule()}, TypeError, "is a Rule; allowed is a list of Rule"),
        ({"forward_number": "e9m9"}, ValueError, "forward_number"),
        ({"weight_number": 8}, TypeError, "weight_number"),
        ({"weight_rounding": "up and down"}, ValueError, "weight_rounding"),
        ({"backward_rounding": "up and down"}, ValueError, "backward_rounding"),
        ({"fn": 3}, TypeError, "fn=3 is a int; allowed is a function or a module"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error) as caught:
        lower(**{"fn": jnp.matmul} | arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"forward_number": F},
        {"forward_number": F, "forward_rounding": "nearest", "backward_number": F},
        {"weight_number": F, "weight_rounding": "stochastic"},
        {"rules": [Rule("nowhere", "conv", Quantization(F))]},
    ],
)
def test_stochastic_rounding_needs_a_key(arguments):
    with pytest.raises(ValueError, match="needs a key"):
        lower(jnp.matmul, **arguments)(X, W)
    lower(jnp.matmul, **arguments)(X, W, key=3)
    nearest = lower(scan(identity), forward_number=F, **NEAREST)
    assert str(jax.make_jaxpr(partial(nearest, key=3))(W, X)) == str(jax.make_jaxpr(nearest)(W, X))
    with pytest.raises(ValueError, match="key"):
        lower(jnp.matmul, **NEAREST)(X, W, key=-3)


@pytest.mark.parametrize(
    "again",
    [
        lambda f: lower(f)(X, W),
        lambda f: lower(jax.jit(f))(X, W),
        lambda f: lower(lambda x, w: f(x, w))(X, W),
        lambda f: lower(lambda x, w: jax.lax.scan(lambda x, _: (f(x, w), None), x, length=2)[0])(X, W),
        lambda f: lower(jax.grad(lambda x, w: jax.jit(f)(x, w).sum()))(X, W),
        lambda f: lower(jax.vmap(f, (0, None)))(X, W),
    ],
)
def test_lowering_twice(again):
    f = lower(jnp.matmul, forward_number=F, **NEAREST)
    jax.jit(f)(X, W)
    with pytest.raises(ValueError, match="lower once, with rules="):
        again(f)
    with pytest.raises(ValueError, match="fn is lowered"):
        lower(f)


def test_layers_out_of_reach():
    """An error that a rule avoids, rather than a layer that is left as it is in silence."""

    @jax.custom_batching.custom_vmap
    def f(x):
        return x @ W

    f.def_vmap(lambda size, batched, x: (f(x), batched[0]))
    fn = jax.named_scope("odd")(lambda x: f(x))
    with pytest.raises(ValueError, match="custom_vmap_call in scope 'odd' holds layers"):
        lower(fn, forward_number=F, **NEAREST)(X)
    assert_same_bits(lower(fn, forward_number=F, **NEAREST, rules=[Rule("odd")])(X), X @ W)
    assert_same_bits(lower(fn, ["conv"], forward_number=F, **NEAREST)(X), X @ W)


def test_nothing_of_flax_or_equinox_is_imported():
    program = "import sys, qjax.auto_low; print([n for n in ('flax', 'equinox', 'torch') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
