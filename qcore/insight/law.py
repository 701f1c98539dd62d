"""The law of statistics: the effect of a rounding on each element, in integers, and the sums of effects.

Numbers before and after are int32 lanes of float32, in which all numbers of float16 and bfloat16 are exact.

Sums are exact in any order: elements are counted by keys, and the sums follow from the counts.

    number = significand * 2^exponent       the significand rounded to 5 bits, nearest, ties to even: 16 to 32
    key = field, significand                counts[key] += 1

An error is the result minus the number, rounded to 24 bits as by a subtraction in float32, and then to 5 bits. An error
of zero has the field 0 and its first key.

Most elements are plain: finite, within bounds and not tiny. Their errors are differences of floats. Number and error
are counted by their upper bits, which are rounded to 5 bits when sums are made.

    sign | field | 4 bits of the significand | the next bit | 1 if there is any more       all but the sign: plain key

Functions take an array namespace `xp` (`qcore.namespace`). They use `where`, `clip` and `float_bits`; the functions of
plain elements use `float32_from` and `float32_bits` as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qcore.law.carrier import FLOAT32, Carrier, field_and_significand

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
NUMBER_UNIT, ERROR_UNIT = -131, -159
NUMBER_KEYS, ERROR_KEYS = 64, 32  # of a field: significands; the lower bits of significands, and whether it is negative
PLAIN_KEYS = 64  # of a field, of plain numbers, and of plain errors of either sign
PLAIN_CARRY = 62  # from this key on errors are rounded up to the next field
PLAIN_ERROR = NUMBER_UNIT - ERROR_UNIT  # what an error's field has more than that of its float

_HIDDEN, _INFINITY, _MASK = FLOAT32.hidden, FLOAT32.infinity, FLOAT32.magnitude_mask
_GUARD = 5  # bits below the larger number's last, of which one stands for all that are lost
_CUT = 19  # bits of a significand that rounding drops
_LEAST = -1 << 31  # of int32, in which arithmetic wraps around
PLAIN_SMALLEST = 27 << FLOAT32.width  # from here on the errors of plain numbers are normal


class Bounds(NamedTuple):
    """The range of a format, as magnitudes in float32: ints, or lanes for each element.

    Attributes:
        largest: the largest number; infinity for formats without range.
        lowest: the magnitude of the lowest number.
        normal: the smallest normal number; 0 for formats without subnormal numbers.
    """

    largest: Any
    lowest: Any
    normal: Any


class Effects(NamedTuple):
    """The effect of a rounding on each element: lanes.

    Attributes:
        flags: -1 or 0 for each name of `COUNTS` but the first.
        magnitudes: for each name of `MAGNITUDES`; 0 where there is no nonzero finite number. The smallest magnitudes
            are subtracted from infinity, so that statistics keep the maximum of each.
        number_key, error_key: the keys by which elements are counted; see `number_weights` and `error_weights`.
    """

    flags: tuple[Any, ...]
    magnitudes: tuple[Any, ...]
    number_key: Any
    error_key: Any


class PlainEffects(NamedTuple):
    """The effect of a rounding on each plain element: lanes.

    Attributes:
        special: below zero where an element is not plain.
        underflowed, subnormal: 1 or 0. Of all other names of `COUNTS`, plain elements can only be zeros.
        ends: the magnitudes of numbers and results, and both subtracted from the least int32, which leaves zero the
            smallest; statistics keep the maxima of all four.
        number_key, error_key: plain keys; the field 0 is for zeros, and for errors of zero.
    """

    special: Any
    underflowed: Any
    subnormal: Any
    ends: tuple[Any, ...]
    number_key: Any
    error_key: Any


def effects(xp: Any, before: Any, after: Any, bounds: Bounds) -> Effects:
    """The effects of a rounding of lanes `before` to lanes `after`."""
    a, b = before & _MASK, after & _MASK
    # -1 where it is so, else 0
    finite, result_finite = (a - _INFINITY) >> 31, (b - _INFINITY) >> 31
    nonzero, result_nonzero = -a >> 31, -b >> 31
    nan, nan_result = (_INFINITY - a) >> 31, (_INFINITY - b) >> 31
    limit = bounds.largest + ((before >> 31) & (bounds.lowest - bounds.largest))
    saturated = ((limit - a) >> 31) & ~nan & result_finite
    masks = (
        ~nonzero,
        nonzero & finite & ~result_nonzero & ~saturated,
        saturated,
        finite & ~result_finite,
        ~finite & ~nan,
        nan,
        nan_result,
        result_nonzero & ((b - bounds.normal) >> 31),
    )
    counted, result_counted = finite & nonzero, result_finite & result_nonzero
    magnitudes = (_INFINITY - a) & counted, a & counted, (_INFINITY - b) & result_counted, b & result_counted
    both = finite & result_finite  # sums of errors are over these
    field, significand = field_and_significand(xp, a, FLOAT32)
    number_key = (field << 6) | (_rounded(significand) & both)
    error_key = _error_key(xp, before, after, field, significand, b) & both
    return Effects(masks, magnitudes, number_key, error_key)


def plain_effects(xp: Any, before: Any, after: Any, bounds: Bounds) -> PlainEffects:
    """The effects of a rounding on plain elements, and which elements are not plain.

    A plain element is a number within bounds with a finite result. Neither has the highest exponent of finite numbers,
    so that errors are finite; neither is below `PLAIN_SMALLEST` (see `ends`) unless it is zero.
    """
    a, b = before & _MASK, after & _MASK
    finite = _INFINITY - 1 - _HIDDEN
    most = xp.clip(bounds.largest, None, finite)
    most = xp.where(most < bounds.lowest, most, bounds.lowest)
    special = (most - a) | (finite - b)
    underflowed, subnormal = (b == 0) & (a != 0), (b != 0) & (b < bounds.normal)
    error = xp.float32_bits(xp.float32_from(after) - xp.float32_from(before))
    ends = _LEAST - a, a, _LEAST - b, b
    return PlainEffects(special, underflowed, subnormal, ends, _plain_key(a), _plain_key(error))


def _plain_key(bits: Any) -> Any:
    """Twice the bits above `_CUT` - 1; and one more if any bit below them is set, which then carries once."""
    upper = (1 << 33 - _CUT) - 1
    return ((bits >> (_CUT - 1)) & upper) + (((bits + ((1 << _CUT - 1) - 1)) >> (_CUT - 1)) & upper)


def _error_key(xp: Any, before: Any, after: Any, field: Any, significand: Any, b: Any) -> Any:
    """An error's field, the lower four bits of its significand, and 1 if it is negative; 0 for no error."""
    result_field, result_significand = field_and_significand(xp, b, FLOAT32)
    top = xp.where(field > result_field, field, result_field)
    # Both significands in units of the larger exponent; the guard bits keep the difference rounding correctly.
    x = _shifted(significand << _GUARD, xp.clip(top - field, None, 31))
    y = _shifted(result_significand << _GUARD, xp.clip(top - result_field, None, 31))
    sign, result_sign = before >> 31, after >> 31
    error = ((y ^ result_sign) - result_sign) - ((x ^ sign) - sign)
    negative = error >> 31
    size = (error ^ negative) - negative
    rounded = _rounded(xp.float_bits(size)) + ((top - 127) << 4)
    return ((rounded << 1) - negative) & (-size >> 31)


def _shifted(x: Any, distance: Any) -> Any:
    """x >> distance, with the last bit set if any bit is lost, so that a later rounding is correct."""
    kept = x >> distance
    return kept | -(((kept << distance) - x) >> 31)


def _rounded(bits: Any) -> Any:
    """Significands of 24 bits rounded to 5, also with their exponents."""
    return (bits + ((1 << _CUT - 1) - 1 + ((bits >> _CUT) & 1))) >> _CUT


def number_weights() -> np.ndarray:
    """For each key of a field, the numbers that an element adds to `NUMBER_COLUMNS`."""
    significands = np.arange(NUMBER_KEYS)
    return np.stack([np.ones_like(significands), significands**2], -1)


def error_weights() -> np.ndarray:
    """For each key of a field, the numbers that an element adds to `ERROR_COLUMNS`."""
    sizes, signs = 16 + np.arange(ERROR_KEYS) // 2, 1 - 2 * (np.arange(ERROR_KEYS) % 2)
    return np.stack([sizes, signs * sizes, sizes**2], -1)


def plain_weights() -> tuple[np.ndarray, np.ndarray]:
    """The weights of plain keys, for numbers and for positive errors; elements of field 0 add nothing."""
    keys = np.arange(PLAIN_KEYS)
    significands = 16 + (keys >> 2) + ((keys >> 1) & (keys | (keys >> 2)) & 1)
    sizes = np.where(keys < PLAIN_CARRY, significands, 16)
    return np.stack([np.ones_like(keys), significands**2], -1), np.stack([sizes, sizes, sizes**2], -1)


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


DIGIT = 30  # bits of the lower half of a sum
NUMBERS, ERRORS = FIELDS * len(NUMBER_COLUMNS), ERROR_FIELDS * len(ERROR_COLUMNS)
SUMS = len(COUNTS) + NUMBERS + ERRORS
LENGTH = 2 * SUMS + len(MAGNITUDES)


class Packed(NamedTuple):
    """Lanes that are mostly zeros: the indices and the values of all nonzero lanes."""

    places: np.ndarray
    values: np.ndarray


def merge_lanes(xp: Any, a: Any, b: Any) -> Any:
    """The lanes of two statistics merged, in an array namespace that has `maximum` and `concatenate`."""
    low = a[..., SUMS : 2 * SUMS] + b[..., SUMS : 2 * SUMS]
    high = a[..., :SUMS] + b[..., :SUMS] + (low >> DIGIT)
    magnitudes = xp.maximum(a[..., 2 * SUMS : LENGTH], b[..., 2 * SUMS : LENGTH])
    return xp.concatenate([high, low & ((1 << DIGIT) - 1), magnitudes, a[..., LENGTH:] + b[..., LENGTH:]], -1)


def lanes_of(sums: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """Lanes from sums in int64."""
    halves = sums >> DIGIT, sums & ((1 << DIGIT) - 1)
    return np.concatenate([*halves, magnitudes], -1).astype(np.int32)


def sums_of(lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums in int64, and the magnitudes."""
    high, low = lanes[..., :SUMS].astype(np.int64), lanes[..., SUMS : 2 * SUMS]
    return (high << DIGIT) + low, lanes[..., 2 * SUMS : LENGTH]


def as_numpy(lanes: Any) -> np.ndarray:
    """The lanes of any package, or packed lanes, as a NumPy array."""
    if isinstance(lanes, Packed):
        whole = np.zeros(LENGTH, np.int32)
        whole[lanes.places] = lanes.values
        return whole
    return np.asarray(lanes.cpu() if hasattr(lanes, "cpu") else lanes)
