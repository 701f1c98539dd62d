"""Recipes reach every product of a program, whatever its layout, dtype and place; `report` lists them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from flax import nnx
from flax_support import module_of
from support import assert_same_bits

from qcore import RECIPES, Entry, Product, Recipe
from qjax import linalg
from qjax.recipes import lower, report
from qjax.recipes.products import cast

LOW = Product("e5m2", "e4m3fn")
KINDS = "linear", "conv", "attention_scores", "attention_output", "matmul"
ALL = Recipe([Entry("*", kind, LOW) for kind in KINDS])
MX = RECIPES["mxfp8"].entries[0]
BLOCKS = Recipe([Entry("*", kind, MX.forward, MX.grad_input, MX.grad_weight) for kind in KINDS])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, W = normal(2, 5, 32, seed=1), normal(3, 32, 40, seed=2)


def by_blocks(x, w):
    return linalg.linear(x, w, operands=MX.forward.operands, grad_input=MX.grad_input, grad_weight=MX.grad_weight)


PROGRAMS = {  # the function of weights and x; the same by products in the layout of layers
    "heads": (
        lambda w, x: jnp.einsum("bti,nio->btno", x, w["w"]),
        lambda w, x: by_blocks(x, w["w"].swapaxes(1, 2).reshape(120, 32)).reshape(2, 5, 3, 40),
    ),
    "a weight for each of a batch": (
        lambda w, x: jnp.einsum("nti,nio->nto", jnp.tanh(x), w["w"][:2]),
        lambda w, x: by_blocks(jnp.tanh(x), w["w"][:2].mT),
    ),
    "weight first": (
        lambda w, x: jnp.einsum("oi,bti->bot", w["w"][0].T, x),
        lambda w, x: by_blocks(x, w["w"][0].T).mT,
    ),
    "two sums": (
        lambda w, x: jnp.einsum("bnsi,nio->bso", x.reshape(2, 1, 5, 32), w["w"][:1]),
        lambda w, x: by_blocks(x, w["w"][0].T),
    ),
    "computed weight": (
        lambda w, x: x @ (w["w"][0] / jnp.abs(w["w"][0]).max()),
        lambda w, x: by_blocks(x, (w["w"][0] / jnp.abs(w["w"][0]).max()).T),
    ),
}


@pytest.mark.parametrize("name", usually(("weight first", "computed weight"), PROGRAMS))
def test_products_in_any_layout_have_the_blocks_of_layers(name):
    fn, expected = PROGRAMS[name]
    lowered = jax.jit(jax.value_and_grad(lambda w, x: (jnp.tanh(lower(fn, BLOCKS)(w, x))).sum(), (0, 1)))
    by_hand = jax.jit(jax.value_and_grad(lambda w, x: (jnp.tanh(expected(w, x))).sum(), (0, 1)))
    for one, other in zip(*map(jax.tree.leaves, (lowered({"w": W}, X), by_hand({"w": W}, X))), strict=True):
        assert_same_bits(one, other)


def test_ragged_products_are_a_product_for_each_group():
    sizes, x = jnp.int32([3, 0, 5]), normal(9, 32, seed=3)
    fn = lower(lambda w, x: jax.lax.ragged_dot(x, w["w"], sizes), ALL)
    said = {"operands": LOW.operands}
    parts = [linalg.matmul(x[:3], W[0], **said), linalg.matmul(x[3:8], W[2], **said), np.zeros((1, 40), np.float32)]
    assert_same_bits(fn({"w": W}, x), np.concatenate(parts))
    of_w = jax.grad(lambda w: fn({"w": w}, x).sum())(W)
    assert_same_bits(of_w[2], jax.grad(lambda w: linalg.matmul(x[3:8], w, **said).sum())(W[2]))
    assert not of_w[1].any()


def test_transposed_convolutions_are_those_of_spread_inputs():
    x, w = normal(1, 2, 4, seed=4), normal(3, 2, 3, seed=5)
    fn = lower(lambda w, x: jax.lax.conv_general_dilated(x, w["w"], (1,), [(2, 2)], lhs_dilation=(2,)), ALL)
    spread = np.zeros((1, 2, 7), np.float32)
    spread[..., ::2] = x
    assert_same_bits(fn({"w": w}, x), linalg.conv1d(spread, w, padding=2, operands=LOW.operands))


class Mixed(nnx.Module):
    """Layers of flax, none of them written for recipes."""

    def __init__(self, dtype):
        settings = {"rngs": nnx.Rngs(0), "dtype": dtype, "param_dtype": dtype}
        self.attn = nnx.MultiHeadAttention(2, 16, decode=False, **settings)
        self.mlp = nnx.List([nnx.Linear(16, 24, **settings), nnx.Linear(24, 16, **settings)])
        self.experts = nnx.Einsum("bte,neo->btno", (2, 16, 8), (2, 8), **settings)
        self.conv = nnx.Conv(16, 8, (3,), feature_group_count=2, **settings)

    def __call__(self, x):
        return self.after_attention(self.attn(x))

    def after_attention(self, x):
        x = self.mlp[1](jax.nn.relu(self.mlp[0](x)))
        experts = self.experts(x)[:, :, 0]
        return self.conv(x), (experts @ experts.mT) @ experts


def mixed():
    return module_of(lambda: Mixed(jnp.bfloat16))


PLACES = [
    ("attn.query", "linear"),
    ("attn.key", "linear"),
    ("attn.value", "linear"),
    ("attn", "attention_scores"),
    ("attn", "attention_output"),
    ("attn.out", "linear"),
    ("mlp.0", "linear"),
    ("mlp.1", "linear"),
    ("experts", "linear"),
    ("conv", "conv"),
    ("", "matmul"),
    ("", "matmul"),
]


def test_places_of_flax_layers_in_bfloat16():
    x, model = jnp.asarray(normal(2, 4, 16, seed=6), jnp.bfloat16), mixed()
    lowered = lower(lambda model, x: model(x), ALL)
    rows = report(lowered, model, x)
    assert sorted((one.path, one.kind) for one in rows) == sorted(PLACES)
    assert rows.lowered == 1.0
    assert abs(sum(one.share for one in rows) - 1) < 1e-6
    assert {one.kind: one.number for one in rows["attn"]} == {"attention_scores": 0, "attention_output": 1}
    assert all(one.dtype == jnp.bfloat16 for one in nnx.eval_shape(lowered, model, x))


@pytest.mark.heavy
def test_flax_layers_in_bfloat16():
    """No gradient is zero."""
    x, model = jnp.asarray(normal(2, 4, 16, seed=6), jnp.bfloat16), mixed()
    lowered = lower(lambda model, x: model(x), ALL)
    assert all(one.dtype == jnp.bfloat16 for one in nnx.jit(lowered)(model, x))
    assert all(one.any() for one in jax.tree.leaves(nnx.jit(nnx.grad(total(lowered, x)))(model)))


@pytest.mark.heavy
def test_flax_layers_in_bfloat16_eagerly():
    """The bits of compiled programs, without softmax: XLA computes it otherwise in a program."""
    x, model = jnp.asarray(normal(2, 4, 16, seed=6), jnp.bfloat16), mixed()
    lowered = lower(Mixed.after_attention, ALL)
    for one, other in zip(lowered(model, x), nnx.jit(lowered)(model, x), strict=True):
        assert_same_bits(one, other)
    step = nnx.grad(total(lowered, x))
    for one, other in zip(*map(jax.tree.leaves, (step(model), nnx.jit(step)(model))), strict=True):
        assert_same_bits(one, other)


def total(fn, x):
    return lambda model: sum(y.astype(jnp.float32).sum() for y in fn(model, x))


def test_an_accumulators_result_is_rounded_once_to_the_programs_dtype():
    x, w = jnp.asarray(X[0], jnp.bfloat16), jnp.asarray(W[0], jnp.bfloat16)
    expected = linalg.matmul(x.astype(jnp.float32), w.astype(jnp.float32), operands=LOW.operands)
    assert_same_bits(lower(lambda w, x: x @ w["w"], ALL)({"w": w}, x), expected.astype(jnp.bfloat16))
    scores = lower(lambda w, x: jnp.matmul(x, w["w"], preferred_element_type=jnp.float32), ALL)({"w": w}, x)
    assert_same_bits(scores, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_casts_are_those_of_arrays(dtype):
    bits = np.random.default_rng(7).integers(0, 2**32, 1 << 14, dtype=np.uint32)
    x = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    expected = jnp.asarray(x).astype(dtype)
    for run in (lambda f: f, jax.jit):
        assert_same_bits(run(lambda x: cast(x, dtype))(x), expected)
        assert_same_bits(run(lambda x: cast(cast(x, dtype), "float32"))(x), expected.astype(jnp.float32))
    gradient, x = jnp.float32([1 + 2.0**-12, 1.0]), jnp.ones(2, dtype)
    _, pull = jax.vjp(lambda x: cast(x, "float32"), x)
    assert_same_bits(pull(gradient)[0], gradient.astype(dtype))
    assert_same_bits(jax.vmap(lambda x: cast(x, "float32"))(x), jnp.ones(2))
    assert jax.jvp(lambda x: cast(x, "float32"), (x,), (x,))[1].dtype == jnp.float32


def test_attention_is_found_by_its_softmax():
    def fn(q, k, v):
        weights = jax.nn.softmax(jnp.where(q.sum() > 0, 2.0, 1.0) * jnp.einsum("bqd,bkd->bqk", q, k))
        return jnp.einsum("bqk,bkd->bqd", weights, v)

    q = normal(2, 4, 8, seed=8)
    recipe = Recipe([Entry("*", "attention_output", LOW)])
    rows = report(lower(fn, recipe), q, q, q)
    assert [(one.kind, one.reason) for one in rows] == [
        ("attention_scores", "no entry of the recipe is for attention_scores here"),
        ("attention_output", ""),
    ]
    assert rows.lowered == 0.5
    weights = jax.nn.softmax(2.0 * jnp.einsum("bqd,bkd->bqk", q, q))
    expected = linalg.matmul(weights, q, operands=LOW.operands)
    if q.sum() > 0:
        assert_same_bits(lower(fn, recipe)(q, q, q), expected)


def test_reports_count_loops_and_name_what_is_wide():
    def fn(w, x):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w["loop"])
        with jax.named_scope("head"):
            x = x @ w["head"]
        return jax.lax.while_loop(lambda x: x.sum() > 1e9, lambda x: x @ x.T, x)

    weights = {"loop": normal(3, 4, 4), "head": normal(4, 4)}
    rows = report(lower(fn, Recipe([Entry("head"), Entry("*", "linear", LOW)])), weights, normal(4, 4))
    assert [(one.path, one.multiply_adds, one.reason) for one in rows] == [
        ("loop", 192, ""),
        ("head", 64, "the recipe leaves it in high precision"),
        ("", None, "no entry of the recipe is for matmul here"),
    ]
    assert [one.share for one in rows] == [0.75, 0.25, 0.0]
    assert {one.reason for one in report(fn, weights, normal(4, 4))} == {"not lowered"}
    assert "lowered: 75.0%" in str(rows)
