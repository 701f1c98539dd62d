"""Blocks whose scale is a float: numbers are multiplied with it, rounded, and multiplied with its inverse.

As in `qcore.law.blocks.two_level`, integers do the float arithmetic. Numbers above zero are lanes of the working float
whose exponent fields may lie below 1 and beyond its range, so nothing is subnormal or overflows before the last step.
Quotients and products are rounded to nearest, ties to even. The operations, in this order:

    s = largest element / largest magnitude of the block     from 2^-126 to 2^126 for float32
    r = 1 / s
    y = |x| * s, rounded to the element format under the mode, saturating
    result = y * r, rounded to nearest, ties to even, in the array's dtype

Blocks whose largest magnitude is zero, infinite or NaN have s = 1. r and s are normal numbers of the working float, so
that codes with r say all. They are the operations of
`qcore.linalg.operands.scaling`, which a product does on its operands and its sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qcore.law.blocks.two_level import from_working, quotient, to_working, working
from qcore.law.carrier import Carrier
from qcore.law.encoding import encode
from qcore.law.grid import Grid, round_to_grid
from qcore.law.rounding import Rounding, increment
from qcore.random.threefry import Materialize


class FloatScale(NamedTuple):
    """What a scale follows from: ints or 0-d arrays.

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

    `element` and its kind are those of the working float, `coded` is empty or has what `encode` takes of codes.
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
    """The magnitudes y * r of the carrier; NaN for elements that are no numbers."""
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
