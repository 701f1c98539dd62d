"""APyTypes: fixed point and IEEE-like floats, in all its roundings that have a name here.

Left out are TRN_MAG and JAM, which move numbers that the format has, TIES_ODD, and the stochastic ones.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from apytypes import APyFixedArray, APyFloatArray, OverflowMode
from apytypes_modes import MODES
from covering import some, usually
from peer_support import PATTERNS, compare, inside, patterns, points, same_numbers, widened

import qcore
from qcore import BinaryFloat, FixedPoint

INT_BITS, FRAC_BITS = 130, 150  # all that float32 has, exactly


def lengths(wl):
    """Steps of a fraction, below it, and above 1."""
    return wl // 2, wl + 3, -2


def finite(x):
    """What APyTypes accepts, exactly: it raises for infinity and NaN."""
    x = x[np.isfinite(x)].astype(np.float64)
    x = x[np.abs(x) < 2.0 ** (INT_BITS - 1)]
    return x[np.ldexp(x, FRAC_BITS) % 1 == 0]


def exact(x):
    return APyFixedArray.from_float(x, int_bits=INT_BITS, frac_bits=FRAC_BITS)


def rounded(x, fl, mode, bits=INT_BITS + FRAC_BITS):
    """Multiples of 2^-fl, as they are in a register of so many bits."""
    overflow = OverflowMode.WRAP
    return exact(x).cast(int_bits=bits - fl, frac_bits=fl, quantization=MODES[mode], overflow=overflow)


def wrapped(x, number, mode):
    """By way of 64 bits, see `test_wrapping_from_more_than_64_bits`."""
    return rounded(x, number.fl, mode, 64).cast(int_bits=number.wl - number.fl, frac_bits=number.fl)


def saturated(x, number, mode):
    wl = number.wl + (not number.signed)
    overflow = OverflowMode.SAT
    return exact(x).cast(bits=wl, frac_bits=number.fl, quantization=MODES[mode], overflow=overflow)


def peer(x, number, mode):
    """Numbers and codes. APyTypes has signed numbers only: unsigned saturating ones have a bit more there, and what is
    negative becomes 0; unsigned wrapping ones are the signed ones' bits."""
    fixed = (wrapped if number.wrap else saturated)(x, number, mode)
    codes = fixed.to_bits(numpy=True).astype(np.int64)
    if number.signed:
        return fixed.to_numpy(), codes
    codes = codes if number.wrap else np.where(fixed.to_numpy() < 0, 0, codes)
    return np.ldexp(codes.astype(np.float64), -number.fl), codes


def minus_zero(x, number, mode):
    """APyTypes has no -0; here a zero keeps the sign of what was rounded or clamped to it, though not in its code."""
    clamped = not (number.signed or number.wrap)
    return np.signbit(x) & (clamped | (rounded(x, number.fl, mode).to_numpy() == 0))


def compared(x, number, mode, dtype=np.float32):
    theirs, their_codes = peer(x, number, mode)
    ours = qcore.quantize(x.astype(dtype), number, mode)
    same = same_numbers(ours.astype(np.float64), theirs)
    counts = compare(x, same, {"minus_zero": minus_zero(x, number, mode)}, f"{number} {mode}")
    compare(x, qcore.encode(x.astype(dtype), number, mode) == their_codes, message=f"{number} {mode}, codes")
    return counts


def numbers_of(number, count=2**16):
    """All of them, or about so many: the smallest, the largest, and some at an odd distance from each other."""
    end = 2 ** (number.wl - number.signed)
    steps = np.arange(0, end, 1 if end <= count else end // count | 1)
    if end > count:
        steps = np.unique(np.concatenate([np.arange(16), steps, np.arange(end - 16, end)]))
    return np.ldexp(steps.astype(np.float64), -number.fl)


def formats(wl):
    for fl, signed, wrap in product(lengths(wl), (True, False), (False, True)):
        yield FixedPoint(wl, fl, signed=signed, wrap=wrap)


# wl: how many among `points`, all formats and modes together
MINUS_ZEROS = {4: 25266, 5: 28146, 6: 33906, 7: 45426, 8: 68466, 9: 114546, 10: 206706, 11: 149106, 12: 174306}
MINUS_ZEROS |= {13: 191406, 14: 201306, 15: 206706, 16: 209406, 17: 208146, 18: 207426, 19: 207786, 20: 207966}
MINUS_ZEROS |= {21: 208146, 22: 207966, 23: 207336, 24: 160896}


@pytest.mark.parametrize("wl", usually((4, 12, 23), MINUS_ZEROS))
def test_fixed_points(wl):
    counts = Counter()
    for number, mode in product(formats(wl), MODES):
        counts += compared(finite(points(numbers_of(number, 1000))), number, mode)
    assert counts == {"minus_zero": MINUS_ZEROS[wl]}


@pytest.mark.parametrize("wl", usually((23,), (22, 23, 24)))
def test_fixed_points_of_float64(wl):
    """float32 does not hold these formats' midpoints."""
    for number, mode in product(formats(wl), MODES):
        compared(finite(points(numbers_of(number, 1000), np.float64)), number, mode, np.float64)


@pytest.mark.parametrize("mode", usually(("odd",), MODES))
def test_all_fixed_point_numbers_of_16_bits(mode):
    for signed, wrap in product((True, False), (False, True)):
        number = FixedPoint(16, 8, signed=signed, wrap=wrap)
        compared(finite(points(numbers_of(number))), number, mode)


@pytest.mark.parametrize("mode", usually(("up",), MODES))
def test_fixed_random(mode):
    for number in formats(8):
        compared(finite(inside(numbers_of(number), PATTERNS // 20)), number, mode)
        if number.fl == 4:
            compared(finite(patterns(PATTERNS // 4)), number, mode)


@some((0, 1), (1, 0), signed=[False, True], wrap=[False, True])
def test_fixed_random_nearest(signed, wrap):
    compared(finite(patterns()), FixedPoint(12, 6, signed=signed, wrap=wrap), "nearest")


def test_wrapping_from_more_than_64_bits():
    """APyTypes keeps all of the lowest 64 bits where it casts an array of more than 64 bits to fewer by wrapping."""
    x, number, counts = finite(points(numbers_of(FixedPoint(8, 4)))), FixedPoint(8, 4, wrap=True), {}
    for mode in MODES:
        direct = exact(x).cast(int_bits=4, frac_bits=4, quantization=MODES[mode], overflow=OverflowMode.WRAP)
        lowest = rounded(x, number.fl, mode, 64).to_numpy()
        beyond = (lowest < -8) | (lowest >= 8)
        same = direct.to_numpy() == wrapped(x, number, mode).to_numpy()
        counts[mode] = compare(x, same, {"beyond": beyond})["beyond"]
    assert counts == dict.fromkeys(MODES, 87) | {"nearest_away": 88, "nearest_zero": 86, "toward_zero": 82, "away": 92}


# format: differences among `points`, all modes together, of numbers and of codes
FLOATS = {
    BinaryFloat(2, 1): {"normal": 46},
    BinaryFloat(3, 4): {"nan": 100, "normal": 46},
    BinaryFloat(4, 3): {"nan": 100, "normal": 46},
    BinaryFloat(5, 2): {"nan": 100, "normal": 46},
    BinaryFloat(5, 10): {"nan": 100, "normal": 46},
    BinaryFloat(8, 7): {"nan": 100, "normal": 60},
    BinaryFloat(4, 3, bias=20): {"nan": 100, "normal": 46},
    BinaryFloat(5, 2, bias=0): {"nan": 100, "normal": 46},
    BinaryFloat(6, 9, bias=20): {"nan": 100, "normal": 46},
}


def numbers_of_float(number):
    return qcore.decode(np.arange(2**number.bits), number, np.float64)


def to_normal(x, codes, number):
    """Where numbers below the smallest normal one round up to it, the code is right, and `to_numpy` returns zero."""
    code = codes & (2 ** (number.exp + number.man) - 1)
    return (code == 2**number.man) & (np.abs(x) < 2.0 ** (1 - number.bias))


def nan_code(x, number):
    """APyTypes' NaN has the mantissa 1, ours the first bit of the mantissa, as the quiet ones of IEEE 754."""
    return np.isnan(x) & (number.man > 1)


def floats_compared(x, number, mode):
    wide = widened(x)
    floats = APyFloatArray.from_float(wide, exp_bits=8, man_bits=23)
    floats = floats.cast(number.exp, number.man, number.bias, MODES[mode])
    codes, known = floats.to_bits(numpy=True), {"nan": nan_code(x, number)}
    counts = compare(x, qcore.encode(x, number, mode) == codes, known, f"{number} {mode}, codes")
    same = same_numbers(widened(qcore.quantize(x, number, mode)), floats.to_numpy())
    known = {"normal": to_normal(x, codes, number)}
    return counts + compare(x, same, known, f"{number} {mode}")


@pytest.mark.parametrize("number", FLOATS, ids=str)
def test_float_points(number):
    x = points(numbers_of_float(number))
    assert sum((floats_compared(x, number, mode) for mode in MODES), Counter()) == FLOATS[number]


@pytest.mark.parametrize("number", usually((BinaryFloat(5, 2, bias=0),), FLOATS))
def test_float_random(number):
    for mode in MODES:
        floats_compared(patterns(PATTERNS if mode in ("nearest", "odd") else PATTERNS // 5), number, mode)
        floats_compared(inside(numbers_of_float(number)), number, mode)
