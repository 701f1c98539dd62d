"""The law of operations that compute no new number: extrema, signs, bounds, neighbours, comparisons and classes.

An extremum is a choice of the first operand. Zeros are ordered, -0 below +0, as IEEE 754's minimum and maximum have
them; comparisons do not order them. Sources: IEEE 754-2019, sections 5.7, 5.10 and 9.6; IEEE P3109's interim report.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from qcore.arithmetic.law import one_nan, to_odd, zeros

_TINY, _HUGE = 2.0**-900, 2.0**900  # beyond every format
_SIGN = -0x8000000000000000
CLASSES = tuple(
    f"Cls{name}"
    for name in "NaN NegativeInfinity NegativeNormal NegativeSubnormal Zero PositiveSubnormal PositiveNormal "
    "PositiveInfinity".split()
)
First = Callable[[Any, Any, Any], Any]  # (xp, x, y) -> where x is the result, and not y


def is_negative(xp: Any, x: Any) -> Any:
    """True where the sign bit is set."""
    return xp.lanes(x) < 0


def nothing(xp: Any, x: Any) -> Any:
    """NaN everywhere."""
    return one_nan(xp, zeros(xp, x) + inf - inf)


def _less(xp: Any, x: Any, y: Any) -> Any:
    return (x < y) | ((x == y) & is_negative(xp, x))


def _greater(xp: Any, x: Any, y: Any) -> Any:
    return (x > y) | ((x == y) & ~is_negative(xp, x))


def _magnitude(order: First, other: First) -> First:
    """An order of magnitudes, and of equal ones that of the numbers."""
    return lambda xp, x, y: order(xp, abs(x), abs(y)) & (abs(x) != abs(y)) | (abs(x) == abs(y)) & other(xp, x, y)


def _nan_wins(order: First) -> First:
    return lambda xp, x, y: (x != x) | order(xp, x, y)  # which is False for NaN


def _nan_loses(order: First) -> First:
    return lambda xp, x, y: (y != y) | order(xp, x, y)


def _finite_wins(order: First) -> First:
    def first(xp: Any, x: Any, y: Any) -> Any:
        one, other = abs(x) < inf, abs(y) < inf
        return (one & ~other) | ((one == other) & _nan_loses(order)(xp, x, y))

    return first


_LESS, _GREATER = _magnitude(_less, _less), _magnitude(_greater, _greater)
EXTREMA: dict[str, First] = {
    "minimum": _nan_wins(_less),
    "maximum": _nan_wins(_greater),
    "minimum_number": _nan_loses(_less),
    "maximum_number": _nan_loses(_greater),
    "minimum_magnitude": _nan_wins(_LESS),
    "maximum_magnitude": _nan_wins(_GREATER),
    "minimum_magnitude_number": _nan_loses(_LESS),
    "maximum_magnitude_number": _nan_loses(_GREATER),
    "minimum_finite": _finite_wins(_less),
    "maximum_finite": _finite_wins(_greater),
}


def chosen(first: First) -> Callable[..., Any]:
    """The law of an extremum."""
    return lambda xp, x, y, down=False: xp.where(first(xp, x, y), x, y)


def negate(xp: Any, x: Any, down: bool = False) -> Any:
    return -x


def magnitude(xp: Any, x: Any, down: bool = False) -> Any:
    return abs(x)


def copysign(xp: Any, x: Any, y: Any, down: bool = False) -> Any:
    found = xp.floats((xp.lanes(x) & ~_SIGN) | (xp.lanes(y) & _SIGN))
    return xp.where((x == x) & (y == y), found, nothing(xp, x))


def clamp(xp: Any, x: Any, low: Any, high: Any, down: bool = False) -> Any:
    """x within bounds; NaN if the bounds are in the wrong order, or leave no finite number but one infinity."""
    found = xp.where(x < low, low, xp.where(x > high, high, x))
    # Bounds that are both one infinity are allowed; any comparison with NaN is False.
    allowed = (low <= high) & (((high > -inf) & (low < inf)) | (low == high))
    return xp.where(allowed & (x == x), found, nothing(xp, x))


def next_up(xp: Any, x: Any, down: bool = False) -> Any:
    """A little more than x, which rounding up makes the next number of a format; infinity stays."""
    more = xp.where(x == 0, zeros(xp, x) + _TINY, to_odd(xp, x, zeros(xp, x) + 1.0))
    return xp.where(x == inf, x, xp.where(x == -inf, zeros(xp, x) - _HUGE, more))


def next_down(xp: Any, x: Any, down: bool = False) -> Any:
    """A little less than x, for rounding down."""
    return -next_up(xp, -x)


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "equal": lambda x, y: x == y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "total_order": lambda x, y: (x != x) | ((y == y) & (x <= y)),
}


def is_normal(x: Any, normal: float) -> Any:
    """True for finite numbers but 0 from the smallest normal one on."""
    return (abs(x) >= normal) & (abs(x) < inf) & (x != 0)


def is_subnormal(x: Any, normal: float) -> Any:
    return (abs(x) < normal) & (x != 0)


# Predicates of numbers, given the smallest normal one of their format.
PREDICATES: dict[str, Callable[[Any, float], Any]] = {
    "is_zero": lambda x, normal: x == 0,
    "is_one": lambda x, normal: x == 1,
    "is_nan": lambda x, normal: x != x,
    "is_infinite": lambda x, normal: abs(x) == inf,
    "is_finite": lambda x, normal: abs(x) < inf,
    "is_sign_minus": lambda x, normal: x < 0,
    "is_normal": is_normal,
    "is_subnormal": is_subnormal,
}


def class_of(xp: Any, x: Any, normal: float) -> Any:
    """Where the class of each number is in `CLASSES`, in int64: classes of numbers are as far from zero's, 4."""
    lanes = xp.lanes(x) & 0
    size = lanes + (x != 0) + (is_normal(x, normal) | (abs(x) == inf)) + (abs(x) == inf)
    return xp.where(x == x, xp.where(x < 0, 4 - size, 4 + size), lanes)


def answer(xp: Any, question: str, normal: float, *numbers: Any) -> Any:
    """What a comparison, a predicate or `classify` says of float64 numbers: bools, or int64."""
    if question == "classify":
        return class_of(xp, numbers[0], normal)
    return COMPARISONS[question](*numbers) if question in COMPARISONS else PREDICATES[question](numbers[0], normal)
