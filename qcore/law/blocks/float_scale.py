"""Blocks whose scale is a float: numbers are multiplied with it, rounded, and multiplied with its inverse.

As in `qcore.law.blocks.two_level`, integers do the float arithmetic. Numbers above zero are lanes of the working float
whose exponent fields may lie below 1 and beyond its range, so nothing is subnormal or overflows before the last step.
Quotients and products are rounded to nearest, ties to even. The operations, in this order:

    s = largest element / largest magnitude of the block     at most the working float's largest number
    r = 1 / s
    y = |x| * s, rounded to the element format under the mode, saturating
    result = y * r, rounded to nearest, ties to even, in the array's dtype

Blocks whose largest magnitude is zero, infinite or NaN have s = 1. They are the operations of
`qcore.accumulate.operands.scaling`, which a product does on its operands and its sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.law.blocks.two_level import from_working, quotient, to_working, working
from qcore.law.carrier import Carrier
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
    scale = xp.clip(quotient(xp, full, divisor, work), None, work.infinity - 1)
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
    axes: tuple[int, ...],
    word: Any,
    materialize: Materialize,
) -> Any:
    """Rounds lanes; arguments as for `Program.run`. `element` and its kind are those of the working float."""
    work, magnitude, last = working(carrier), bits & carrier.magnitude_mask, carrier.last
    scale, inverse = float_scales(xp, bits, carrier, levels, axes, materialize)
    y = times(xp, to_working(xp, magnitude, carrier), scale, work)
    y = materialize(xp.clip(y, 1, work.infinity - 1) & (-magnitude >> last))
    y = round_to_grid(xp, y | ((bits >> last) & work.negative), work, mode, element, word, kind)
    rounded = y & work.magnitude_mask
    result = from_working(xp, times(xp, rounded, inverse, work), carrier) & (-rounded >> last)
    result = xp.where(rounded > work.infinity - 1, carrier.quiet_nan, result)  # of elements that have no such numbers
    return xp.where(magnitude > carrier.infinity, magnitude, result) | ((y >> last) & carrier.negative)
