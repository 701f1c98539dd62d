"""The law of operations, once, for every array namespace: exact results, each as one float64 number.

A result that float64 has not is ROUNDED TO ODD: of the two float64 numbers around it, the one with an odd last bit
stands for it.

    float64 numbers      even           odd            even
    exact results         |    x  x      |     x  x     |        all x are the odd one

Numbers of fewer bits, and the middles between them, are even. So the odd number is on the same side of each of them as
the exact result, and rounding it gives what rounding the exact result once gives, in every mode. That holds for formats
of up to 24 significant bits, with 24 random bits too: 50 bits decide then, of float64's 53.

Operands have up to 24 significant bits and exponents from -300 to 300, see `check_operand`. Products of two are exact
in float64, so a compiler that contracts a product with a sum changes nothing. Source: S. Boldo and G. Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
"""

from __future__ import annotations

from math import inf
from typing import Any

_SIGN = -0x8000000000000000
_NAN = 0x7FF8000000000000
_LOW = (1 << 27) - 1  # the bits of a significand that its upper half, of 26 bits, has not


def to_odd(xp: Any, found: Any, rest: Any) -> Any:
    """The stand-in for an exact result next to a float64 number; `rest` has the sign of what the number lacks."""
    bits = xp.lanes(found)
    # Magnitudes are ascending integers, so a rest of the number's sign leads to the next integer.
    neighbour = xp.where((rest > 0) == (found > 0), bits + 1, bits - 1)
    is_even = (bits & 1) == 0
    # Two comparisons: the rest of an infinity is NaN, which is neither.
    return xp.where(((rest > 0) | (rest < 0)) & is_even, xp.floats(neighbour), found)


def two_sum(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """The sum rounded to nearest, and what it lacks, exactly (Knuth); nothing where the sum is not finite."""
    total = a + b
    of_b = total - a
    rest = (a - (total - of_b)) + (b - of_b)
    return total, xp.where(abs(total) < inf, rest, zeros(xp, a))


def zeros(xp: Any, like: Any) -> Any:
    return xp.floats(xp.lanes(like) & 0)


def one_nan(xp: Any, x: Any) -> Any:
    """x with the same NaN for every NaN: processors differ in their signs."""
    return xp.where(x == x, x, xp.floats((xp.lanes(x) & 0) | _NAN))


def upper(xp: Any, x: Any) -> Any:
    """The leading 26 bits of a number."""
    return xp.floats(xp.lanes(x) & ~_LOW)


def signed_zero(xp: Any, total: Any, down: bool, *terms: Any) -> Any:
    """A sum, whose zero is -0 if all terms are negative, or any of them when rounding down (IEEE 754, section 6.3)."""
    sign = xp.lanes(terms[0])
    for term in terms[1:]:
        sign = sign | xp.lanes(term) if down else sign & xp.lanes(term)
    return xp.where(total == 0, xp.floats(sign & _SIGN), total)


def add(xp: Any, x: Any, y: Any, down: bool = False) -> Any:
    return signed_zero(xp, to_odd(xp, *two_sum(xp, x, y)), down, x, y)


def subtract(xp: Any, x: Any, y: Any, down: bool = False) -> Any:
    return add(xp, x, -y, down)


def multiply(xp: Any, x: Any, y: Any, down: bool = False) -> Any:
    return x * y


def fma(xp: Any, x: Any, y: Any, z: Any, down: bool = False) -> Any:
    return add(xp, x * y, z, down)


def faa(xp: Any, x: Any, y: Any, z: Any, down: bool = False) -> Any:
    pair, rest_of_pair = two_sum(xp, x, y)
    total, rest = two_sum(xp, pair, z)
    # Both rests are small. Rounded to odd, their sum is still on the exact sum's side of every number of 50 bits.
    rest = to_odd(xp, *two_sum(xp, rest, rest_of_pair))
    return signed_zero(xp, to_odd(xp, *two_sum(xp, total, rest)), down, x, y, z)


def divide(xp: Any, x: Any, y: Any, down: bool = False) -> Any:
    found = xp.divide(x, y)
    # What the quotient leaves of x. Halves of 26 and 27 bits times 24 bits are exact, and so are the differences.
    high = upper(xp, found)
    left = (x - high * y) - (found - high) * y
    return to_odd(xp, found, xp.where(y < 0, -left, left))


def reciprocal(xp: Any, x: Any, down: bool = False) -> Any:
    return divide(xp, zeros(xp, x) + 1.0, x, down)


def sqrt(xp: Any, x: Any, down: bool = False) -> Any:
    found = xp.sqrt(x)
    high = upper(xp, found)
    low = found - high
    return to_odd(xp, found, ((x - high * high) - 2.0 * (high * low)) - low * low)


def rsqrt(xp: Any, x: Any, down: bool = False) -> Any:
    near = xp.divide(zeros(xp, x) + 1.0, xp.sqrt(x))
    # Two roundings may be off by more than a step; one step of Newton's method is not.
    better = near + 0.5 * (near * _left_of_one(xp, x, near))
    found = xp.where(abs(better) < inf, better, near)  # of 0 and infinity there is no better one
    return to_odd(xp, found, _left_of_one(xp, x, found))


def _left_of_one(xp: Any, x: Any, y: Any) -> Any:
    """1 - x y^2 for y close to 1 / sqrt(x), to 2^-103: all products, and all differences but the last, are exact."""
    high = upper(xp, y)
    low = y - high
    of_high, of_low = x * high, x * low
    a, b = upper(xp, of_high), upper(xp, of_low)
    a_rest, b_rest = of_high - a, of_low - b
    left = (((1.0 - a * high) - a_rest * high) - a * low) - b * high
    return (((left - a_rest * low) - b_rest * high) - b * low) - b_rest * low
