"""`lower` with a recipe: what its layers are, their names and numbers, through control flow, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_same_bits

from qcore import RECIPES, Entry, Product, Recipe, Rule
from qjax import linalg
from qjax.recipes import first_scaling, lower, report

CHUNKED = Recipe(RECIPES["fp8_chunked"].entries[-1:])
SAID = {"operands": ("float(5,2)", "float(5,2)"), "accumulator": CHUNKED.entries[0].forward.accumulator}
W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def test_layers_are_named_by_scopes_and_the_first_entry_counts():
    def fn(w, x):
        with jax.named_scope("body"):
            x = x @ w["w"]
        with jax.named_scope("head"):
            return x @ w["w"]

    recipe = Recipe([Entry("head"), *CHUNKED.entries])
    assert_same_bits(lower(fn, recipe)({"w": W}, X), linalg.matmul(X, W, **SAID) @ W)


def test_products_of_two_computed_values_stay_wide():
    expected = linalg.matmul(X, W, **SAID)
    fn = lower(lambda w, x: (x @ w["w"]) @ (x @ w["w"]).T, CHUNKED)
    assert_same_bits(fn({"w": W}, X), expected @ expected.T)


def test_loops_and_jit_hold_layers():
    def fn(w, x):
        return jax.lax.scan(lambda carry, _: (jax.jit(jnp.abs)(carry @ w["w"]), None), x, length=2)[0]

    expected = X
    for _ in range(2):
        expected = jnp.abs(linalg.matmul(expected, W, **SAID))
    assert_same_bits(jax.jit(lower(fn, CHUNKED))({"w": W}, X), expected)


@pytest.mark.filterwarnings("ignore:the recipe lowers 0.0%")  # which a test of its own is for
def test_products_that_cannot_be_reached_are_named():
    def grouped(w, x):
        y = jax.lax.conv_general_dilated(x, w["conv"]["w"], (1,), "VALID", batch_group_count=3)
        return y.sum() + (x[..., 0] @ w["w"]).sum()

    fn = lower(grouped, CHUNKED)
    weights = {"conv": {"w": np.ones((3, 4, 1), np.float32)}, "w": W}
    with pytest.warns(UserWarning, match=r"'conv' \(conv\) stays in high precision: .* batch_group_count"):
        fn(weights, X[..., None])
    fn(weights, X[..., None])  # warns once
    assert [one.reason[:13] for one in report(fn, weights, X[..., None])] == ["a convolution", ""]
    with pytest.warns(UserWarning, match=r"\(linear\) stays in high precision: its numbers are complex \(complex64\)"):
        y = lower(lambda w, x: x @ w["w"], CHUNKED)({"w": W * 1j}, X)
    assert_same_bits(y, jnp.asarray(X) @ (W * 1j))


def test_derivatives_of_their_own_are_named():
    @jax.custom_vjp
    def product(x, w):
        return x @ w

    product.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    fn = lower(lambda w, x: product(x, w["w"]), CHUNKED)
    with pytest.warns(UserWarning, match="'product' has a derivative of its own"):
        assert_same_bits(fn({"w": W}, X), linalg.matmul(X, W, **SAID))


def test_an_entry_that_matches_no_layer():
    fn = lower(lambda w, x: x @ w["w"], Recipe([Entry("head"), *CHUNKED.entries]))
    with pytest.raises(ValueError, match=r"entry\('head'\), which matches no layer; the layers are 'w' \(linear\)"):
        fn({"w": W}, X)


@pytest.mark.parametrize("others", [{"rules": [Rule()]}, {"weight_number": "int8"}])
def test_a_recipe_stands_alone(others):
    with pytest.raises(ValueError, match="beside a Recipe"):
        lower(lambda x: x, CHUNKED, **others)


def test_lowering_twice_is_refused():
    with pytest.raises(ValueError, match="lower once"):
        lower(lower(lambda w, x: x @ w, CHUNKED), Recipe([Entry(forward=Product())]))


def loss(w, x):
    return (jnp.tanh(x @ w["w"]) @ w["w"]).sum()


@pytest.mark.parametrize(
    "fn",
    [jax.grad(loss), lambda w, x: jax.jit(jax.grad(loss))(w, x), lambda w, x: jax.vjp(loss, w, x)[1](jnp.float32(1))],
    ids=["grad", "jit", "vjp"],
)
def test_derivatives_inside_are_refused(fn):
    with pytest.raises(ValueError, match=r"jax.grad\(lower\(fn, recipe\)\), not lower\(jax.grad\(fn\), recipe\)"):
        lower(fn, CHUNKED)({"w": W}, X)


def test_layers_are_counted_in_the_programs_order():
    recipe = Recipe([Entry("*", "linear", first=1), *CHUNKED.entries])
    assert_same_bits(lower(lambda w, x: (x @ w["w"]) @ w["w"], recipe)({"w": W}, X), linalg.matmul(X @ W, W, **SAID))


def test_delayed_scales_are_state_of_each_layer():
    fn = lower(loss, RECIPES["fp8_delayed"])
    states = first_scaling(fn, {"w": W}, X)
    assert [state.shape for state in states] == [(3, 1025)] * 2
    of_w, found = jax.grad(lambda w, states: fn(w, X, scaling=states), (0, 1))({"w": W}, states)
    assert of_w["w"].shape == W.shape
    assert [float(found[0][row, 1]) for row in (0, 1)] == [np.abs(X).max(), np.abs(W).max()]
    assert float(found[1][2, 1]) == 1.0
    assert_same_bits(found[1][1], found[0][1])
    for wrong in (None, states[:1]):
        with pytest.raises(ValueError, match="allowed are 2, for each layer with delayed scales"):
            fn({"w": W}, X, scaling=wrong)
    with pytest.raises(ValueError, match=r"scaling\[0\] has shape \(2, 1025\); allowed is \(3, 1025\)"):
        fn({"w": W}, X, scaling=[states[0][:2], states[1]])
    loop = lambda w, x: jax.lax.while_loop(lambda c: c.sum() > 9, lambda c: c @ w["w"], x)  # noqa: E731
    with pytest.raises(ValueError, match="delayed scales inside while, where it has no state; allowed are jit"):
        lower(loop, RECIPES["fp8_delayed"])({"w": W}, X)
    with pytest.raises(TypeError, match="allowed is what lower returned"):
        first_scaling(loss, {"w": W}, X)
