"""Sequential sums in float32 against the law in float64: the same bits for every format that may have them."""

import numpy as np
import pytest
from support import assert_same_bits

import qcore
from qcore import Accumulator, Rounding, namespace
from qcore.formats.number import check_number
from qcore.linalg.exactness import FloatRule, float32_suffices, sums_are_multiples, sums_stay_below
from qcore.linalg.namespace import Float64

NUMBERS = ["float(6,9)", "binary(5,9)", "binary(5,4)", "e4m3fn", "float(4,3,bias=9)", "float(6,7)", "e4m3fnuz"]
MODES = {"nearest": 24, "nearest_away": 24, "nearest_down": 24, "toward_zero": 24, "stochastic": 14, "stochastic, 1": 1}


def totals_and_terms(number, rng):
    """Numbers of a format side by side with products of e4m3fn and e2m1fn numbers, among them ties and neighbours."""
    size = 20000
    x = rng.standard_normal(size) * np.exp2(rng.integers(-36, 34, size))
    x[: size // 4] *= 2.0**60  # beyond the range
    x[: size // 8 : 3], x[1 : size // 8 : 50] = 0.0, np.nan
    total = qcore.quantize(x.astype(np.float32), number)
    total[::97], total[1::97] = -0.0, 0.0
    total[5::997] = np.inf * np.sign(rng.standard_normal(len(total[5::997])))
    a, b = (
        qcore.quantize(rng.standard_normal(size).astype(np.float32) * 2.0**e, one)
        for e, one in ((0, "e4m3fn"), (1, "e2m1fn"))
    )
    term = np.where(rng.random(size) < 0.1, np.float32(0), a * b)
    half = rng.random(size) < 0.4  # close to halves of the total's steps
    with np.errstate(all="ignore"):
        steps = np.exp2(np.floor(np.log2(np.abs(total))) - check_number(number).magnitudes.man - 1)
        near = steps * rng.integers(-3, 4, size) * (1 + rng.integers(-1, 2, size) / 64.0)
    held = half & np.isfinite(near) & (np.abs(near) < 448 * 6) & (np.abs(near) > 2.0**-30)
    return total, np.where(held, near, term).astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_bits_are_those_of_float64(number, mode):
    rounding, random_bits = Rounding(mode.split(",")[0]), MODES[mode]
    accumulator = Accumulator(number, 1, rounding, random_bits=random_bits)
    assert float32_suffices(*map(check_number, ("e2m1fn", "e2m1fn")), accumulator.number, rounding, random_bits)
    rng = np.random.default_rng(0)
    total, term = totals_and_terms(number, rng)
    word = (rng.integers(0, 1 << 31, total.size, dtype=np.int64) >> (31 - random_bits) << (31 - random_bits)).astype(
        np.int32
    )
    word = word if rounding is Rounding.STOCHASTIC else None
    names, rule = Float64((1, 2)), FloatRule(accumulator)
    names.words = lambda *_: word.astype(np.int64)
    with np.errstate(all="ignore"):
        sums = total.astype(np.float64) + term + 0.0
        expected = names.rounded(sums, accumulator.number, rounding, 0, random_bits).astype(np.float32)
        cut = rule.plus(Float64, total, term) + np.float32(0)
        found = rule.rounded(Float64, namespace.Names, cut, word)
    real = expected == expected
    assert_same_bits(found[real], expected[real])
    assert np.isnan(found[~real]).all()
    assert len(np.unique(expected)) > 20
    if word is not None:
        multiple = term / np.exp2(accumulator.number.span[1]) % 1 == 0
        below = np.isfinite(total) & (np.abs(expected) < np.exp2(accumulator.number.span[2]))
        for kept, stays in ((multiple, False), (multiple & below, True)):
            by_integers = FloatRule(accumulator, multiples=True, below=stays)
            with np.errstate(all="ignore"):
                found = by_integers.rounded(Float64, namespace.Names, cut, word)
            assert_same_bits(found[kept & real], expected[kept & real])
            assert np.isnan(found[kept & ~real]).all()
            assert kept.sum() > 2000


def test_which_sums_are_multiples_and_stay_below():
    e4m3, e5m2, half, float16 = (check_number(text) for text in ("e4m3fn", "e5m2", "float(6,9)", "float16"))
    assert sums_are_multiples(e4m3, e4m3, float16)
    assert sums_are_multiples(e5m2, e5m2, half)
    assert not sums_are_multiples(e5m2, e4m3, float16)  # 2^-25
    assert sums_stay_below(e4m3, e4m3, half, 512)
    assert not sums_stay_below(e4m3, e4m3, half, 4096)
    assert not sums_stay_below(e5m2, e4m3, half, 1)
    assert not sums_stay_below(e4m3, e4m3, float16, 1)
    assert sums_stay_below(e4m3, e4m3, half, 0)


def test_sums_that_stay_below_do():
    """The largest products, which all round up."""
    terms, total = 1000, 0.0
    assert sums_stay_below(*[check_number("e4m3fn")] * 2, check_number("float(6,9)"), terms)
    for _ in range(terms):
        mantissa, exponent = np.frexp(total + 448.0 * 448.0)
        total = np.ldexp(np.ceil(np.ldexp(mantissa, 10)), exponent - 10)
    assert total < 2.0**32


@pytest.mark.parametrize(
    ("operands", "number", "mode", "random_bits"),
    [
        ("e4m3fn", "float(6,12)", "nearest", 24),  # 13 bits: two roundings to nearest may differ from one
        ("e4m3fn", "float(6,9)", "stochastic", 15),
        ("e4m3fn", "float(6,9)", "up", 24),
        ("float(8,12)", "float(6,9)", "toward_zero", 24),  # 26 bits of products
        ("float(8,2)", "float(6,9)", "toward_zero", 24),  # subnormal products
        ("e4m3fn", "bfloat16", "nearest", 24),
        (None, "float(6,9)", "toward_zero", 24),
    ],
)
def test_other_sums_stay_in_float64(operands, number, mode, random_bits):
    pair = [None if operands is None else check_number(operands)] * 2
    assert not float32_suffices(*pair, check_number(number), Rounding(mode), random_bits)
