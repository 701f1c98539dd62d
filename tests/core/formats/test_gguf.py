"""GGUF's types as formats: bytes against an oracle in plain loops, and what ggml leaves open."""

import ml_dtypes
import numpy as np
import oracle_gguf
import pytest
from support import assert_same_bits

import qcore
from qcore.exchange.formats.gguf import GGUF
from qcore.exchange.formats.gguf_law import _ROUNDED_UP, LAYOUTS, _subnormal_reciprocal
from qcore.formats.spellings import GGUF_TYPES
from qcore.namespace import Names

WRITTEN = [kind for kind, layout in LAYOUTS.items() if layout.encode]


def blocks_of(kind, rows, seed=0, most=14):
    """Blocks of many magnitudes, some of them on a grid, so that ties occur, and one of zeros."""
    rng, size = np.random.default_rng(seed), LAYOUTS[kind].size
    least = -10 if kind.endswith("k") else -30  # whose oracle's products are too small for float32 below that
    x = rng.standard_normal((rows, size)) * np.exp2(rng.integers(least, most, (rows, 1)))
    x[::4] = rng.integers(-16, 17, (len(x[::4]), size)) * np.exp2(rng.integers(-6, 6, (len(x[::4]), 1)))
    x[1] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", WRITTEN)
def test_bytes_of_numbers(kind):
    x = blocks_of(kind, 5 if kind.endswith("k") else 60)
    expected = np.stack([np.frombuffer(oracle_gguf.ENCODERS[kind](row), np.uint8) for row in x])
    found = qcore.encode(x, f"gguf({kind})")
    assert_same_bits(found, expected)
    assert_same_bits(qcore.encode(x.reshape(len(x) // 5, -1), f"gguf({kind})"), expected.reshape(len(x) // 5, -1))
    assert_same_bits(qcore.quantize(x, f"gguf({kind})"), qcore.decode(found, f"gguf({kind})"))


@pytest.mark.parametrize("kind", oracle_gguf.DECODERS)
def test_numbers_of_bytes(kind):
    """The types that gguf-py does not decode; tests/peers has the others."""
    size, width, decode = oracle_gguf.DECODERS[kind]
    rows = np.random.default_rng(0).integers(0, 256, (50, width), np.uint8)
    rows[:, 1] &= 0x7B  # no infinite scales
    expected = np.float32([decode(row.tobytes()) for row in rows])
    assert expected.shape == (50, size)
    assert_same_bits(qcore.decode(rows, f"gguf({kind})"), expected)


def test_logarithms_just_below_powers_of_two():
    """MXFP4's exponents follow from float32 logarithms, which round some of the numbers below 2^k up to k."""
    for k in range(-120, 128):
        ulps = _ROUNDED_UP[k + 127]
        below = np.float32(2.0**k) - np.float32(2.0 ** (k - 24)) * np.float32([max(ulps, 1), ulps + 1])
        logarithms = np.log2(below.astype(np.float64)).astype(np.float32)
        assert (np.floor(logarithms) == [k if ulps else k - 1, k - 1]).all(), k


@pytest.mark.parametrize("kind", WRITTEN)
def test_numbers_that_are_not_finite(kind):
    number, size = GGUF(kind), LAYOUTS[kind].size
    x = np.ones((3, size), np.float32)
    x[0, 5], x[1, 6] = np.nan, -np.inf
    assert np.isnan(qcore.quantize(x, number)[:2]).all()
    assert np.isfinite(qcore.quantize(x, number)[2]).all()
    has_nan = kind not in ("mxfp4", "nvfp4")
    assert np.isnan(qcore.decode(qcore.encode(x, number), number)[:2]).all() == has_nan
    assert has_nan or not qcore.encode(x, number)[:2].any()


@pytest.mark.parametrize("kind", WRITTEN)
def test_the_largest_numbers(kind):
    """Scales are infinite, and so are searches' fits; codes stay codes."""
    x = np.random.default_rng(0).choice(np.float32([3.4028235e38, -3.4028235e38, 0, 1]), (20, LAYOUTS[kind].size))
    x[0] = 3.4028235e38
    assert_same_bits(qcore.quantize(x, GGUF(kind)), qcore.decode(qcore.encode(x, GGUF(kind)), GGUF(kind)))


def test_other_dtypes_and_rows_that_are_not_full():
    x = blocks_of("q5_1", 20)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        small = x.astype(dtype)
        expected = qcore.quantize(small.astype(np.float32), "gguf(q5_1)")
        assert_same_bits(qcore.encode(small, "gguf(q5_1)"), qcore.encode(small.astype(np.float32), "gguf(q5_1)"))
        assert_same_bits(qcore.quantize(small, "gguf(q5_1)"), expected.astype(dtype))
        assert_same_bits(qcore.decode(qcore.encode(small, "gguf(q5_1)"), "gguf(q5_1)", dtype), expected.astype(dtype))
    filled = np.concatenate([x[0, :7], np.zeros(25, np.float32)])
    assert_same_bits(qcore.quantize(x[0, :7], "gguf(q5_1)"), qcore.quantize(filled, "gguf(q5_1)")[:7])
    assert_same_bits(qcore.quantize(x[0, :1], "gguf(q8_0)"), qcore.quantize(x[0, 0], "gguf(q8_0)").reshape(1))
    assert qcore.encode(np.empty((0, 64), np.float32), "gguf(q4_0)").shape == (0, 36)
    assert qcore.decode(np.empty((3, 0), np.uint8), "gguf(q4_k)").shape == (3, 0)


def test_types_are_those_of_the_law():
    assert tuple(LAYOUTS) == GGUF_TYPES


def test_texts():
    assert qcore.parse("gguf(Q4_K)") == GGUF("q4_k") == GGUF("Q4_K")
    assert GGUF("iq4_nl").text == "gguf(iq4_nl)"


X = np.ones((2, 33), np.float32)
WRONG = {
    "number='gguf(iq4_nl)' can only be decoded": lambda: qcore.quantize(X, "gguf(iq4_nl)"),
    "forward_number='gguf(iq4_xs)' can only be decoded": lambda: qcore.Quantization("gguf(iq4_xs)"),
    "number='gguf(iq4_xs)' can only be decoded": lambda: qcore.Operand("gguf(iq4_xs)"),
    "rounding='stochastic'; allowed for gguf(q4_0) is 'nearest'": lambda: qcore.encode(
        X, GGUF("q4_0"), "stochastic", key=1
    ),
    "x has shape (2, 33); allowed for gguf(q8_0) is a last axis with a multiple of 32": lambda: qcore.encode(
        X, "gguf(q8_0)"
    ),
    "codes has shape (33,); allowed for gguf(q8_0) is a last axis with a multiple of 34": lambda: qcore.decode(
        np.zeros(33, np.uint8), "gguf(q8_0)"
    ),
    "x has dtype float64": lambda: qcore.quantize(X.astype(np.float64), "gguf(q4_0)"),
    "scales is a ndarray; allowed is None": lambda: qcore.decode(np.zeros(34, np.uint8), "gguf(q8_0)", scales=X),
    "type='q4'; allowed are q4_0": lambda: GGUF("q4"),
    "type=4 is a int; allowed are q4_0": lambda: GGUF(4),
    "overflow='inf'": lambda: qcore.quantize(X, "gguf(q4_0)", overflow="inf"),
    "the result has dtype float64": lambda: qcore.decode(np.zeros(34, np.uint8), "gguf(q8_0)", np.float64),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        WRONG[message]()
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["tq1_0", "tq2_0", "q2_0"])
def test_largest_numbers_with_subnormal_reciprocals(kind):
    """Scales of ternary types are the largest number itself: above 2^126 its reciprocal is below 2^-126."""
    rng, size, f = np.random.default_rng(0), LAYOUTS[kind].size, np.float32
    most = np.ldexp(rng.uniform(1, 3.9, (400, 1)), 126).astype(f)
    parts = rng.choice([0.9, -0.9, 0.5, -0.5, 0.3], (400, size)) * (1 + rng.integers(-3, 4, (400, size)) * 2.0**-24)
    x = np.concatenate([most, (most * parts).astype(f)[:, 1:]], 1)
    products = x * (f(1) / most)
    expected = np.sign(products) * (np.abs(products) >= 0.5)
    numbers = qcore.quantize(x, GGUF(kind))  # the scale is infinite as float16
    np.testing.assert_array_equal(np.where(np.isnan(numbers), 0, np.sign(numbers)), expected)


def test_subnormal_reciprocals():
    low = np.random.default_rng(0).integers(1, 2**23, 2**18) * 2.0**-23
    d = np.concatenate([np.ldexp(1 + low, 126), np.ldexp(1 + low, 127), [2.0**127]]).astype(np.float32)
    found = _subnormal_reciprocal(Names, d)
    np.testing.assert_array_equal(found * np.float32(2.0**-126), np.float32(1) / d)
