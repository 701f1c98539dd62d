"""Elementary functions of all codes of a format, beside mpmath's numbers that are rounded once: of 900 bits if near."""

import math
from fractions import Fraction
from functools import lru_cache
from itertools import cycle

import numpy as np
import oracle_arithmetic
import pytest
from mpmath import mp
from support import spec

import qcore
from qcore import arithmetic
from qcore.arithmetic.elementary import IN_FLOAT64, REAL, REAL_OF_TWO, SLOPES

MODES = "nearest nearest_away nearest_zero toward_zero away up down odd nearest_up".split()
FEW, BITS = 120, 900
FUNCTIONS = {
    **{name: getattr(mp, name) for name in "exp expm1 log log1p tanh sinh cosh sin cos tan sinpi cospi hypot".split()},
    "erf": mp.erf,
    **{f"arc{name}": getattr(mp, f"a{name}") for name in "sinh cosh tanh sin cos tan".split()},
    "exp2": lambda x: mp.power(2, x),
    "log2": lambda x: mp.log(x) / mp.log(2),
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "tanpi": lambda x: mp.sinpi(x) / mp.cospi(x),
    "arcsinpi": lambda x: mp.asin(x) / mp.pi,
    "arccospi": lambda x: mp.acos(x) / mp.pi,
    "arctanpi": lambda x: mp.atan(x) / mp.pi,
    "arctan2": mp.atan2,
    "arctan2pi": lambda y, x: mp.atan2(y, x) / mp.pi,
}
BEYOND = 2000.0  # from here on exponentials are beyond every format
FAR = 200.0  # from here on these functions are simple ones but for less than 2^-200


def decides(found):
    """True if a number of 120 bits, off by less than 2^-90, is on the exact one's side of all of up to 52 bits."""
    if isinstance(found, mp.mpc) or not mp.isfinite(found):
        return True
    _, significand, _, count = found._mpf_
    rest = int(significand) % 2 ** max(count - 52, 0)
    return 2**30 < rest < 2 ** max(count - 52, 0) - 2**30


@lru_cache(1 << 20)
def real(name, numbers):
    """The exact result of finite numbers as a fraction, or one on the same side; None where there is no finite one."""
    if name in ("expm1", "tanh") and abs(numbers[0]) > FAR and (name == "tanh" or numbers[0] < 0):
        numbers = (math.copysign(FAR, numbers[0]),)
    if name == "erf" and abs(numbers[0]) > 20:
        return real(name, (math.copysign(20.0, numbers[0]),))  # which is kept: it takes long
    if name in ("exp", "exp2", "expm1", "sinh", "cosh") and abs(numbers[0]) > BEYOND:
        numbers = (math.copysign(BEYOND, numbers[0]),)
    if name == "softplus" and numbers[0] < -BEYOND:
        numbers = (-BEYOND,)
    if name == "softplus" and numbers[0] > FAR:
        return Fraction(numbers[0]) + Fraction(1, 2**300)
    try:
        with mp.workprec(FEW):
            found = FUNCTIONS[name](*map(mp.mpf, numbers))
        if not decides(found):
            with mp.workprec(BITS):
                found = FUNCTIONS[name](*map(mp.mpf, numbers))
    except (ZeroDivisionError, ValueError):
        return None
    if isinstance(found, mp.mpc) or not mp.isfinite(found):
        return None
    with mp.workprec(BITS):
        with mp.workprec(BITS // 2):
            short = +found  # the number itself at points where it is one of few bits
        found = short if abs(found - short) < abs(found) * mp.mpf(2) ** (20 - BITS) else found
    sign, significand, exponent, _ = found._mpf_
    return (-1) ** sign * Fraction(int(significand)) * Fraction(2) ** exponent


def special(name, numbers):
    """The result where mpmath has no finite one, or a zero, by float64."""
    with np.errstate(all="ignore"):
        return float({**IN_FLOAT64, **TWO}[name](*(np.float64([x]) for x in numbers))[0])


TWO = {"hypot": np.hypot, "arctan2": np.arctan2, "arctan2pi": lambda y, x: np.arctan2(y, x) / math.pi}


def exact(name, numbers):
    """The exact result's sign and magnitude, in units of float64."""
    found = real(name, tuple(numbers)) if all(map(math.isfinite, numbers)) else None
    if found is not None and found != 0:
        return oracle_arithmetic.in_units(found)
    by_float64 = special(name, numbers)
    if math.isfinite(by_float64) and by_float64 != 0:
        assert found is None
        return oracle_arithmetic.in_units(Fraction(by_float64))
    return math.copysign(1, by_float64) < 0, None if math.isnan(by_float64) else abs(by_float64)


def codes_of(name, text):
    """All codes of a format for a function of one number, and all pairs for one of two."""
    codes = np.arange(1 << qcore.parse(text).bits)
    return (codes,) if name in REAL else tuple(part.ravel() for part in np.meshgrid(codes, codes))


@lru_cache(2)
def exact_of_all(name, text):
    return [exact(name, x) for x in zip(*(qcore.decode(x, text).tolist() for x in codes_of(name, text)), strict=True)]


def wrong(name, text, result, mode):
    """The operands of a format whose results differ, with both results; all of one operand, and pairs of two."""
    given, target = codes_of(name, text), spec(qcore.parse(result))
    numbers = [qcore.decode(x, text) for x in given]
    found = getattr(arithmetic, name)(*numbers, result, mode, operands=text)
    by_codes = qcore.decode(getattr(arithmetic, f"{name}_codes")(*given, text, result, mode), result)
    assert ((found == by_codes) | np.isnan(found) | np.isnan(by_codes)).all()
    right = np.float32([oracle_arithmetic.rounded(*one, target, mode) for one in exact_of_all(name, text)])
    differs = (found.view(np.uint32) != right.view(np.uint32)) & ~(np.isnan(found) & np.isnan(right))
    return [*zip(*(x[differs].tolist() for x in (*numbers, found, right)), strict=True)]


def test_functions():
    for name, text, result, mode in zip(
        REAL, cycle(["e5m2", "binary6p3se", "e3m2", "binary5p1se"]), cycle(["e4m3fn", "e5m2", "float16"]), cycle(MODES)
    ):
        assert wrong(name, text, result, mode) == [], (name, text, result, mode)
    for name in REAL_OF_TWO:
        assert wrong(name, "binary4p2se", "e4m3fn", "up") == [], name
    assert wrong("cospi", "binary8p1se", "e5m2", "nearest") == []  # of numbers to which float64 cannot add 1
    assert wrong("softplus", "e5m2", "e5m2", "away") == []  # of numbers whose exponentials are 0 in float64


SHORT = "e4m3fn e5m2 e4m3fnuz e5m2fnuz e4m3b11fnuz e3m4 e4m3 e8m0fnu".split()
SHORT += [f"binary{k}p{p}s{d}" for k in range(3, 9) for p in range(1, k) for d in "ef"]
SHORT += [f"binary{k}p{p}u{d}" for k in range(3, 9) for p in range(1, k + 1) for d in "ef"]


@pytest.mark.heavy
@pytest.mark.parametrize("text", SHORT)
def test_all_codes(text):
    policies = ["", ":saturate"] + [":propagate"] * text.startswith("binary")
    for name in REAL:
        for mode in MODES:
            for policy in policies:
                assert wrong(name, text, text + policy, mode) == [], (name, mode, policy)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*REAL, *REAL_OF_TWO])
def test_longer_formats(name):
    if name in REAL:
        assert wrong(name, "bfloat16", "bfloat16", "nearest") == []
        assert wrong(name, "float16", "float32", "down") == []
    else:
        assert wrong(name, "binary8p3se", "e5m2", "nearest") == []
        assert wrong(name, "binary8p1se", "bfloat16", "away") == []


def test_functions_in_float64_and_a_second_rounding_are_something_else():
    """The exponential of a small number is a little more than 1, which float64 does not see."""
    x = np.float32([2.0**-60])
    assert qcore.quantize(np.exp(x.astype(np.float64)), "bfloat16", "up") == [1.0]
    assert arithmetic.exp(x, "bfloat16", "up", operands="bfloat16") == [1.0078125]


def test_derivatives():
    x, step = np.float64([0.3, -0.45]), 2.0**-20
    for name, function in IN_FLOAT64.items():
        at = abs(x) + (1 if name == "arccosh" else 0) if name in ("log", "log2", "arccosh") else x
        (found,) = SLOPES[name](at)
        np.testing.assert_allclose(found, (function(at + step) - function(at - step)) / (2 * step), 1e-8, 1e-8)
    for name in REAL_OF_TWO:
        first, second = SLOPES[name](x, x[::-1])
        for found, a, b in ((first, step, 0), (second, 0, step)):
            ends = TWO[name](x + a, x[::-1] + b), TWO[name](x - a, x[::-1] - b)
            np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * step), 1e-8)


def test_operands_are_rounded_first():
    x = np.float32([1.03, 1e9])
    assert np.array_equal(arithmetic.exp(x, operands="e4m3fn"), np.float32([2.7182817, np.nan]), equal_nan=True)


def test_wrong_operands():
    with pytest.raises(ValueError, match=r"operands of exp: .* have 32 bits; allowed are 16 bits together"):
        arithmetic.exp(np.float32([1.0]))
    with pytest.raises(ValueError, match="have 32 bits; allowed are 16"):
        arithmetic.hypot(np.float16([1.0]), np.float16([1.0]))
    with pytest.raises(ValueError, match=r"operands=.* is a format of blocks"):
        arithmetic.exp(np.float32([1.0]), operands="mxfp4")
