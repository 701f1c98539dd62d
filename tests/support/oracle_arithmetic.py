"""The oracle's operations: exact results as fractions, rounded once by `oracle`; it never imports the library."""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import oracle
from oracle_carrier import INF, NAN, Carrier

_PLACES = 700  # bits of a root after the point: beyond every number that rounding compares it with


class _Exact(Carrier):
    """Float64, with fractions of its unit."""

    def log2(self, magnitude):
        return math.floor(magnitude).bit_length() - 1 + self.unit


_CARRIER = _Exact(np.float64)


def root(x):
    """The square root of a fraction, or a fraction between the same numbers of float64."""
    scaled = x * 4**_PLACES
    found = math.isqrt(math.floor(scaled))
    return Fraction(2 * found + (found * found != scaled), 2 * 2**_PLACES)


REAL = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
    "faa": lambda x, y, z: x + y + z,
    "reciprocal": lambda x: 1 / x,
    "sqrt": root,
    "rsqrt": lambda x: root(1 / x),
}
# The same of floats, where an operand or the result is not finite, or the result is a zero, whose sign it then has.
FLOAT = {
    **{name: REAL[name] for name in ("add", "subtract", "multiply", "fma", "faa")},
    "divide": lambda x, y: np.float64(x) / np.float64(y),
    "reciprocal": lambda x: np.float64(1) / np.float64(x),
    "sqrt": lambda x: np.sqrt(np.float64(x)),
    "rsqrt": lambda x: np.float64(1) / np.sqrt(np.float64(x)),
}
_SUMS = {"add": lambda x, y: (x, y), "subtract": lambda x, y: (x, -y), "fma": lambda x, y, z: (x * y, z)}
_SUMS["faa"] = lambda x, y, z: (x, y, z)


def result(operation, numbers, spec, rounding, word=0, random_bits=24):
    """The result of an operation on Python floats: a float64 number.

    Args:
        operation: a key of REAL.
        numbers: the operands.
        spec: the result's format, as for `oracle.quantize`.
        rounding: a key of UP_WHEN or UP_BY_CHANCE.
        word, random_bits: the element's random word, and how many of its top bits count.
    """
    return rounded(*exact(operation, numbers, rounding), spec, rounding, word, random_bits)


@lru_cache(1 << 18)  # pairs of numbers have far fewer results
def rounded(negative, m, spec, rounding, word=0, random_bits=24):
    """An exact number, whose magnitude is in units of float64, rounded once."""
    if m is NAN:
        return math.nan
    rule = _rule(spec)
    pattern = _CARRIER.encode(*oracle.quantize_element(_CARRIER, rule, rounding, negative, m, word, random_bits))
    return np.array(pattern, np.uint64).view(np.float64).item()


@lru_cache
def _rule(spec):
    """The rule of a format of single numbers, which is that of each of them."""
    (rule,) = oracle.rules_of(_CARRIER, spec, (1,), [0])
    return rule


def in_units(x):
    """The sign and the magnitude of a fraction, in units of float64.

    From 2^150 units on, between whole numbers the odd one stands for it: all that rounding compares it with are even.
    """
    whole, rest = divmod(abs(x.numerator) << -_CARRIER.unit, x.denominator)
    return x < 0, whole | (rest != 0) if whole >> 150 else whole + Fraction(rest, x.denominator)


def exact(operation, numbers, rounding):
    """The exact result: its sign, and its magnitude in units of float64."""
    with np.errstate(all="ignore"):
        special = float(FLOAT[operation](*numbers)) if not all(map(_is_usual, numbers)) else None
    if special is not None and (math.isnan(special) or math.isinf(special)):
        return math.copysign(1, special) < 0, NAN if math.isnan(special) else INF
    if operation in ("sqrt", "rsqrt") and numbers[0] < 0:
        return False, NAN
    found = REAL[operation](*map(Fraction, numbers)) if all(map(math.isfinite, numbers)) else 0
    if found == 0:
        return _sign_of_zero(operation, numbers, special, rounding), 0
    return in_units(found)


def _is_usual(x):
    return math.isfinite(x) and x != 0


def _sign_of_zero(operation, numbers, special, rounding):
    """True for -0 (IEEE 754, section 6.3)."""
    if operation not in _SUMS:
        return math.copysign(1, special) < 0
    signs = [math.copysign(1, x) < 0 for x in _SUMS[operation](*numbers)]
    return any(signs) if rounding == "down" else all(signs)
