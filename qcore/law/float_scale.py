"""Blocks whose scale is a float, in one level (`BlockScaled` with float32 scales) or in two (`NVFP4`).

These are the only laws with float arithmetic, and integers do it. A positive number is a lane of the working float
whose exponent field may also lie below 1 and beyond the carrier's range, so that no intermediate result is subnormal or
overflows. Quotients and products are rounded to nearest, ties to even, to the mantissa of a lane.

Two levels, the operations in this order:

    t = largest magnitude / (448 * 6), at least 2^-126      of the array's finite numbers; 1 where they are all zero
    s = e4m3((block's largest magnitude / 6) / t)           to nearest, from 2^-6 to 448
    S = s * t
    y = |x| / S, rounded to e2m1 under the mode, saturating at 6
    result = y * S, rounded to nearest, ties to even, in the array's dtype

One level, the operations of `qcore.linalg`'s scales, which a product does on its operands and its sums:

    s = largest element / largest magnitude of the block     from 2^-126 to 2^126 for float32
    r = 1 / s
    y = |x| * s, rounded to the element format under the mode, saturating
    result = y * r, rounded to nearest, ties to even, in the array's dtype

Blocks whose largest magnitude is zero, infinite or NaN have s = 1. r and s are normal numbers of the working float, so
codes and r together are the whole result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from qcore.law.carrier import FLOAT32, FLOAT64, Carrier, with_hidden_bits, without_hidden_bits
from qcore.law.codes import encode
from qcore.law.grid import Grid, round_to_grid
from qcore.law.rounding import Rounding, increment
from qcore.random.threefry import Materialize

MAGNITUDES = 0, 1, 2, 3, 4, 6, 8, 12  # of elements by their codes, in halves
SIGN = 8  # of their codes
_ELEMENTS = {  # those above zero as lanes of the working floats
    work: tuple(work.lane_at_most(count, -1) for count in MAGNITUDES[1:]) for work in (FLOAT32, FLOAT64)
}


class Levels(NamedTuple):
    """The integers of NVFP4 besides those of its two formats: ints or 0-d arrays.

    Attributes:
        least: the smallest scale of a block, as bits of the working float.
        full: the largest scale of a block times the largest element, as bits of the working float.
    """

    least: Any
    full: Any


def working(carrier: Carrier) -> Carrier:
    """The carrier of scales and quotients: float32, for float64 arrays float64."""
    return FLOAT32 if carrier.lane_bits == 32 else FLOAT64


def to_working(xp: Any, bits: Any, carrier: Carrier) -> Any:
    """Magnitudes as lanes of the working float, with unlimited exponents; infinity and NaN are beyond all numbers."""
    offset = (working(carrier).bias - carrier.bias) << carrier.width
    lanes = with_hidden_bits(xp, bits & carrier.magnitude_mask, carrier) + offset
    return xp.clip(lanes, -(carrier.width << carrier.width), None)  # only zero is below this


def usual_scale(full_scale: Any, carrier: Carrier) -> Any:
    """True for blocks whose scale is so large that a quarter of it is a normal number of the carrier."""
    work = working(carrier)
    return full_scale >= (work.bias - carrier.bias + 3) << work.width


def quotient(xp: Any, a: Any, b: Any, carrier: Carrier) -> Any:
    """a / b. Where a backend's division may be inexact, integers correct it; they may wrap, as remainders are small."""
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    x, y = (a & (hidden - 1)) | hidden, (b & (hidden - 1)) | hidden
    nearest = xp.quotient_bits(x, y)  # of the significands, between 1/2 and 2
    if xp.quotient_error:
        less = (x - y) >> last  # -1 where it is below 1: it needs one more bit
        fields = (carrier.lane_bias + less - 1) << width
        # From the least possible quotient up, the remainder decides each step; then it decides the rounding.
        guess = nearest - fields - xp.quotient_error
        rest = (x << (width - less)) - guess * y
        for _ in range(2 * xp.quotient_error):
            fits = (y - 1 - rest) >> last
            guess, rest = guess - fits, rest - (y & fits)
        nearest = guess - ((y - 1 - (rest << 1)) >> last) + fields  # there are no ties
    return (a & -hidden) + (nearest - (b & -hidden))


def product(xp: Any, small: Any, b: Any, carrier: Carrier) -> Any:
    """small * b, where small has at most four significant bits."""
    width, hidden = carrier.width, carrier.hidden
    x, y = ((small & (hidden - 1)) | hidden) >> (width - 3), (b & (hidden - 1)) | hidden
    rounded = xp.float_bits(x * y) - ((carrier.lane_bias + width + 3) << width)
    return (small & -hidden) + ((b & -hidden) - (carrier.bias << width)) + rounded


def from_working(xp: Any, lanes: Any, carrier: Carrier, normal: bool = False) -> Any:
    """Working floats rounded to magnitudes of the carrier: to nearest, ties to even, at most the largest finite one.

    `normal` says that no float is below the smallest normal number of the carrier.
    """
    width, hidden = carrier.width, carrier.hidden
    lanes = lanes - ((working(carrier).bias - carrier.bias) << width)
    if normal:
        below, magnitude, drop = 0, lanes, carrier.padding
    else:
        below = xp.clip(xp.clip(1 - (lanes >> width), 0, None), None, width + 2)  # from there on all becomes zero
        magnitude = xp.where(lanes < hidden, (lanes & (hidden - 1)) | hidden, lanes)
        drop = xp.clip(below + carrier.padding, None, width + 2)
    step = increment(Rounding.NEAREST, ~(-1 << drop), (magnitude >> drop) & 1, None, None)
    rounded = (magnitude + step) >> drop << (drop - below)
    return xp.clip(rounded, None, carrier.infinity - (1 << carrier.padding))


def run_two_level(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    mode: Rounding,
    parts: Sequence[Any],
    axes: tuple[int, ...],
    word: Any,
    materialize: Materialize,
    usual: bool,
) -> Any:
    """Rounds lanes, or encodes them; arguments as for `Program.run`.

    `parts` are the grids of elements and of scales on the working float, `Levels`, and for codes the grid and the codes
    with which `encode` encodes scales.
    """
    element, _, _, *coded = parts
    work, magnitude, last = working(carrier), bits & carrier.magnitude_mask, carrier.last
    array_scale, block, full_scale, nan = scales(xp, bits, carrier, parts, axes, materialize)
    if mode is Rounding.NEAREST:  # eight comparisons of the element itself cost less than its quotient
        compared, most = magnitude, [materialize(one) for one in _rounded_down(xp, full_scale, carrier, usual)]
    else:
        y = quotient(xp, to_working(xp, bits, carrier), full_scale, work)
        y = materialize(xp.clip(y, 1, work.infinity - 1) & (-magnitude >> last))
        negative = (bits >> last) & work.negative if mode.reads_sign else 0
        y = round_to_grid(xp, y | negative, work, mode, element._replace(keep=work.infinity), word)
        compared, most = y & work.magnitude_mask, (0, *_ELEMENTS[work][:-1])
    if coded:
        code = pick(xp, compared, most, range(1, len(MAGNITUDES)), nan & 0) | ((bits >> last) & SIGN)
        grid, codes = coded
        block = encode(xp, block | (nan & work.quiet_nan), work, Rounding.TOWARD_ZERO, grid, codes, None, "grid")
        return code & materialize(~nan), block, array_scale
    nans = nan & carrier.quiet_nan
    values = [materialize(xp.clip(value, nans, None)) for value in _values(xp, full_scale, carrier, usual)]
    result = pick(xp, compared, most, values, materialize(nans))
    return xp.where(magnitude > carrier.infinity, magnitude, result) | (bits & carrier.negative)


def pick(xp: Any, compared: Any, bounds: Sequence[Any], values: Iterable[Any], below: Any) -> Any:
    """For each lane the value that belongs to the last bound below it; `below` where no bound is. Bounds increase."""
    for bound, value in zip(bounds, values, strict=True):
        below = xp.where(compared > bound, value, below)
    return below


def _rounded_down(xp: Any, scale: Any, carrier: Carrier, usual: bool) -> Iterator[Any]:
    """The carrier's largest magnitudes whose quotients by the scale are rounded to less than each element above zero.

    A float is rounded down if it is below the middle m between the element and the one before, or is m and the code of
    the one before is even. The quotient is m up to half a step above it, and less from half a step below it. With the
    scale's significand s, m = count * 2^power, and d = floor(log2 count), half a step times the scale is

        s * count               m times the scale
        s >> width + 1 - d      half a step times the scale; what is below the lowest bit makes no difference
    """
    work, width, hidden = working(carrier), carrier.width, carrier.hidden
    significand, fields = (scale & (hidden - 1)) | hidden, (scale & -hidden) - ((work.bias - carrier.bias) << width)
    for code in range(1, len(MAGNITUDES)):
        middle = MAGNITUDES[code - 1] + MAGNITUDES[code]  # in quarters
        power = (middle & -middle).bit_length() - 1
        count = middle >> power
        digits = count.bit_length() - 1
        half = significand >> (width + 1 - digits)
        most = significand * count + (half if code % 2 else ~half)
        drop = (most >> (width + 1 + digits)) + digits
        lanes = fields + ((drop + (power - 3)) << width) + (most >> drop)
        yield lanes if usual else without_hidden_bits(xp, lanes, carrier)


def _values(xp: Any, scale: Any, carrier: Carrier, usual: bool = False) -> Iterator[Any]:
    """The elements above zero times the scale, as magnitudes of the carrier."""
    work = working(carrier)
    for element in _ELEMENTS[work]:
        yield from_working(xp, product(xp, element, scale, work), carrier, usual)


def scales(
    xp: Any, bits: Any, carrier: Carrier, parts: Sequence[Any], axes: tuple[int, ...], materialize: Materialize
) -> tuple[Any, Any, Any, Any]:
    """The scales of the array, of blocks, and their products; and -1 for blocks with an infinity or a NaN, else 0."""
    element, scale, levels = parts[:3]
    work, magnitude = working(carrier), bits & carrier.magnitude_mask
    array_scale = _array_scale(xp, magnitude, carrier, levels.full)
    largest = xp.amax(magnitude, axis=axes, keepdims=True) if axes else magnitude
    nan = (carrier.infinity - 1 - largest) >> carrier.last
    block = quotient(xp, to_working(xp, largest, carrier), element.limit, work)
    block = quotient(xp, block, array_scale, work)
    block = xp.clip(xp.clip(block, levels.least, None), None, scale.limit)
    block = round_to_grid(xp, block, work, Rounding.NEAREST, scale)
    return array_scale, block, materialize(product(xp, block, array_scale, work)), nan


def _array_scale(xp: Any, magnitude: Any, carrier: Carrier, full: Any) -> Any:
    work = working(carrier)
    finite = xp.where(magnitude > carrier.infinity - 1, 0, magnitude)
    largest = xp.amax(finite, axis=tuple(range(len(finite.shape))), keepdims=True)
    array_scale = quotient(xp, to_working(xp, largest, carrier), full, work)
    return xp.where(largest > 0, xp.clip(array_scale, work.hidden, None), work.bias << work.width)


def apply_two_levels(xp: Any, codes: Any, block: Any, array_scale: Any, carrier: Carrier) -> Any:
    """The lanes of the elements with these codes, times the scales of blocks and array, which are working floats."""
    work, last = working(carrier), carrier.last
    block, whole = block & work.magnitude_mask, array_scale & work.magnitude_mask
    zero = (-block & -array_scale) >> last  # 0 where either is, else -1
    nans = ((work.infinity - 1 - block) | (work.infinity - 1 - whole)) >> last & carrier.quiet_nan
    full_scale = product(xp, block, to_working(xp, array_scale, work), work)
    values = [xp.clip(value & zero, nans, None) for value in _values(xp, full_scale, carrier)]
    found = pick(xp, codes & (SIGN - 1), range(SIGN - 1), values, nans)
    return xp.where((codes & SIGN) > 0, found | carrier.negative, found)


class FloatScale(NamedTuple):
    """The integers that decide a block's float32 scale: ints or 0-d arrays.

    Attributes:
        full: the largest element as bits of the working float.
    """

    full: Any


def times(xp: Any, a: Any, b: Any, work: Carrier) -> Any:
    """a * b. Significands are split in halves; their product is upper * 2^(2 * half) + lower."""
    width, hidden = work.width, work.hidden
    half = (width + 2) // 2
    low, word = (1 << half) - 1, (1 << 2 * half) - 1
    x, y = (a & (hidden - 1)) | hidden, (b & (hidden - 1)) | hidden
    middle = (x >> half) * (y & low) + (x & low) * (y >> half)
    lower = (x & low) * (y & low) + ((middle & low) << half)
    upper = (x >> half) * (y >> half) + (middle >> half) + (lower >> 2 * half)
    lower = lower & word
    carry = upper >> (2 * width + 1 - 2 * half)  # 1 where the product of the significands is at least 2
    drop = carry + width
    kept = (upper << (2 * half - width) >> carry) | (lower >> drop)
    mask = ~(-1 << drop)
    kept = kept + (((lower & mask) + increment(Rounding.NEAREST, mask, kept & 1, None, None)) >> drop)
    # What is above the working float's range may wrap around before the sum is complete.
    return (a & -hidden) + ((b & -hidden) - (work.bias << width)) + (carry << width) + (kept - hidden)


def float_scales(
    xp: Any, bits: Any, carrier: Carrier, levels: FloatScale, axes: tuple[int, ...], materialize: Materialize
) -> tuple[Any, Any]:
    """s and r of each block. `axes` get length 1."""
    work, magnitude = working(carrier), bits & carrier.magnitude_mask
    largest = xp.amax(magnitude, axis=axes, keepdims=True) if axes else magnitude
    one, full = (work.bias << work.width) + (largest & 0), levels.full + (largest & 0)
    # A smaller magnitude would lead beyond the working float's range, where fields do not fit.
    divisor = xp.clip(to_working(xp, largest, carrier), levels.full - ((work.bias + 1) << work.width), None)
    scale = xp.clip(quotient(xp, full, divisor, work), work.hidden, (2 * work.bias - 1) << work.width)
    scale = materialize(xp.where((largest > 0) & (largest < carrier.infinity), scale, one))
    return scale, materialize(quotient(xp, one, scale, work))


def run_float_scaled(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    mode: Rounding,
    levels: FloatScale,
    element: Grid,
    kind: str,
    coded: Sequence[Any],
    axes: tuple[int, ...],
    word: Any,
    materialize: Materialize,
) -> Any:
    """Rounds lanes, or encodes them with r of each block; arguments as for `Program.run`.

    `element` and its kind are those of the working float; `coded` is empty, or has the codes for `encode`.
    """
    work, magnitude, last = working(carrier), bits & carrier.magnitude_mask, carrier.last
    scale, inverse = float_scales(xp, bits, carrier, levels, axes, materialize)
    y = times(xp, to_working(xp, magnitude, carrier), scale, work)
    y = materialize(xp.clip(y, 1, work.infinity - 1) & (-magnitude >> last))
    negative = (bits >> last) & work.negative
    if coded:
        y = xp.where(magnitude > carrier.infinity, work.quiet_nan, y)
        return encode(xp, y | negative, work, mode, element, coded[0], word, kind), inverse
    y = round_to_grid(xp, y | negative, work, mode, element, word, kind)
    result = _unscaled(xp, y & work.magnitude_mask, inverse, carrier)
    return xp.where(magnitude > carrier.infinity, magnitude, result) | ((y >> last) & carrier.negative)


def _unscaled(xp: Any, y: Any, inverse: Any, carrier: Carrier) -> Any:
    """The magnitudes y * r of the carrier; NaN for elements that are NaN or infinite."""
    work = working(carrier)
    result = from_working(xp, times(xp, y, inverse, work), carrier) & (-y >> carrier.last)
    return xp.where(y > work.infinity - 1, carrier.quiet_nan, result)


def apply_float_scales(xp: Any, elements: Any, inverse: Any, carrier: Carrier) -> Any:
    """The lanes of elements times r of their blocks, both lanes of the working float; r may be any number."""
    work, last = working(carrier), carrier.last
    y, r = elements & work.magnitude_mask, inverse & work.magnitude_mask
    # A product above all numbers has the exponent field of infinity, as a larger one does not fit.
    most = work.infinity - xp.clip((y & -work.hidden) - (work.bias << work.width), 0, None)
    result = _unscaled(xp, y, xp.clip(to_working(xp, r, work), None, most), carrier)
    result = xp.where((r < 1) & (y < work.infinity), 0, xp.where(r > work.infinity - 1, carrier.quiet_nan, result))
    return result | (((elements ^ inverse) >> last) & carrier.negative)
