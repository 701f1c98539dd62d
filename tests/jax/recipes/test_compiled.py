"""All recipes under jit in all dtypes: each product, and its gradients, have the bits of programs without jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import some
from support import bits
from taps import Taps

from qcore import RECIPES
from qjax.recipes import first_scaling, lower, report

# Recipes keep 16 bits in the first and the last layer, which are most of so small models.
pytestmark = pytest.mark.filterwarnings("ignore:the recipe lowers")

WIDTH = 32
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16, "mixed": jnp.bfloat16}


@jax.custom_vjp
def tap(x, probe, number, gradient):
    return x if number is None else number


def _forward(x, probe, number, gradient):
    return tap(x, probe, number, gradient), (number, gradient)


def _backward(kept, arriving):
    number, gradient = jax.tree.map(jnp.zeros_like, kept)
    return arriving if kept[1] is None else kept[1], arriving, number, gradient


tap.defvjp(_forward, _backward)


def mlp(w, x, taps):
    x = jax.nn.relu(taps.product("first", jnp.matmul, x, w["first"]))
    x = jax.nn.gelu(taps.product("middle", jnp.matmul, x, w["middle"]) + w["bias"]) * 1.7
    return taps.product("last", jnp.matmul, x, w["last"])


def convolved(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def cnn(w, x, taps):
    """A residual block with a batch norm."""
    x = taps.product("stem", convolved, x.reshape(2, 4, WIDTH // 4, 4), w["stem"])
    x = x + taps.product("conv", convolved, jax.nn.relu(normalized(x, (0, 1, 2))), w["conv"])
    return taps.product("head", jnp.matmul, x.mean((1, 2)), w["head"])


def normalized(x, axes):
    return (x - x.mean(axes, keepdims=True)) * jax.lax.rsqrt(x.var(axes, keepdims=True) + 1e-5)


def gpt(w, x, taps):
    """One block of two heads."""
    q, k, v = jnp.moveaxis(taps.product("qkv", jnp.matmul, normalized(x, -1), w["qkv"]).reshape(2, 4, 3, 2, -1), 2, 0)
    scores = taps.product("scores", lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), q, k)
    scores = jax.nn.softmax(jnp.where(jnp.tri(4, dtype=bool), scores * 0.25, -jnp.inf))
    y = taps.product("output", lambda p, v: jnp.einsum("bhqk,bkhd->bqhd", p, v), scores, v).reshape(x.shape)
    x = x + taps.product("out", jnp.matmul, y, w["out"])
    y = jax.nn.gelu(taps.product("up", jnp.matmul, normalized(x, -1), w["up"]), approximate=False)
    x = x + taps.product("down", jnp.matmul, y, w["down"])
    return taps.product("head", jnp.matmul, x, w["head"])


def lstm(w, x, taps):
    """Three steps."""
    of_input = taps.product("input", jnp.matmul, x * 1.7, w["input"])
    h = c = jnp.zeros_like(x[:, 0])
    for step in range(3):
        gates = of_input[:, step] + taps.product(f"hidden{step}", jnp.matmul, h, w["hidden"])
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return taps.product("head", jnp.matmul, jax.nn.relu(h), w["head"])


SQUARE = (WIDTH, WIDTH)
SHAPES = {
    mlp: {"first": SQUARE, "middle": SQUARE, "last": SQUARE, "bias": (WIDTH,)},
    cnn: {"stem": (1, 1, 4, 8), "conv": (3, 3, 8, 8), "head": (8, 4)},
    gpt: {"qkv": (WIDTH, 96), "out": SQUARE, "up": (WIDTH, 64), "down": (64, WIDTH), "head": (WIDTH, 8)},
    lstm: {"input": (WIDTH, 4 * WIDTH), "hidden": (WIDTH, 4 * WIDTH), "head": (WIDTH, 4)},
}


def differing(model, recipe, dtype):
    """The names of the results and gradients of lowered products that differ under jit."""
    rng = np.random.default_rng(0)
    numbers = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES[model].items()}
    stored = jnp.float32 if dtype == "mixed" else DTYPES[dtype]
    weights = jax.tree.map(lambda x: jnp.asarray(x, stored), numbers)
    x = jnp.asarray(rng.standard_normal((2, 4, WIDTH), np.float32), stored)
    seen = Taps(tap)

    def program(weights, x, probes, forced):
        weights, x = jax.tree.map(lambda x: x.astype(DTYPES[dtype]), (weights, x))
        taps = Taps(tap, probes, forced)
        y = model(weights, x, taps)
        seen.places[:] = taps.places
        return y, taps.numbers

    shapes = jax.eval_shape(program, weights, x, None, None)[1]
    probes = [jnp.zeros(one.shape, one.dtype) for one in shapes]
    low = lower(program, RECIPES[recipe])
    said = {"key": 5} if RECIPES[recipe].stochastic else {}
    if RECIPES[recipe].delayed:
        said["scaling"] = first_scaling(low, weights, x, probes, None)

    def run(weights, x, probes, forced):
        y, pull, numbers = jax.vjp(lambda probes: low(weights, x, probes, forced, **said), probes, has_aux=True)
        return numbers, pull(jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape).astype(y.dtype))[0]

    numbers, gradients = jax.jit(run)(weights, x, probes, None)
    expected = run(weights, x, probes, list(zip(numbers, gradients, strict=True)))
    results = [name for name, operand in seen.places if operand is None]
    rows = zip(results, report(low, weights, x, probes, None), strict=True)
    lowered = {name for name, row in rows if row.products is not None}
    pairs = [
        (name, numbers[i], expected[0][i])
        if operand is None
        else (f"gradient of {name}'s {operand}", gradients[i], expected[1][i])
        for i, (name, operand) in enumerate(seen.places)
        if name in lowered
    ]
    assert pairs
    return {name for name, a, b in pairs if a.dtype != b.dtype or (bits(a) != bits(b)).any()}


MODELS = [mlp, cnn, gpt, lstm]
NAMES, KINDS = list(RECIPES), list(DTYPES)


@some(
    (0, NAMES.index("hfp8"), KINDS.index("float16")),
    model=MODELS,
    recipe=NAMES,
    dtype=KINDS,
)
@pytest.mark.filterwarnings("ignore:the recipe lowers")
def test_each_product_has_the_bits_of_programs_without_jit(model, recipe, dtype):
    assert not differing(model, recipe, dtype)
