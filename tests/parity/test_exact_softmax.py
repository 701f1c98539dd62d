"""Softmax whose sum has no order: the same bits beside masked numbers, in any order, in the three packages."""

import ctypes

import jax
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore.reproducible
import qjax.reproducible
import qtorch.reproducible
from benchmarks.support.inputs import tie_row
from qtorch._kernels import products, store

f = np.float32
FRAMEWORKS = {
    "numpy": qcore.reproducible.softmax,
    "torch": lambda x: qtorch.reproducible.softmax(torch.from_numpy(x)).numpy(),
    "jax": lambda x: np.asarray(qjax.reproducible.softmax(x)),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_row_on_a_tie_of_float32_is_free_of_its_padding(framework):
    """Sums by halves differ for 8 of 36 paddings, and 3 of 20 orders; ordinary rows do not show it."""
    softmax, row = FRAMEWORKS[framework], tie_row()
    base = softmax(row)
    for padding in range(0, 9000, 250) if framework != "jax" else [500]:  # XLA compiles each length
        longer = np.concatenate([row, np.full(padding, -np.inf, f)])
        assert_same_bits(softmax(longer)[: len(row)], base, padding)
    orders = np.stack([np.random.default_rng(seed).permutation(len(row)) for seed in range(20)])
    for order, found in zip(orders, softmax(row[orders]), strict=True):
        assert_same_bits(found, base[order], framework)


def test_the_sum_in_integers():
    """Beside Python's integers."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal(200), 30 * rng.standard_normal(97), np.linspace(-104, 0, 64), np.full(7, 3e38), tie_row()
    for row in rows:
        row = row.astype(f)
        e = np.exp((row - row.max()).astype(np.float64)).astype(f)
        e[e <= 2.0**-126] = 0
        total = sum(int(float(one) * 2**42) for one in e)
        expected = (e.astype(np.float64) / (float(f(total)) * 2.0**-42)).astype(f)
        assert_same_bits(qcore.reproducible.softmax(row), np.where(expected <= 2.0**-126, f(0), expected))


def extremes(length):
    """Rows with subnormal numbers, ties, infinities and NaN."""
    x = np.random.default_rng(length).standard_normal((10, length)).astype(f)
    x[1] *= 1000
    x[2] *= f(1e-39)
    x[3], x[4], x[5, ::2] = 0, -np.inf, -np.inf
    x[6, 0], x[7, -1] = np.inf, np.nan
    x[8] = x[8] * f(0.4) - 87  # exponentials near 2^-126
    x[8, 0] = 0
    x[9] = np.linspace(-104, 0, length)
    return x


@pytest.mark.parametrize("length", [1, 600])
def test_extremes(length):
    x = extremes(length)
    expected = qcore.reproducible.softmax(x)
    assert np.isnan(expected[[4, 6, 7]]).all()
    assert_same_bits(FRAMEWORKS["torch"](x), expected, "by a kernel")
    turned = qtorch.reproducible.softmax(torch.from_numpy(x).T, 0)
    assert_same_bits(turned.numpy(), np.ascontiguousarray(expected.T), "along the first axis")
    by_operations = torch.func.vmap(qtorch.reproducible.softmax)(torch.from_numpy(x))
    assert_same_bits(by_operations.numpy(), expected, "operation by operation")
    assert_same_bits(FRAMEWORKS["jax"](x), expected, "jax")


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [(10, 600), (3, 5426)])
def test_compiled_programs(shape):
    x = extremes(600) if shape[1] == 600 else np.stack([tie_row()] * 3)
    expected = qcore.reproducible.softmax(x)
    compiled = torch.compile(lambda x: qtorch.reproducible.softmax(x * 1.0) * 1.0, fullgraph=True, dynamic=True)
    assert_same_bits(compiled(torch.from_numpy(x)).numpy(), expected, "torch.compile")
    program = jax.jit(lambda x: qjax.reproducible.softmax(x * 1.0) * 1.0)
    assert_same_bits(np.asarray(program(x)), expected, "jit")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_sums_of_more_numbers_have_larger_units(framework):
    """2^21 ones in units of 2^-42 would fill 64 bits."""
    found = FRAMEWORKS[framework](np.zeros((1, 2**21 + 1), f))
    assert (found == f(1 / f(2**21 + 1))).all()


@pytest.mark.heavy
def test_exp_of_the_kernel_is_that_of_numpy():
    """All numbers of float32 from -104 to -2^-27, above which exp rounds to 1."""
    extra = """
void exponentials(int32_t first, int64_t count, FLOAT32* y) {
    #pragma omp parallel for simd
    for (int64_t i = 0; i < count; ++i) y[i] = settled((FLOAT32)exponential(float32(first + (int32_t)i)));
}
"""
    run = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p)(
        store.address(products.source_of_softmax() + extra, "exponentials")
    )
    least, most = np.array([2.0**-27, 104], f).view(np.int32)
    step, found = 1 << 22, np.empty(1 << 22, f)
    for first in range(int(least), int(most) + 1, step):
        count = min(step, int(most) + 1 - first)
        bits = np.arange(first, first + count, dtype=np.int32) | np.int32(-(2**31))
        run(int(bits[0]), count, found.ctypes.data)
        expected = np.exp(bits.view(f).astype(np.float64)).astype(f)
        expected[expected <= 2.0**-126] = 0
        assert (found[:count] == expected).all()
