"""Lowering reaches into loops, branches, jit, checkpoint and vmap, and changes nothing else of a program."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from jax.experimental.xla_metadata import set_xla_metadata
from jax_auto_low_support import NEAREST, ROUNDINGS, STOCHASTIC, F, G, W, X, check, identity, key_at, layer, scan
from support import assert_same_bits, equations

import qjax
from qcore import FixedPoint
from qjax.recipes import lower


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


# Others stand, with keys, in the next test.
@pytest.mark.parametrize("name", usually(("fori_loop", "switch", "checkpoint that saves"), PROGRAMS))
def test_constructs(name):
    check(PROGRAMS[name], W, X)


KEYED = ["scan backwards", "fori_loop", "switch", "cond", "checkpoint of jit", "vmap"]


@pytest.mark.parametrize("name", usually(("scan backwards", "cond", "vmap"), KEYED))
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
        while qjax.quantize(x @ x, number, "stochastic", key=key_at((0, rounds, 0), key)) < 64:
            x, rounds = x + 1, rounds + 1
        assert_same_bits(lower(fn, forward_number=number)(jnp.zeros(2), key=key), x)
        ends.add(rounds)
    assert len(ends) > 2
    assert_same_bits(lower(fn, forward_number=number, **NEAREST)(jnp.zeros(2)), np.float32([5, 5]))
    assert_same_bits(fn(jnp.zeros(2)), np.float32([6, 6]))


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
