"""Layers of flax under recipes: all of their products are lowered, those of scans too."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from flax import nnx
from flax_support import module_of

from qcore import Entry, Product, Recipe
from qjax.recipes import lower, report

KINDS = (None, "attention", "matmul")
WIDE = Recipe([Entry("*", kind, Product(), Product(), Product()) for kind in KINDS])
NARROW = Product("e4m3fn", "e5m2")
ALL = Recipe([Entry("*", kind, NARROW, NARROW, NARROW) for kind in KINDS])
X = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)


def nnx_layer(make):
    def layer():
        return module_of(lambda: make(nnx.Rngs(0))), lambda module, x: module(x)

    return layer


def linen_layer(module):
    def layer():
        """Its values are NumPy's, as in `module_of`."""
        shapes, rng = jax.eval_shape(module.init, jax.random.key(0), X), np.random.default_rng(0)
        values = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype) / 2, shapes)
        return jax.device_put(values), module.apply

    return layer


# Layers, and the kinds of their products; each step of a loop counts in the work of one row.
LAYERS = {
    "nnx.RNN of LSTMCell": (nnx_layer(lambda r: nnx.RNN(nnx.LSTMCell(4, 3, rngs=r))), ["linear"] * 8),
    "nnx.RNN of OptimizedLSTMCell": (
        nnx_layer(lambda r: nnx.RNN(nnx.OptimizedLSTMCell(4, 3, rngs=r))),
        ["linear"] * 2,
    ),
    "nnx.Bidirectional of GRUCell": (
        nnx_layer(lambda r: nnx.Bidirectional(*(nnx.RNN(nnx.GRUCell(4, 3, rngs=r)) for _ in "ab"), rngs=r)),
        ["linear"] * 4,
    ),
    "nnx.RNN of SimpleCell": (nnx_layer(lambda r: nnx.RNN(nnx.SimpleCell(4, 3, rngs=r))), ["linear"] * 2),
    "nnx.LinearGeneral": (nnx_layer(lambda r: nnx.LinearGeneral((5, 4), (3, 2), axis=(-2, -1), rngs=r)), ["linear"]),
    "nnx.ConvTranspose": (nnx_layer(lambda r: nnx.ConvTranspose(4, 3, (3,), strides=2, rngs=r)), ["conv"]),
    "nnx.MultiHeadAttention": (
        nnx_layer(lambda r: nnx.MultiHeadAttention(2, 4, decode=False, rngs=r)),
        ["linear"] * 3 + ["attention_scores", "attention_output", "linear"],
    ),
    "linen.Dense": (linen_layer(nn.Dense(3)), ["linear"]),
    "linen.DenseGeneral": (linen_layer(nn.DenseGeneral((3, 2), axis=(-2, -1))), ["linear"]),
    "linen.ConvTranspose": (linen_layer(nn.ConvTranspose(3, (3,), strides=(2,))), ["conv"]),
    "linen.RNN of LSTMCell": (linen_layer(nn.RNN(nn.LSTMCell(3))), ["linear"] * 8),
    "linen.MultiHeadDotProductAttention": (
        linen_layer(nn.MultiHeadDotProductAttention(2)),
        ["linear"] * 3 + ["attention_scores", "attention_output", "linear"],
    ),
}


SLOW = ("nnx.RNN of OptimizedLSTMCell", "linen.RNN of LSTMCell")  # as nnx.RNN of LSTMCell


@pytest.mark.parametrize("name", usually([name for name in LAYERS if name not in SLOW], LAYERS))
def test_all_products_of_a_layer_are_lowered(name):
    make, kinds = LAYERS[name]
    state, apply = make()
    found = report(lower(apply, ALL), state, X)
    assert found.lowered == 1
    assert sorted(row.kind for row in found) == sorted(kinds)
    plain = report(apply, state, X)
    assert sum(row.multiply_adds for row in found) == sum(row.multiply_adds for row in plain)


QUICK = ("nnx.RNN of SimpleCell",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.heavy) for n in LAYERS])
def test_wide_products_are_what_flax_computes(name):
    state, apply = LAYERS[name][0]()

    def run(apply):
        """The value, and the gradients of the parameters, from the same random state."""
        step = nnx.jit(nnx.value_and_grad(lambda state, x: (apply(state, x) ** 2).sum()))
        return jax.tree.leaves(step(nnx.clone(state) if isinstance(state, nnx.Module) else state, jnp.asarray(X)))

    expected, narrow, wide = map(run, (apply, lower(apply, ALL), lower(apply, WIDE)))
    for one, other in zip(wide, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert narrow[0] != expected[0]
