"""What a rounding did to each element, in integers; and the sums that statistics are made of.

Numbers before and after are int32 lanes of float32, in which all numbers of float16 and bfloat16 are exact.

Sums are exact and have no order: elements are added to entries of tables, one entry for each binary exponent.

    number = significand * 2^exponent       the significand rounded to 8 bits, nearest, ties to even: 128 to 256
    table[exponent] += significand, significand^2

An error is the result minus the number, both as integers in units of 2^-5 steps of the larger one, where the smaller
one loses the bits below. So errors are exact, or off by less than 2^-28 of the larger number; they are then rounded to
24 bits, as a conversion to float32 does, and to 8 bits.

Functions take an array namespace `xp`, see `qcore.law.lanes`, of which they use `where`, `clip` and `float_bits`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.law.carrier import FLOAT32, Carrier
from qcore.law.lanes import field_and_significand

COUNTS = (
    "elements",
    "zeros",
    "underflowed",
    "saturated",
    "overflowed",
    "infinite",
    "nan",
    "nan_results",
    "subnormal",
)
MAGNITUDES = ("smallest_before", "largest_before", "smallest_after", "largest_after")
FIELDS = 256  # exponent fields of numbers; the last has infinities and NaN
ERROR_FIELDS = 288  # of errors
NUMBER_COLUMNS = ("count", "square")
ERROR_COLUMNS = ("absolute", "signed", "square")
# An entry's significands count in units of 2^(field + unit).
NUMBER_UNIT, ERROR_UNIT = -134, -162

_HIDDEN, _INFINITY, _MASK = FLOAT32.hidden, FLOAT32.infinity, FLOAT32.magnitude_mask
_GUARD = 5  # bits below the larger number's last


class Bounds(NamedTuple):
    """The range of a format, as magnitudes in float32: ints, or lanes for each element.

    Attributes:
        largest: the largest number; infinity's for formats without range.
        lowest: the magnitude of the lowest number.
        normal: the smallest normal number; 0 for formats without subnormal ones.
    """

    largest: Any
    lowest: Any
    normal: Any


class Effects(NamedTuple):
    """What happened to each element: lanes.

    Attributes:
        flags: 1 or 0 for each name of `COUNTS` but the first.
        magnitudes: for each name of `MAGNITUDES`; where there is no nonzero finite number 0, and the smallest ones
            subtracted from infinity, so that maxima are wanted of all.
        number_field, number_columns: the entry and what is added to it; the count is 1 for every element.
        error_field, error_columns: the same of the error.
    """

    flags: tuple[Any, ...]
    magnitudes: tuple[Any, ...]
    number_field: Any
    number_columns: tuple[Any, ...]
    error_field: Any
    error_columns: tuple[Any, ...]


def effects(xp: Any, before: Any, after: Any, bounds: Bounds) -> Effects:
    """What a rounding of lanes `before` to lanes `after` did."""
    a, b = before & _MASK, after & _MASK
    # -1 where it is so, else 0
    finite, result_finite = (a - _INFINITY) >> 31, (b - _INFINITY) >> 31
    nonzero, result_nonzero = -a >> 31, -b >> 31
    nan = (_INFINITY - a) >> 31
    limit = bounds.largest + ((before >> 31) & (bounds.lowest - bounds.largest))
    saturated = ((limit - a) >> 31) & ~nan & result_finite
    masks = (
        ~nonzero,
        nonzero & finite & ~result_nonzero & ~saturated,
        saturated,
        finite & ~result_finite,
        ~finite & ~nan,
        nan,
        (_INFINITY - b) >> 31,
        result_nonzero & ((b - bounds.normal) >> 31),
    )
    counted, result_counted = finite & nonzero, result_finite & result_nonzero
    magnitudes = (_INFINITY - a) & counted, a & counted, (_INFINITY - b) & result_counted, b & result_counted
    both = finite & result_finite
    field, significand = field_and_significand(xp, a, FLOAT32)
    short = _short(significand) & both
    error_field, error, size = _error(xp, before, after, field, significand, b)
    size = size & both
    columns = size, (size ^ error) - error, size * size
    return Effects(tuple(mask & 1 for mask in masks), magnitudes, field, (short * short,), error_field, columns)


def _error(xp: Any, before: Any, after: Any, field: Any, significand: Any, b: Any) -> tuple[Any, Any, Any]:
    """The entry of each error, its sign (-1 or 0) and its rounded significand."""
    result_field, result_significand = field_and_significand(xp, b, FLOAT32)
    top = xp.where(field > result_field, field, result_field)
    x = (significand << _GUARD) >> xp.clip(top - field, None, 31)
    y = (result_significand << _GUARD) >> xp.clip(top - result_field, None, 31)
    sign, result_sign = before >> 31, after >> 31
    error = ((y ^ result_sign) - result_sign) - ((x ^ sign) - sign)
    negative = error >> 31
    bits = xp.float_bits((error ^ negative) - negative)
    size = _short((bits & (_HIDDEN - 1)) | _HIDDEN) & (-bits >> 31)
    return xp.clip(top + (bits >> 23) - 127, 0, None), negative, size


def _short(significand: Any) -> Any:
    """Significands of 24 bits rounded to 8."""
    return (significand + (0x7FFF + ((significand >> 16) & 1))) >> 16


def to_float32(xp: Any, lanes: Any, carrier: Carrier) -> Any:
    """Lanes of a carrier as lanes of float32, exactly."""
    if carrier.exponent_bits == FLOAT32.exponent_bits:
        return lanes
    magnitude, shift = lanes & carrier.magnitude_mask, FLOAT32.bias - carrier.bias
    normal = magnitude + (shift << 23)
    subnormal = xp.float_bits(magnitude) - ((22 + carrier.bias) << 23)  # units of 2^(1 - bias - 23)
    wide = xp.where(magnitude < _HIDDEN, xp.where(magnitude > 0, subnormal, 0), normal)
    special = magnitude - carrier.infinity + _INFINITY
    return xp.where(magnitude < carrier.infinity, wide, special) | (lanes & -0x80000000)
