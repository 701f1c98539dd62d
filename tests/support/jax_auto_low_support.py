"""What the tests of qjax.recipes share: programs lowered against the same with quantizers put in by hand.

Data are small integers, so that every product is exact however XLA fuses it.
"""

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support import assert_same_trees

import qjax
from qcore import FloatingPoint
from qjax.recipes import lower

F, G = FloatingPoint(5, 1), FloatingPoint(5, 2)
NEAREST = {"forward_rounding": "nearest", "backward_rounding": "nearest"}
STOCHASTIC = {"forward_rounding": "stochastic", "backward_rounding": "stochastic"}
# Models in tests/jax/recipes/test_models.py are rounded to nearest in ordinary runs, too.
ROUNDINGS = pytest.mark.parametrize(
    "rounding",
    [pytest.param(NEAREST, id="nearest", marks=pytest.mark.heavy), pytest.param(STOCHASTIC, id="stochastic")],
)
KEY = jax.random.key(5)


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
    with jax.disable_jit():  # operations one by one: XLA knows most of them from other programs
        unrounded = run(program(identity))(*args)
    for one, other in zip(expected, unrounded, strict=True):
        assert not np.array_equal(ravel_pytree(one)[0], ravel_pytree(other)[0])


def layer(q, w, x, *path):
    return q(x @ w, *path)


def scan(q, **options):
    def program(w, x):
        def step(carry, i):
            y = jax.nn.relu(layer(q, w, carry, 1, i, 0))
            return layer(q, w, y, 1, i, 1), y

        x = layer(q, w, x, 0)
        carry, ys = jax.lax.scan(step, x, jnp.arange(3), **options)
        return layer(q, w, carry, 2), ys

    return program


def rounded_weight(w, *path, rounding="nearest", number=F):
    return qjax.quantize(w, number, rounding, key=key_at(path))


W, X = integers((4, 4), 1), integers((3, 4), 2)
B = integers(4, 3) + 0.5
