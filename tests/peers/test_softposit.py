"""SoftPosit's conversions: its posits of 8, 16 and 32 bits with es = 0, 1 and 2, and with es = 2 those of any width."""

import numpy as np
import pytest
from peer_support import compare, inside, patterns, points, same_numbers, widened

import qcore
from qcore import Posit

softposit = pytest.importorskip("softposit")

# format: (conversion from a float, code and float of what that gives)
OWN = {
    Posit(8, 0): (softposit.convertDoubleToP8, lambda posit: posit.v, softposit.convertP8ToDouble),
    Posit(16, 1): (softposit.convertDoubleToP16, lambda posit: posit.v, softposit.convertP16ToDouble),
    Posit(32, 2): (softposit.convertDoubleToP32, lambda posit: posit.v, softposit.convertP32ToDouble),
}


def of_width(bits):
    """Its posits with es = 2, whose codes are the highest bits of 32."""
    convert = softposit.convertDoubleToPX2
    return lambda x: convert(x, bits), lambda posit: posit.v >> (32 - bits), softposit.convertPX2ToDouble


def nar(x):
    """SoftPosit reads the code of NaR as infinity, but for 32 bits; here it is NaN."""
    return ~np.isfinite(x)


def hard(number, count):
    """Posits and the midpoints of their codes, which are the posits of one more bit, among other points."""
    finer, rng = Posit(min(number.bits + 1, 32), number.es), np.random.default_rng(0)
    few = finer.bits <= 12
    codes = np.arange(1 << finer.bits) if few else rng.integers(0, 1 << finer.bits, count)
    x = points(qcore.decode(codes, finer, np.float64), np.float64)
    return x if few else rng.choice(x, count)


def compared(x, number, theirs):
    """How often numbers differ for each reason; codes never do."""
    convert, code_of, float_of = theirs
    posits = [convert(value) for value in x.tolist()]
    codes, values = np.array([code_of(posit) for posit in posits]), np.array([float_of(posit) for posit in posits])
    np.testing.assert_array_equal(qcore.encode(x, number), codes)
    known = {} if np.isnan(float_of(convert(np.nan))) else {"nar": nar(x)}
    return compare(x, same_numbers(qcore.quantize(x, number, "nearest"), values), known, str(number))


@pytest.mark.parametrize("number", OWN, ids=str)
def test_points(number):
    counts = compared(hard(number, 30_000), number, OWN[number])
    assert number.bits > 8 or counts == {"nar": 12}


@pytest.mark.parametrize("number", OWN, ids=str)
def test_random(number):
    numbers = np.array([2.0**-number.largest_exponent, 2.0**number.largest_exponent])
    compared(widened(patterns(30_000)), number, OWN[number])
    compared(inside(numbers, 30_000, np.float64), number, OWN[number])


@pytest.mark.parametrize("bits", range(2, 33))
def test_points_of_any_width(bits):
    number = Posit(bits)
    compared(hard(number, 5_000), number, of_width(bits))
    compared(widened(patterns(5_000)), number, of_width(bits))


@pytest.mark.parametrize("number", [Posit(8, 0), Posit(16, 1)], ids=str)
def test_all_codes_decoded(number):
    kind = {8: softposit.posit8, 16: softposit.posit16}[number.bits]
    codes = np.arange(1 << number.bits)
    theirs = np.array([float(kind(bits=code)) for code in codes.tolist()])
    same = same_numbers(qcore.decode(codes, number, np.float64), theirs)
    assert compare(theirs, same, {"nar": nar(theirs)}, str(number)) == {"nar": 1}
