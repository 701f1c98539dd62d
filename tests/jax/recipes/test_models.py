"""Models of flax.linen, flax.nnx and equinox, lowered against the same with quantizers put in by hand."""

from collections.abc import Callable

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax_support import module_of
from jax_auto_low_support import KEY, NEAREST, STOCHASTIC, F, by_hand, check, identity, integers, rounded_weight
from support import assert_same_bits, assert_same_trees

from qjax.recipes import lower


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


@pytest.mark.heavy
@pytest.mark.parametrize("rounding", [NEAREST, STOCHASTIC], ids=["nearest", "stochastic"])
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


@pytest.mark.heavy
@pytest.mark.parametrize("rounding", [NEAREST, STOCHASTIC], ids=["nearest", "stochastic"])
def test_flax_nnx(rounding):
    graph, state = nnx.split(module_of(Recurrent))
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


@pytest.mark.heavy
@pytest.mark.parametrize("rounding", [NEAREST, STOCHASTIC], ids=["nearest", "stochastic"])
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


def test_calls_of_an_equinox_model():
    model = jax.tree.map(lambda p: integers(p.shape, p.size, 1) if eqx.is_array(p) else p, Equinox())
    x = integers((2, 5), 3, 2)
    expected = model(x, by_hand(forward_number=F, **STOCHASTIC))
    assert_same_trees(lower(model, forward_number=F, **STOCHASTIC)(x, identity, key=KEY), expected)


def test_weights_of_an_equinox_model():
    model = jax.tree.map(lambda p: integers(p.shape, p.size, 20) if eqx.is_array(p) else p, Equinox())
    rounded = jax.tree.map(lambda p: rounded_weight(p) if eqx.is_array(p) and p.size > 4 else p, model)
    rounded = eqx.tree_at(lambda m: m.stack.bias, rounded, model.stack.bias)
    x = integers((2, 5), 3, 2)
    lowered = lower(lambda model, x: model(x, identity), weight_number=F)
    assert_same_bits(lowered(model, x), rounded(x, identity))
    assert_same_bits(lower(model, weight_number=F)(x, identity), rounded(x, identity))
