"""qjax.quantizer: values and gradients against their definition in NumPy, under JAX's transformations; nnx's module."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_same_bits

import qcore
import qjax
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint

F8, F16, FIXED = FloatingPoint(5, 2), FloatingPoint(6, 9), FixedPoint(4, 2)
HARD = np.float32(
    [0, -0.0, 1e-45, -1e-40, 0.125, -0.125, 0.375, 1.75, 1.76, 1.87, 1.875, -2, -2.1, -2.125, -2.25, 1e30, -1e30]
    + [np.inf, -np.inf, np.nan]
)
RANDOM = np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
X = np.stack([np.concatenate([HARD, RANDOM[0] * 2]), np.concatenate([HARD[::-1], RANDOM[1]])])
G = np.stack([np.concatenate([HARD[::-1], RANDOM[1]]), np.concatenate([HARD, RANDOM[0] * 3])])
KEY = 2**32 + 7  # a word of each kind


def negate(grad):
    return -grad


def invert_bits(grad):
    return (grad.view(jnp.int32) ^ 0x00555555).view(jnp.float32)


def words(key):
    return tuple(map(int, np.asarray(jax.random.key_data(key))))


def value(f, x, key):
    return x if f.forward_number is None else qcore.quantize(x, f.forward_number, f.forward_rounding, key=key)


def gradient(f, x, grad, key):
    """The definition, in NumPy."""
    for hook in f.backward_hooks:
        grad = np.asarray(hook(jnp.asarray(grad)))
    if f.backward_number is not None:
        grad = qcore.quantize(grad, f.backward_number, f.backward_rounding, key=qcore.fold_in(key, 1))
    number = f.forward_number
    if f.clamping_grad_zero and number is not None and number.clamp:
        largest = 2.0 ** (number.wl - number.fl - 1) - 2.0**-number.fl
        smallest = -largest if number.symmetric else -(2.0 ** (number.wl - number.fl - 1))
        rounded = qcore.quantize(x, replace(number, clamp=False), f.forward_rounding, key=key)
        grad = np.where((rounded > largest) | (rounded < smallest), np.float32(0), grad)
    return grad


def pull(f, x, grad, key):
    y, back = jax.vjp(lambda x: f(x, key=key), x)
    return y, back(grad)[0]


QUANTIZERS = {
    "float": qjax.quantizer(F8, F16),
    "names": qjax.quantizer("e4m3fn", "e5m2", "nearest", "toward_zero"),
    "forward": qjax.quantizer(F8),
    "backward": qjax.quantizer(None, F8),
    "nearest forward": qjax.quantizer(F8, F8, "nearest"),
    "nearest backward": qjax.quantizer(F8, F8, backward_rounding="nearest"),
    "nothing": qjax.quantizer(),
    "hooks": qjax.quantizer(F8, F8, "nearest", "stochastic", False, [negate, invert_bits]),
    "hooks alone": qjax.quantizer(backward_hooks=(invert_bits, negate)),
    "block": qjax.quantizer(BlockFloatingPoint(4, 0), BlockFloatingPoint(4)),
    "mask": qjax.quantizer(FIXED, F8, clamping_grad_zero=True),
    "mask nearest": qjax.quantizer(FIXED, F8, "nearest", "nearest", True, [negate]),
    "mask alone": qjax.quantizer(FixedPoint(4, 2, symmetric=True), None, clamping_grad_zero=True),
    "no mask": qjax.quantizer(FixedPoint(4, 2, clamp=False), F8, clamping_grad_zero=True),
    "mask of nothing": qjax.quantizer(None, F8, clamping_grad_zero=True),
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_values_and_gradients_are_the_definition(name):
    f = QUANTIZERS[name]
    for pulled in (pull, jax.jit(pull, static_argnums=(0, 3))):
        y, grad = pulled(f, jnp.asarray(X), jnp.asarray(G), KEY)
        assert_same_bits(y, value(f, X, KEY), "value")
        assert_same_bits(grad, gradient(f, X, G, KEY), "gradient")
