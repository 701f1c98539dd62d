"""Wrong arguments raise, before anything is traced, an error that names the argument, the value and what is allowed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from cases import BAD_CALLS, BAD_DTYPES, BAD_FORMATS, F

import qcore
import qjax
import qtorch

X = np.ones((2, 3), np.float32)
PACKAGES = {
    "qcore": (qcore.quantize, np.asarray),
    "qtorch": (qtorch.quantize, torch.from_numpy),
    "qjax": (qjax.quantize, jnp.asarray),
}
each_package = pytest.mark.parametrize("package", PACKAGES)


def check(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("make", "error", "words"), BAD_FORMATS)
def test_formats(make, error, words):
    check(make, error, words)


@each_package
@pytest.mark.parametrize(("arguments", "error", "words"), BAD_CALLS)
def test_calls(package, arguments, error, words):
    quantize, make = PACKAGES[package]
    check(lambda: quantize(make(X), **arguments), error, words)


@each_package
@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
@pytest.mark.parametrize(("dtype", "words"), BAD_DTYPES)
def test_dtypes(package, dtype, words, shape):
    quantize, make = PACKAGES[package]
    with jax.enable_x64(True):
        x = make(np.zeros(shape, dtype))
        check(lambda: quantize(x, F, "nearest"), TypeError, ["x", *words])


def test_foreign_byte_order():
    """Whose bits would be read as other numbers."""
    check(lambda: qcore.quantize(X.astype(">f4"), F, "nearest"), TypeError, ["x", ">f4", "<f4"])


@each_package
@pytest.mark.parametrize("x", [1, [1.0], None, "x"])
def test_not_an_array(package, x):
    check(lambda: PACKAGES[package][0](x, F, "nearest"), TypeError, ["x", type(x).__name__])


@pytest.mark.parametrize("package", ["qcore", "qjax"])
def test_stochastic_rounding_needs_a_key(package):
    quantize, make = PACKAGES[package]
    check(lambda: quantize(make(X), F, "stochastic"), ValueError, ["key=None", "stochastic", "int from 0"])
    if package == "qjax":
        check(lambda: qjax.quant.float_quantize(make(X), 5, 2), ValueError, ["key=None"])


@pytest.mark.parametrize("package", ["qtorch", "qjax"])
def test_quant_functions(package):
    quant = {"qtorch": qtorch.quant, "qjax": qjax.quant}[package]
    x = PACKAGES[package][1](X)
    check(lambda: quant.float_quantize(x, 5, 53), ValueError, ["man", "53"])
    check(lambda: quant.float_quantize(x, [5], 2), TypeError, ["exp", "[5]"])
    check(lambda: quant.fixed_point_quantize(x, 0, 2), ValueError, ["wl", "0"])
    check(lambda: quant.block_quantize(x, 8, 2, "nearest"), ValueError, ["dim", "2"])
    check(lambda: quant.block_quantize(x, 8, rounding="upward"), ValueError, ["rounding", "'upward'"])


def test_foreign_keys():
    check(
        lambda: qjax.quantize(jnp.ones(3), F, "stochastic", key=jax.random.key(0, impl="rbg")),
        ValueError,
        ["key", "rbg"],
    )
    check(
        lambda: qjax.quantize(jnp.ones(3), F, "stochastic", key=jax.random.split(jax.random.key(0))),
        ValueError,
        ["key", "shape"],
    )
    check(
        lambda: qtorch.quantize(torch.ones(3), F, "stochastic", key=torch.ones(2)), ValueError, ["key", "torch.float32"]
    )


def test_errors_come_before_tracing():
    check(lambda: jax.jit(lambda x: qjax.quantize(x, F, "neerest"))(jnp.ones(3)), ValueError, ["rounding"])
    check(lambda: torch.func.vmap(lambda x: qtorch.quantize(x, F, "neerest"))(torch.ones(3)), ValueError, ["rounding"])
