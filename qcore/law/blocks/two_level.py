"""NVFP4's law: a block's scale is a small float, times a float that all blocks of the array share.

This is the one law with float arithmetic, and integers do it. A positive number is a lane whose exponent field may also
lie below 1 and beyond the carrier's range, so that no intermediate result is subnormal or overflows. Quotients and
products are rounded to nearest, ties to even, to the mantissa of a lane. The operations, in this order:

    t = largest magnitude / (448 * 6), at least 2^-126      of the array's finite numbers; 1 where they are all zero
    s = e4m3((block's largest magnitude / 6) / t)           to nearest, from 2^-6 to 448
    S = s * t
    y = |x| / S, rounded to e2m1 under the mode, saturating at 6
    result = y * S, rounded to nearest, ties to even, in the array's dtype
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qcore.law.carrier import FLOAT32, FLOAT64, Carrier
from qcore.law.encoding import encode
from qcore.law.grid import round_to_grid
from qcore.law.lanes import with_hidden_bits
from qcore.law.rounding import Rounding, increment
from qcore.random.threefry import Materialize


class Levels(NamedTuple):
    """What NVFP4 needs besides its two formats: ints or 0-d arrays.

    Attributes:
        least: the smallest scale of a block, as bits of the working float.
        full: the largest scale of a block times the largest element, in the same form.
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


def quotient(xp: Any, a: Any, b: Any, carrier: Carrier, materialize: Materialize) -> Any:
    """a / b. Where the backend's division may be off, integers correct it; they may wrap, as remainders are small."""
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    x, y = (a & (hidden - 1)) | hidden, (b & (hidden - 1)) | hidden
    nearest = xp.quotient_bits(x, y)  # of the significands, between 1/2 and 2
    if xp.quotient_error:
        less = (x - y) >> last  # -1 where it is below 1: it needs one more bit
        fields = (carrier.lane_bias + less - 1) << width
        guess = nearest - fields - xp.quotient_error
        rest = (x << (width - less)) - guess * y
        for _ in range(2 * xp.quotient_error):
            fits = (y - 1 - rest) >> last
            guess, rest = guess - fits, materialize(rest - (y & fits))
        nearest = guess - ((y - 1 - (rest << 1)) >> last) + fields  # there are no ties
    return (a & -hidden) + (nearest - (b & -hidden))


def product(xp: Any, small: Any, b: Any, carrier: Carrier) -> Any:
    """small * b, where small has at most four significant bits."""
    width, hidden = carrier.width, carrier.hidden
    x, y = ((small & (hidden - 1)) | hidden) >> (width - 3), (b & (hidden - 1)) | hidden
    rounded = xp.float_bits(x * y) - ((carrier.lane_bias + width + 3) << width)
    return (small & -hidden) + ((b & -hidden) - (carrier.bias << width)) + rounded


def from_working(xp: Any, lanes: Any, carrier: Carrier) -> Any:
    """Working floats rounded to magnitudes of the carrier: to nearest, ties to even, at most the largest finite one."""
    width, hidden = carrier.width, carrier.hidden
    lanes = lanes - ((working(carrier).bias - carrier.bias) << width)
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
) -> Any:
    """Rounds lanes, or encodes them; arguments as for `Program.run`.

    `parts` are the grids of elements and of scales on the working float, `Levels`, and to encode the grids and codes
    that `encode` takes, of elements and of scales.
    """
    element, _, _, *coded = parts
    work, magnitude, last = working(carrier), bits & carrier.magnitude_mask, carrier.last
    array_scale, block, full_scale, nan = scales(xp, bits, carrier, parts, axes, materialize)
    y = quotient(xp, to_working(xp, bits, carrier), full_scale, work, materialize)
    y = materialize(xp.clip(y, 1, work.infinity - 1) & (-magnitude >> last))
    negative = (bits >> last) & work.negative
    y = round_to_grid(
        xp, y | negative if mode.reads_sign else y, work, mode, element._replace(keep=work.infinity), word
    )
    nans = materialize(nan & work.quiet_nan)
    if coded:
        grid, codes, scale_grid, scale_encoding = coded
        values = xp.where(magnitude > carrier.infinity, work.quiet_nan, y | negative | nans)
        elements = encode(xp, values, work, Rounding.TOWARD_ZERO, grid, codes, None, "grid")
        block = encode(xp, block | nans, work, Rounding.TOWARD_ZERO, scale_grid, scale_encoding, None, "grid")
        return elements, block, array_scale
    y = y & work.magnitude_mask
    result = from_working(xp, product(xp, y, full_scale, work), carrier) & (-y >> last)
    result = xp.where(nans > 0, carrier.quiet_nan, result) | (bits & carrier.negative)
    return xp.where(magnitude > carrier.infinity, bits, result)


def scales(
    xp: Any, bits: Any, carrier: Carrier, parts: Sequence[Any], axes: tuple[int, ...], materialize: Materialize
) -> tuple[Any, Any, Any, Any]:
    """The scales of the array, of blocks, and their products; and -1 for blocks with an infinity or a NaN, else 0."""
    element, scale, levels = parts[:3]
    work, magnitude = working(carrier), bits & carrier.magnitude_mask
    array_scale = _array_scale(xp, magnitude, carrier, levels.full, materialize)
    largest = xp.amax(magnitude, axis=axes, keepdims=True) if axes else magnitude
    nan = (carrier.infinity - 1 - largest) >> carrier.last
    block = quotient(xp, to_working(xp, largest, carrier), element.limit, work, materialize)
    block = quotient(xp, block, array_scale, work, materialize)
    block = xp.clip(xp.clip(block, levels.least, None), None, scale.limit)
    block = round_to_grid(xp, block, work, Rounding.NEAREST, scale)
    return array_scale, block, materialize(product(xp, block, array_scale, work)), nan


def _array_scale(xp: Any, magnitude: Any, carrier: Carrier, full: Any, materialize: Materialize) -> Any:
    work = working(carrier)
    finite = xp.where(magnitude > carrier.infinity - 1, 0, magnitude)
    largest = xp.amax(finite, axis=tuple(range(len(finite.shape))), keepdims=True)
    array_scale = quotient(xp, to_working(xp, largest, carrier), full, work, materialize)
    return xp.where(largest > 0, xp.clip(array_scale, work.hidden, None), work.bias << work.width)


def apply_two_levels(xp: Any, element: Any, block: Any, array_scale: Any, carrier: Carrier) -> Any:
    """The lanes of elements times their blocks' scales times the array's scale, all as lanes of working floats."""
    work, last = working(carrier), carrier.last
    block, y = block & work.magnitude_mask, element & work.magnitude_mask
    full_scale = product(xp, block, to_working(xp, array_scale, work), work)
    result = from_working(xp, product(xp, y, full_scale, work), carrier)
    result = result & (-y >> last) & (-block >> last) & (-array_scale >> last)  # zero times anything
    not_finite = (block > work.infinity - 1) | ((array_scale & work.magnitude_mask) > work.infinity - 1)
    return xp.where(not_finite, carrier.quiet_nan, result) | ((element >> last) & carrier.negative)
