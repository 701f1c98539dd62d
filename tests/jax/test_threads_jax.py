"""Functions and models of JAX that several threads run at once: each call has the bits that it has alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from covering import usually
from flax import nnx
from flax_support import layer_of
from support import assert_all_same_bits
from threads_support import in_threads, threads_that_switch_often  # noqa: F401  # a fixture

import qjax.nnx as qnn
from qcore import RECIPES
from qjax import insight, quantizer, recipes, reproducible
from qjax.optim import low_precision
from qjax.quantization import default_qconfig, get_default_qat_qconfig

THREADS = 4
X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


def mlp():
    return nnx.Sequential(layer_of(nnx.Linear, 6, 5), qnn.ReLU(), layer_of(nnx.Linear, 5, 4))


def function(w, x):
    return jnp.tanh(x @ w)


def of_function(transformed):
    w = jnp.float32(np.random.default_rng(1).standard_normal((6, 4)))
    return lambda: jax.tree.leaves(transformed(w, X))


def of_model(model):
    return lambda: [model(X)]


def converted():
    prepared = qnn.prepare(qnn.QuantWrapper(mlp()), default_qconfig)
    prepared(X)
    return of_model(qnn.convert(prepared))


def trained():
    """Weights after steps of fake quantization; each call has a model of its own."""

    def train():
        model = qnn.prepare_qat(qnn.QuantWrapper(mlp()), get_default_qat_qconfig())
        found = []
        for _ in range(2):
            gradients = nnx.grad(lambda model: (model(X) ** 2).sum())(model)
            nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients))
            found += jax.tree.leaves(nnx.state(model, nnx.Param))
        return found

    return train


def stepped():
    """Weights after stochastic steps of an optimizer."""
    rounded = quantizer("e5m2", forward_rounding="stochastic")
    tx = low_precision(optax.sgd(0.1, 0.9), weight_quant=rounded, momentum_quant=rounded, acc_quant="bfloat16", key=3)

    def steps():
        params = jnp.float32(X)
        state = tx.init(params)
        for i in range(3):
            updates, state = tx.update(jnp.sin(params * (i + 1)), state, params)
            params = optax.apply_updates(params, updates)
        return [params, *jax.tree.leaves(state)]

    return steps


def watched(digests=False):
    lowered = recipes.lower(function, RECIPES["mxfp8"])
    w = jnp.float32(np.random.default_rng(1).standard_normal((6, 4)))

    def look():
        y, found = insight.watch(lowered, digests=digests)(w, X)
        return [y, np.array(list(map(ord, repr(found))))]

    return look


NEAREST = {"forward_number": "e4m3fn", "backward_number": "e5m2", "forward_rounding": "nearest"}
NEAREST |= {"backward_rounding": "nearest"}
KINDS = {
    "lowered": lambda: of_function(recipes.lower(function, **NEAREST)),
    "recipe": lambda: of_function(recipes.lower(function, RECIPES["mxfp8"])),
    "gradients": lambda: of_function(
        jax.grad(lambda w, x: recipes.lower(function, RECIPES["mxfp8"])(w, x).sum(), (0, 1))
    ),
    "jitted": lambda: of_function(jax.jit(recipes.lower(function, RECIPES["mxfp8"]))),
    "reproducible": lambda: of_model(
        reproducible.convert(nnx.Sequential(layer_of(nnx.Linear, 6, 5), reproducible.relu))
    ),
    "watched": watched,
    "watched with digests": lambda: watched(True),
    "converted": converted,
    "dynamic": lambda: of_model(qnn.quantize_dynamic(mlp())),
    "QAT": trained,
    "optimizer": stepped,
}


SLOW = ("QAT", "gradients", "watched", "watched with digests", "optimizer")  # to trace
ALIKE = ("jitted", "dynamic")  # as "recipe" and "converted"
USUAL = [kind for kind in KINDS if kind not in SLOW + ALIKE]


@pytest.mark.parametrize("kind", usually(USUAL, KINDS))
def test_one_kind(kind):
    call = KINDS[kind]()
    expected = KINDS[kind]()()  # of another object, so that the threads are the first to trace this one
    for results in in_threads([call] * THREADS, calls=2):
        assert_all_same_bits(results, expected)


@pytest.mark.parametrize("kinds", [USUAL, pytest.param([*KINDS], marks=pytest.mark.heavy)], ids=["usual", "all"])
def test_kinds_at_once(kinds):
    """A guard that traces, and a watch that keeps digests, are none of another thread's."""
    expected = [KINDS[kind]()() for kind in kinds]
    found = in_threads([KINDS[kind]() for kind in kinds], calls=1)
    for results, one in zip(found, expected, strict=True):
        assert_all_same_bits(results, one)
