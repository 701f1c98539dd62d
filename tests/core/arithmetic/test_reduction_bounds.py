"""Bounds of sums that P3109 suggests (annex E) hold for accumulators, in random and in the worst cases found."""

from fractions import Fraction

import numpy as np
import pytest

import qcore
from qcore import Accumulator, arithmetic, linalg

ACCUMULATORS = {
    "float16": Accumulator("float16", chunk=1),
    "chunks of 2": Accumulator("float16", chunk=2),
    "tree": Accumulator("float16", chunk=8, tree=True),
    "bfloat16": Accumulator("bfloat16", chunk=1),
}


def constant(block, precision, result):
    """(1 + 2^-P) ((1 + 2^-p)^(B - 1) - 1): the part of the bound that the sum of magnitudes multiplies."""
    return (1 + Fraction(1, 2**result)) * ((1 + Fraction(1, 2**precision)) ** (block - 1) - 1)


def test_constants_are_those_of_the_report():
    assert round(constant(8, 11, 4) + Fraction(1, 2 * 10**6), 6) == Fraction(3637, 10**6)
    assert 0.06613 < (1 + Fraction(1, 16)) * (1 + Fraction(1, 2**11)) ** 7 - 1 < 0.06614


def share_of_bound(name, x, y):
    """The part of its bound that each dot product's error is; none with overflow or underflow of the result."""
    exact = (terms := x.astype(np.float64) * y).sum(axis=-1)
    found = linalg.matmul(x[:, None], y[:, :, None], accumulator=ACCUMULATORS[name])[:, 0, 0]
    error = abs(exact - qcore.quantize(found, "binary8p4se"))
    factor = float(constant(x.shape[-1], 8 if name == "bfloat16" else 11, 4))
    bound = abs(exact) / 16 + factor * abs(terms).sum(axis=-1)
    return np.where((abs(exact) < 200) & (abs(exact) > 2.0**-6), error / bound, 0)


def check(name, block, rows, rounds):
    """Dot products, and sums, which are those with ones: random operands, then changes that make errors larger."""
    rng, numbers = np.random.default_rng(block), qcore.decode(np.arange(256), "binary8p4se")
    numbers = numbers[np.isfinite(numbers) & (abs(numbers) <= 16) & (abs(numbers) >= 2.0**-4)]
    for factors in (numbers, np.float32([1.0])):
        best = [rng.choice(numbers, (rows, block)), rng.choice(factors, (rows, block))]
        share = share_of_bound(name, *best)
        for _ in range(rounds):
            fresh = rng.choice(numbers, (rows, block)), rng.choice(factors, (rows, block))
            tried = [np.where(rng.random((rows, block)) < 0.2, *pair) for pair in zip(fresh, best, strict=True)]
            found = share_of_bound(name, *tried)
            best = [np.where((found > share)[:, None], *pair) for pair in zip(tried, best, strict=True)]
            share = np.maximum(share, found)
        assert 0.2 < share.max() <= 1


@pytest.mark.parametrize("block", [8, 32])
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_sums_and_dot_products(name, block):
    check(name, block, 200, 12)


@pytest.mark.heavy
@pytest.mark.parametrize("block", [8, 32])
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_many_sums_and_dot_products(name, block):
    check(name, block, 5000, 300)


def test_products():
    """Products of eight numbers in binary16, one after the other, without underflow and overflow."""
    rng = np.random.default_rng(0)
    numbers = qcore.decode(np.arange(256), "binary8p4se")
    numbers = numbers[np.isfinite(numbers) & (abs(numbers) > 0.6) & (abs(numbers) < 1.8)]
    x = rng.choice(numbers, (20000, 8)).astype(np.float16)
    found = x[:, 0]
    for i in range(1, 8):
        found = arithmetic.multiply(found, x[:, i])
    result = qcore.quantize(found.astype(np.float32), "binary8p4se")
    exact = x.astype(np.float64).prod(axis=-1)  # of 32 bits
    share = abs(exact - result) / (abs(exact) * 0.06614)
    assert 0.8 < share.max() <= 1
