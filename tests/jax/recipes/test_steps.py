"""Functions that packages write out in JAX, whose steps a recipe gives formats: norms, softmax and GELU are found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually

from qcore import Entry, Recipe
from qcore.arithmetic.composed import Stepwise, check_steps
from qjax.recipes import lower, report

RECIPE = Recipe([Entry("*", name, arithmetic="bfloat16") for name in ("layer_norm", "rms_norm", "softmax", "gelu")])
WEIGHT, BIAS = np.float32([[1, 2, 3, 4, 5], [0.1, -0.2, 0.3, 0.4, 0.5]])
X = np.random.default_rng(0).standard_normal((3, 2, 5)).astype(np.float32)


def of_nnx(kind, has_bias):
    nnx = pytest.importorskip("flax.nnx")
    norm = nnx.LayerNorm if kind == "layer_norm" else nnx.RMSNorm
    options = {} if has_bias or kind == "rms_norm" else {"use_bias": False}
    module = norm(5, epsilon=1e-3, rngs=nnx.Rngs(0), **options)
    module.scale = nnx.Param(jnp.asarray(WEIGHT))
    if has_bias:
        module.bias = nnx.Param(jnp.asarray(BIAS))
    return lambda x: module(x)


def of_linen(kind, has_bias):
    linen = pytest.importorskip("flax.linen")
    given = {"scale": jnp.asarray(WEIGHT)} | ({"bias": jnp.asarray(BIAS)} if has_bias else {})
    options = {} if has_bias or kind == "rms_norm" else {"use_bias": False}
    module = (linen.LayerNorm if kind == "layer_norm" else linen.RMSNorm)(epsilon=1e-3, **options)
    return lambda x: module.apply({"params": given}, x)


def of_equinox(kind, has_bias):
    nn = pytest.importorskip("equinox").nn
    norm = (nn.LayerNorm if kind == "layer_norm" else nn.RMSNorm)(5, 1e-3, use_bias=has_bias)
    object.__setattr__(norm, "weight", jnp.asarray(WEIGHT))
    if has_bias:
        object.__setattr__(norm, "bias", jnp.asarray(BIAS))
    return jax.vmap(jax.vmap(norm))


MAKERS = {"nnx": of_nnx, "linen": of_linen, "equinox": of_equinox}
CASES = [f"{name} {rest}" for name in MAKERS for rest in ("layer_norm bias", "layer_norm", "rms_norm")]


@pytest.mark.parametrize("case", usually(("equinox layer_norm bias",), CASES))
def test_norms_are_found(case):
    name, kind, *rest = case.split()
    make, has_bias = MAKERS[name], bool(rest)
    lowered = lower(make(kind, has_bias), RECIPE)
    parameters = (WEIGHT, BIAS if has_bias else None)[: 2 if kind == "layer_norm" else 1]
    expected = Stepwise(kind, check_steps(kind, "bfloat16")).run(X, *parameters, eps=1e-3)
    assert np.asarray(lowered(X)).tobytes() == expected.tobytes()
    assert [one.kind for one in report(lowered, X).functions] == [kind]


@pytest.mark.heavy
def test_functions_inside_of_loops_and_calls():
    def fn(x):
        step = jax.checkpoint(jax.jit(lambda x: jax.nn.softmax(jax.nn.gelu(x), axis=1)))
        return jax.lax.scan(lambda carried, _: (step(carried), None), x, None, 3)[0]

    lowered, expected = lower(fn, RECIPE), X
    for _ in range(3):
        expected = Stepwise("gelu", check_steps("gelu", "bfloat16")).run(expected, approximate="tanh")
        expected = Stepwise("softmax", check_steps("softmax", "bfloat16")).run(expected, axis=1)
    assert np.asarray(lowered(X)).tobytes() == expected.tobytes()
    assert np.asarray(jax.jit(lowered)(X)).tobytes() == expected.tobytes()
    assert np.isfinite(jax.grad(lambda x: (lowered(x) ** 2).sum())(X)).all()


def test_the_softmax_of_attention():
    """`dot_product_attention` maps it over an axis; the products around it are still attention's."""
    x = np.random.default_rng(1).standard_normal((1, 4, 2, 6)).astype(np.float32)

    def fn(query, key):
        return jax.nn.dot_product_attention(query, key, key)

    found = report(lower(fn, RECIPE), x, x)
    assert [one.kind for one in found] == ["attention_scores", "attention_output"]
    assert [(one.kind, one.arithmetic) for one in found.functions] == [("softmax", "bfloat16")]


def test_other_functions_stay():
    """A quotient by another sum is no softmax, and a recipe without its function leaves it."""

    def fn(x):
        powers = jnp.exp(x)
        return powers / powers.sum(-1, keepdims=True)

    with pytest.raises(ValueError, match="recipe has no layer to apply to"):
        lower(fn, RECIPE)(X)
    gelu = Recipe([Entry("*", "gelu", arithmetic="bfloat16")])
    found = report(lower(lambda x: jax.nn.softmax(jax.nn.gelu(x)), gelu), X)
    assert [one.kind for one in found.functions] == ["gelu"]
