"""Lowered models take formats with shared scales and posits: what layers return, and the gradients that come back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore
import qjax.recipes
import qtorch.recipes
from qcore import RECIPES

PAIRS = [("mxfp8_e4m3", "mxfp8_e5m2"), ("nvfp4", "mxfp4"), ("posit16", "posit16")]
# Of so few bits that float32 holds all sums: XLA moves transposes into products, which then sum in another order.
RANDOM = np.random.default_rng(0)
X, W, G = (
    (RANDOM.integers(-(1 << bits), 1 << bits, shape) / np.float32(1 << fraction)).astype(np.float32)
    for shape, bits, fraction in (((6, 40), 3, 3), ((70, 40), 12, 10), ((6, 70), 15, 8))
)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_torch(forward, backward):
    layer = torch.nn.Linear(40, 70, bias=False)
    layer.weight.data = torch.from_numpy(W.copy())
    plain = layer(torch.from_numpy(X)).detach()
    qtorch.recipes.lower(layer, ["linear"], forward, backward, "nearest", "nearest")
    y = layer(torch.from_numpy(X))
    y.backward(torch.from_numpy(G))
    assert_same_bits(y, qcore.quantize(plain.numpy(), forward, "nearest"))
    assert_same_bits(
        layer.weight.grad, torch.from_numpy(qcore.quantize(G, backward, "nearest")).mT @ torch.from_numpy(X)
    )


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_jax(forward, backward):
    def product(w):
        return jnp.asarray(X) @ w.T

    lowered = qjax.recipes.lower(product, ["linear"], forward, backward, "nearest", "nearest")
    y, pull = jax.vjp(lowered, jnp.asarray(W))
    assert_same_bits(y, qcore.quantize(np.asarray(product(jnp.asarray(W))), forward, "nearest"))
    _, plain = jax.vjp(product, jnp.asarray(W))
    assert_same_bits(pull(jnp.asarray(G))[0], plain(jnp.asarray(qcore.quantize(G, backward, "nearest")))[0])


def test_overflow_is_an_argument_of_lower():
    """No NaN from inputs beyond 448, of outputs or of weights, in both packages; rules have their own policies."""
    x, w = np.float32([[600.0, 1.0]]), np.float32([[1.0, 0.0], [900.0, 1.0]])
    expected = np.float32([[448, 448]])
    names = {"forward_number": "e4m3fn", "forward_rounding": "nearest", "weight_number": "e4m3fn"}
    for lower in (qtorch.recipes.lower, qtorch.recipes.sequential_lower):
        layer = torch.nn.Linear(2, 2, bias=False)
        layer.weight.data = torch.from_numpy(w.copy())
        lowered = lower(torch.nn.Sequential(layer), ["linear"], **names, overflow="saturate")
        assert_same_bits(lowered(torch.from_numpy(x)), expected)
    f = qjax.recipes.lower(lambda w, x: x @ w.T, ["linear"], **names, overflow="saturate")
    assert_same_bits(np.asarray(f(jnp.asarray(w), jnp.asarray(x))), expected)
    plain = qjax.recipes.lower(lambda w, x: x @ w.T, ["linear"], **names)
    assert np.isnan(plain(jnp.asarray(w), jnp.asarray(x))).all()


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (["mxfp9"], TypeError, "layer_types='mxfp9'.*; did you mean mxfp8. names of RECIPES are mxfp8, "),
        ([RECIPES["mxfp8"].entries], TypeError, "; entries are the argument of a Recipe"),
        ([], UserWarning, "nothing is lowered: there is no recipe, rule or format"),
        ([["linear"]], UserWarning, "nothing is lowered"),
        ([["linear"], None, None, "nearest"], UserWarning, "nothing is lowered"),
    ],
)
def test_what_a_newcomer_may_write(given, error, text):
    for lower, model in ((qtorch.recipes.lower, torch.nn.Linear(2, 2)), (qjax.recipes.lower, lambda x: x @ x)):
        with pytest.warns(error, match=text) if error is UserWarning else pytest.raises(error, match=text):
            lower(model, *given)


def test_the_name_of_a_recipe_is_not_a_layer_type():
    for lower, model in ((qtorch.recipes.lower, torch.nn.Linear(2, 2)), (qjax.recipes.lower, lambda x: x @ x)):
        with pytest.raises(TypeError, match=r"layer_types='mxfp8'.*the recipe is RECIPES\[\"mxfp8\"\]"):
            lower(model, "mxfp8")
