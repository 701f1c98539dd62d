"""Every product has a row: complex, sparse, of kernels and foreign functions, beside derivatives of their own."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental import sparse

import qjax
from qcore import RECIPES, Entry, Product, Recipe
from qjax.recipes import lower, report

NARROW = Product("e5m2", "e5m2")
pytestmark = pytest.mark.filterwarnings("ignore:the recipe lowers")  # less than half of what a program multiplies
ALL = Recipe([Entry("*", kind, NARROW, NARROW, NARROW) for kind in (None, "attention", "matmul")])
X, W = np.ones((4, 16), np.float32), {"w": np.eye(16, dtype=np.float32)}
# Four edges, written out: `fromdense` is some twenty programs for XLA.
ONES, PLACES = np.ones(4, np.float32), np.arange(4, dtype=np.int32)
EDGES = sparse.BCOO((ONES, np.stack([PLACES, PLACES], 1)), shape=(4, 4))
ROWS = np.arange(5, dtype=np.int32)
LAYER = 4 * 16 * 16  # multiply-adds of x @ w


def complex_(x):
    return x.astype(jnp.complex64)


# A function of x @ w, an operand, and the product's multiply-adds.
COMPLEX = {
    "matmul": (lambda x, v: complex_(x) @ v["v"], {"v": np.ones((16, 8), np.complex64)}, 4 * 4 * 16 * 8),
    "einsum": (
        lambda x, v: jnp.einsum("bx,xio->bio", jnp.fft.fft(x), v["v"]),
        {"v": np.ones((16, 3, 5), np.complex64)},
        4 * 4 * 16 * 15,
    ),
    "convolution": (
        lambda x, v: jax.lax.conv_general_dilated(complex_(x)[:, None], v["v"], (1,), "VALID"),
        {"v": np.ones((2, 1, 3), np.complex64)},
        4 * 4 * 2 * 14 * 3,
    ),
    "no weight": (lambda x, v: complex_(x) @ complex_(x).T, {}, 4 * 4 * 4 * 16),
}
SPARSE = {
    "BCOO": (lambda x, e: e @ x, EDGES, 4 * 16),
    "BCOO last": (lambda x, e: x.T @ e, EDGES, 4 * 16),
    "BCOO of a vector": (lambda x, e: e @ x[:, 0], EDGES, 4),
    "captured": (lambda x, _: EDGES @ x, None, 4 * 16),
    "BCSR": (lambda x, e: e @ x, sparse.BCSR((ONES, PLACES, ROWS), shape=(4, 4)), 4 * 16),
    "COO": (lambda x, e: e @ x, sparse.COO((ONES, PLACES, PLACES), shape=(4, 4)), 4 * 16),
    "CSR of a vector": (lambda x, e: e @ x[:, 0], sparse.CSR((ONES, PLACES, ROWS), shape=(4, 4)), 4),
    "both": (lambda x, e: (e @ e).data * x[0, 0], EDGES, 4),
    "sampled": (
        lambda x, e: sparse.bcoo_dot_general_sampled(x, x.T, e.indices, dimension_numbers=(((1,), (0,)), ((), ()))),
        EDGES,
        4 * 16,
    ),
}


@pytest.mark.parametrize("reason", ["its numbers are complex", "of a sparse array"])
def test_complex_and_sparse_products_stay_wide_with_a_row_and_a_warning(reason):
    for name, (function, operand, work) in (COMPLEX if "complex" in reason else SPARSE).items():
        fn = lower(lambda w, v, x, function=function: function(x @ w["w"], v), ALL)
        with pytest.warns(UserWarning, match=f"stays in high precision: .*{reason}"):
            found = report(fn, W, operand, X)
        rows = [row for row in found if reason in row.reason]
        assert [(row.multiply_adds, row.products) for row in rows] == [(work, None)], name
        assert found.lowered < 1, name
        assert sum(row.multiply_adds for row in found if row.products) >= LAYER, name
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "the recipe lowers")
            jax.eval_shape(fn, W, operand, X)  # which warns no more


def test_shapes_of_sparse_products_are_those_of_their_matrices():
    fn = lower(lambda w, e, x: e @ (x @ w["w"]), ALL)
    with pytest.warns(UserWarning, match="of a sparse array"):
        rows = report(fn, W, EDGES, X)
    assert [row.shapes for row in rows] == [((4, 16), (16, 16)), ((4, 4), (4, 16))]


def kernel(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] @ y_ref[...]


def by_kernel(x, y):
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((4, 4), jnp.float32),
        grid=(2,),
        in_specs=[pl.BlockSpec((2, 16), lambda i: (i, 0)), pl.BlockSpec((16, 4), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((2, 4), lambda i: (i, 0)),
    )(x, y)


@pytest.mark.parametrize("kind", ["linear", "matmul"])
def test_kernels_count_once_for_each_point_of_their_grid(kind):
    def program(w, x):
        x = x @ w["w"]
        return by_kernel(x, w["v"] if kind == "linear" else x.T)

    with pytest.warns(UserWarning, match="stays in high precision: pallas_call stays as it is"):
        found = report(lower(program, ALL), {**W, "v": jnp.ones((16, 4))}, X)
    assert [(row.kind, row.multiply_adds) for row in found] == [("linear", LAYER), (kind, 4 * 4 * 16)]
    assert found.lowered == 16 / (16 + 4)


def test_foreign_functions_are_listed():
    shape = jax.ShapeDtypeStruct((4, 16), jnp.float32)

    def program(w, x):
        x = jax.ffi.ffi_call("mine", shape)(x @ w["w"])
        return jax.pure_callback(lambda x: np.asarray(x) @ np.eye(16, dtype=np.float32), shape, x)

    found = report(lower(program, ALL), W, X)
    assert [(row.kind, row.multiply_adds) for row in found] == [
        ("linear", LAYER),
        ("mine", None),
        ("pure_callback", None),
    ]
    assert found[""][0].reason == "ffi_call of the program, whose products are not known"


@jax.custom_vjp
def mine(x, w):
    return x @ w


mine.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


@jax.custom_jvp
def tangents(x, w):
    return x @ w


@tangents.defjvp
def _(primals, directions):
    return tangents(*primals), directions[0] @ primals[1] + primals[0] @ directions[1]


@pytest.mark.parametrize("function", [mine, tangents])
def test_a_function_with_its_own_derivative_has_wide_gradients(function):
    fn = lower(lambda w, x: function(x, w["w"]), ALL)
    with pytest.warns(UserWarning, match="has a derivative of its own"):
        found = report(fn, W, X)
    (row,) = found
    assert row.products is not None
    assert (row.products.forward, row.products.grad_a, row.products.grad_b) == (NARROW, Product(), Product())
    assert row.reason.startswith("its gradients stay in high precision: ")
    assert found.lowered == pytest.approx(1 / 3)
    x = jnp.float32(np.random.default_rng(0).normal(size=(4, 16)))
    gradient = jax.grad(lambda w: (fn(w, x) * x).sum())(W)["w"]
    # Which is what the row says: the rule is linear, so the lowered value does not enter it.
    assert np.array_equal(gradient, jax.grad(lambda w: (function(x, w) * x).sum())(W["w"]))
    assert not np.array_equal(fn(W, x), x @ W["w"])


def test_scaled_products_have_a_row():
    fn = lower(
        lambda w, x: jax.nn.scaled_matmul(
            *(a[None].astype(jnp.float8_e4m3fn) for a in (x @ w["w"], w["w"])),
            *(jnp.ones((1, n, 1), jnp.float8_e8m0fnu) for n in (4, 16)),
        ),
        ALL,
    )
    with pytest.warns(UserWarning, match="stays in high precision: qjax.linalg has no such product"):
        found = report(fn, W, X)
    assert [row.multiply_adds for row in found] == [LAYER, LAYER]


def test_a_program_without_a_product_that_can_be_lowered_is_wide():
    fn = lower(lambda v, x: complex_(x) @ v["v"], RECIPES["mxfp8"])
    v = {"v": np.ones((16, 8), np.complex64)}
    with pytest.warns(UserWarning, match="stays in high precision: its numbers are complex"):
        y = fn(v, X)
    assert np.array_equal(y, complex_(X) @ v["v"])


def test_rounded_outputs_say_that_they_have_no_forward_mode_derivatives():
    fn = lower(lambda w, x: jnp.tanh(x @ w["w"]).sum(), ["linear"], "e5m2", "e5m2", "nearest", "nearest")
    for derivative in (jax.hessian, jax.jacfwd):
        with pytest.raises(TypeError, match=r"fn has no forward-mode derivatives .* allowed are jax.jacrev"):
            derivative(fn)(W, X)
    assert jax.jacrev(jax.grad(fn))(W, X)["w"]["w"].shape == (16, 16, 16, 16)
    jax.eval_shape(jax.hessian(lower(fn.__wrapped__, ALL)), W, X)


def test_products_of_two_vectors():
    x, w = np.linspace(-0.7, 1.9, 16, dtype=np.float32), np.linspace(-1.3, 2.1, 16, dtype=np.float32)
    for function in (jnp.dot, jnp.inner, jnp.vdot, lambda x, w: jnp.einsum("i,i->", x, w)):
        fn = lower(lambda w, x, function=function: function(x, w["w"]), ALL)
        expected = qjax.linalg.linear(x[None], w[None], operands=("e5m2", "e5m2"))[0, 0]
        assert np.array_equal(fn({"w": w}, x), expected)


def test_a_recipe_has_an_argument_of_its_own():
    found = (fn(W, X) for fn in (lower(lambda w, x: x @ w["w"], recipe=ALL), lower(lambda w, x: x @ w["w"], ALL)))
    assert np.array_equal(*found)
    with pytest.raises(TypeError, match=r"recipe='mxfp9' is a str; allowed is a Recipe; did you mean mxfp8\?"):
        lower(abs, recipe="mxfp9")
    with pytest.raises(ValueError, match="layer_types beside a Recipe"):
        lower(abs, ["conv"], recipe=ALL)
    with pytest.raises(ValueError, match="formats beside a Recipe"):
        lower(abs, forward_number="int8", recipe=ALL)
