"""Products with an addend: the oracle's bits, and contractions that are split over calls."""

import numpy as np
import oracle_products
import pytest
from products_support import ACCUMULATORS, inputs, oracle_form
from support import assert_same_bits

import qcore
from qcore import Accumulator, Operand, Scale
from qcore.linalg import matmul
from qcore.linalg.accumulator import FLOAT64_NUMBER

KEY = 0x123456789ABCDEF
WORDS = KEY >> 32, KEY & 0xFFFFFFFF
# docs/products.md: one rounding of all terms, float64 and random words do not survive the end of a call.
SPLIT = [
    name
    for name, one in ACCUMULATORS.items()
    if one.chunk is not None and one.number != FLOAT64_NUMBER and not one.stochastic
]


def three(kind, terms, batch=()):
    (a, b), (c, _) = inputs(kind, 3, terms, 4, batch), inputs(kind, 3, 4, 4, batch)
    return a, b, c


@pytest.mark.parametrize("kind", ["normal", "special", "zeros", "subnormal"])
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_the_accumulator_starts_at_the_addend(name, kind):
    accumulator = ACCUMULATORS[name]
    for terms in (0, 1, 19):
        a, b, c = three(kind, terms)
        expected = oracle_products.matmul(a, b, oracle_form(accumulator), WORDS, c)
        assert_same_bits(matmul(a, b, c, accumulator=accumulator, key=KEY), expected, str(terms))


@pytest.mark.parametrize("kind", ["normal", "special", "cancelling"])
@pytest.mark.parametrize("name", SPLIT)
def test_a_sum_over_two_calls_has_the_bits_of_one(name, kind):
    a, b, c = three(kind, 40, (2,))
    accumulator = ACCUMULATORS[name]
    for chunks in (0, 1, 2):
        k = chunks * accumulator.chunk
        first = matmul(a[..., :k], b[:, :k], c, accumulator=accumulator)
        found = matmul(a[..., k:], b[:, k:], first, accumulator=accumulator)
        assert_same_bits(found, matmul(a, b, c, accumulator=accumulator))


@pytest.mark.parametrize("accumulator", [Accumulator(), Accumulator(FLOAT64_NUMBER, chunk=1)])
def test_sums_that_round_once_differ_over_two_calls(accumulator):
    """2^-24 three times beside 1: the first call loses the first of them."""
    a, b = np.float32([[1, 2.0**-24, 2.0**-24, 2.0**-24]]), np.ones((4, 1), np.float32)
    first = matmul(a[:, :2], b[:2], accumulator=accumulator)
    assert matmul(a, b, accumulator=accumulator) == 1 + 2.0**-22
    assert matmul(a[:, 2:], b[2:], first, accumulator=accumulator) == 1 + 2.0**-23


def test_tiles_have_scales_and_the_addend_has_none():
    rng = np.random.default_rng(2)
    x, y, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 64), (64, 4), (3, 4)))
    tiled = Operand("e4m3fn", scale=Scale(1, 32))
    options = {"operands": (tiled, tiled), "accumulator": Accumulator(chunk=32)}
    first = matmul(x[:, :32], y[:32], c, **options)
    assert_same_bits(matmul(x[:, 32:], y[32:], first, **options), matmul(x, y, c, **options))


WRONG = [
    (np.ones((2, 3), np.float32), {}, ValueError, "c has shape (2, 3); allowed is (2, 2), the shape of the result"),
    (np.ones((2, 2)), {}, TypeError, "c has dtype float64; allowed is float32"),
    ([[1.0]], {}, TypeError, "c is a list; allowed are a NumPy array of float32 and None"),
    (
        np.ones((2, 2), np.float32),
        {"operands": (Operand("e4m3fn", scale=Scale()), None)},
        ValueError,
        "c with scale(); allowed are operands without scales of whole tensors",
    ),
]


@pytest.mark.parametrize(("c", "options", "error", "words"), WRONG, ids=[case[3] for case in WRONG])
def test_wrong_addends(c, options, error, words):
    a = np.ones((2, 2), np.float32)
    with pytest.raises(error) as caught:
        qcore.linalg.matmul(a, a, c, **options)
    assert words in str(caught.value)
