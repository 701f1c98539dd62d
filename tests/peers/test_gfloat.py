"""gfloat's rounding and codes: its OCP and IEEE formats, and IEEE P3109 from 2 to 8 bits, in all modes that both have.

gfloat computes in float64, so points are float64 here and random numbers float32.
"""

from collections import Counter
from itertools import product

import gfloat.formats
import numpy as np
import pytest
from covering import usually
from gfloat import RoundMode, decode_ndarray, encode_ndarray, round_ndarray
from gfloat.types import Domain, Signedness
from peer_support import PATTERNS, compare, inside, patterns, points, same_numbers, widened

import qcore
from qcore import BinaryFloat, FixedPoint

MODES = {
    "nearest": RoundMode.TiesToEven,
    "nearest_away": RoundMode.TiesToAway,
    "toward_zero": RoundMode.TowardZero,
    "up": RoundMode.TowardPositive,
    "down": RoundMode.TowardNegative,
}
NAMED = {
    "ocp_e5m2": qcore.NAMED["e5m2"][0],
    "ocp_e4m3": qcore.NAMED["e4m3fn"][0],
    "ocp_e2m3": qcore.NAMED["e2m3fn"][0],
    "ocp_e3m2": qcore.NAMED["e3m2fn"][0],
    "ocp_e2m1": qcore.NAMED["e2m1fn"][0],
    "ocp_e8m0": qcore.NAMED["e8m0fnu"][0],
    "ocp_int8": FixedPoint(8, 6),
    "binary16": qcore.NAMED["float16"][0],
    "bfloat16": qcore.NAMED["bfloat16"][0],
    "binary32": BinaryFloat(8, 23),
}


def p3109(bits, precision, signed, extended):
    """gfloat's format and ours."""
    signedness = Signedness.Signed if signed else Signedness.Unsigned
    domain = Domain.Extended if extended else Domain.Finite
    theirs = gfloat.formats.format_info_p3109(bits, precision, signedness, domain)
    return theirs, qcore.p3109(bits, precision, signed, extended)


def p3109_formats(bits):
    for precision, signed, extended in product(range(1, bits + 1), (True, False), (True, False)):
        if bits > 2 or not (signed and extended):  # see `test_formats_whose_only_number_is_zero`
            yield p3109(bits, precision, signed, extended)


def negative(info, mode, sat, x):
    """Unsigned formats: gfloat rounds negative numbers as if they had codes; here they are NaN, or 0 if saturating,
    unless they round to zero. It also takes toward zero for down there, and away at midpoints for up."""
    if info.is_signed:
        return np.zeros(x.shape, bool)
    if not info.has_zero:
        return x < 0
    least = info.smallest
    return {
        "nearest": x < -least / 2,
        "nearest_away": (x < -least / 2) | ((x == -least / 2) & (not sat)),
        "toward_zero": x < 0,
        "up": x <= -least,
        "down": x < 0,
    }[mode]


def below(info, mode, sat, x):
    """e8m0: gfloat keeps 0, and rounds what is below 2^-127 to other powers of two; the format has neither."""
    rounds_to_least = {"nearest": x >= 0.75 * 2.0**-127, "nearest_away": x >= 0.75 * 2.0**-127, "up": x > 2.0**-128}
    stays_below = np.logical_not(rounds_to_least.get(mode, False))
    return (info.name == "ocp_e8m0") & (x >= 0) & (x < 2.0**-127) & stays_below


def tie(info, mode, sat, x):
    """e8m0: at 1.5 * 2^e laws.md and ml_dtypes take the even significand and so go up, gfloat takes the even code."""
    with np.errstate(invalid="ignore"):  # of signaling NaN, on some processors
        significand, exponent = np.frexp(x)
    ties = (info.name == "ocp_e8m0") & (mode == "nearest") & (significand == 0.75) & (x >= 2.0**-127)
    return ties & (exponent % 2 == 0) & (x < (2.0**127 if sat else 2.0**128))


def maximum(info, mode, sat, x):
    """P3109 k2p2ue: gfloat takes 0.75 for the largest number, which its own decoding says is 0.5."""
    beyond = {"nearest": x >= 0.75, "nearest_away": x >= 0.75, "toward_zero": x >= 1, "up": x > 0.5, "down": x >= 1}
    keeps = sat or (mode in ("toward_zero", "down") and np.isfinite(x))
    return (info.name == "p3109_k2p2ue") & beyond[mode] & keeps


def minus_zero(info, mode, sat, x):
    """int8: our fixed point numbers keep the sign of a zero, though their codes have none."""
    to_zero = {"nearest": x >= -(2.0**-7), "nearest_away": x > -(2.0**-7), "down": x == 0}
    return (info.name == "ocp_int8") & np.signbit(x) & to_zero.get(mode, x > -(2.0**-6)) & ~np.isnan(x)


def satnone(info, mode, sat, x):
    """P3109 without infinity: gfloat has the rule before interim report v4.0: what is too large becomes NaN."""
    if sat or not info.name.startswith("p3109") or info.domain == Domain.Extended:
        return np.zeros(x.shape, bool)
    with np.errstate(all="ignore"):
        theirs = round_ndarray(info, x, MODES[mode], False)
    return np.isnan(theirs) & ~np.isnan(x) & (info.is_signed | (x > 0))


DIFFERENCES = (negative, below, tie, maximum, minus_zero, satnone)

# How many there are among `points`, all modes and overflow policies together.
NAMED_DIFFERENCES = {
    "ocp_e5m2": {"nan_code": 100},
    "ocp_e4m3": {"nan_code": 200},
    "ocp_e8m0": {"negative": 18560, "below": 2886, "tie": 255},
    "ocp_int8": {"minus_zero": 1141},
    "binary16": {"nan_code": 100},
    "bfloat16": {"nan_code": 100},
    "binary32": {"nan_code": 100},
}
P3109_DIFFERENCES = {
    2: {"negative": 6544, "maximum": 254, "satnone": 718},
    3: {"negative": 11556, "satnone": 1188},
    4: {"negative": 19328, "satnone": 1676},
    5: {"negative": 33820, "satnone": 2128},
    6: {"negative": 63672, "satnone": 2580},
    7: {"negative": 128084, "satnone": 3032},
    8: {"negative": 269296, "satnone": 3484},
}


def nan_code(number, x, rounded):
    """gfloat's NaN has all bits set, ours keeps its sign, and in IEEE's formats is the quiet one without payload."""
    ieee = getattr(number, "specials", "") == "ieee"
    has_signs = ieee or (getattr(number, "specials", "") == "fn" and number.signed)
    return np.isnan(rounded) & has_signs & (ieee | ~np.signbit(x))


def compared(info, number, mode, sat, x):
    """How often numbers and codes differ for each reason."""
    message = f"{info.name} {mode} {'saturating' if sat else ''}"
    theirs = rounded(info, mode, sat, x)
    overflow = "saturate" if sat else None
    same = same_numbers(qcore.quantize(x, number, mode, overflow=overflow), theirs)
    counts = compare(x, same, {known.__name__: known(info, mode, sat, widened(x)) for known in DIFFERENCES}, message)
    x, theirs = x[same], theirs[same]
    if info.num_nans == 0:
        x, theirs = x[~np.isnan(x)], theirs[~np.isnan(x)]
    same_codes = qcore.encode(x, number, mode, overflow=overflow) == encode_ndarray(info, theirs)
    return counts + compare(x, same_codes, {"nan_code": nan_code(number, x, theirs)}, message)


def rounded(info, mode, sat, x):
    with np.errstate(all="ignore"):
        return round_ndarray(info, widened(x), MODES[mode], sat).astype(x.dtype)


def saturations(info):
    """gfloat raises where neither infinity nor NaN can say that a number is too large."""
    return (False, True) if info.num_nans or info.domain == Domain.Extended else (True,)


def numbers_of(number):
    if number.bits > 16:
        largest = 2.0**128 - 2.0**104
        return np.concatenate(
            [
                np.ldexp([1.0, 1.25, 1.5, 1.75, 2 - 2.0**-23], np.arange(-126, 128)[:, None]).ravel(),
                np.arange(100) * 2.0**-149,
                [largest, largest - 2.0**104, 2.0**-126 - 2.0**-149],
            ]
        )
    return qcore.decode(np.arange(2**number.bits), number, np.float64)


def points_compared(info, number):
    counts, x = Counter(), points(numbers_of(number), np.float64)
    for mode, sat in product(MODES, saturations(info)):
        counts += compared(info, number, mode, sat, x)
    return counts


def random_compared(info, number, count, count_in_other_modes):
    for mode, sat in product(MODES, saturations(info)):
        few = mode != "nearest" or (sat and len(saturations(info)) > 1)
        compared(info, number, mode, sat, patterns(count_in_other_modes if few else count))
        compared(info, number, mode, sat, inside(numbers_of(number), count_in_other_modes))


@pytest.mark.parametrize("name", NAMED)
def test_named_points(name):
    counts = points_compared(getattr(gfloat.formats, f"format_info_{name}"), NAMED[name])
    assert counts == NAMED_DIFFERENCES.get(name, {})


@pytest.mark.parametrize("name", usually(("ocp_e4m3",), NAMED))
def test_named_random(name):
    random_compared(getattr(gfloat.formats, f"format_info_{name}"), NAMED[name], PATTERNS, PATTERNS // 10)


@pytest.mark.parametrize("bits", P3109_DIFFERENCES)
def test_p3109_points(bits):
    assert sum((points_compared(*formats) for formats in p3109_formats(bits)), Counter()) == P3109_DIFFERENCES[bits]


@pytest.mark.parametrize("bits", usually((3,), range(2, 9)))
def test_p3109_random(bits):
    for info, number in p3109_formats(bits):
        random_compared(info, number, PATTERNS // 40, PATTERNS // 200)


@pytest.mark.heavy
@pytest.mark.parametrize("bits", range(2, 9))
def test_p3109_random_in_all_modes(bits):
    for info, number in p3109_formats(bits):
        random_compared(info, number, PATTERNS, PATTERNS)


@pytest.mark.parametrize("bits", range(2, 9))
def test_p3109_codes_decoded(bits):
    for info, number in p3109_formats(bits):
        codes = np.arange(2**bits)
        assert same_numbers(qcore.decode(codes, number, np.float64), decode_ndarray(info, codes)).all(), info.name


@pytest.mark.parametrize("precision", [1, 2])
def test_formats_whose_only_number_is_zero(precision):
    """P3109 k2p1se and k2p2se: their other codes are NaN and infinities. gfloat allows them; here they are refused."""
    numbers = decode_ndarray(gfloat.formats.format_info_p3109(2, precision), np.arange(4))
    assert numbers[np.isfinite(numbers)] == [0]
    with pytest.raises(ValueError, match="bits=2; allowed is an int from 3 to 16"):
        qcore.p3109(2, precision)
