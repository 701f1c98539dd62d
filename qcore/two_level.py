"""NVFP4's law: blocks share a scale that is itself a small float, times a float that the whole array shares.

The one place with float arithmetic, and it is done in integers: a positive number is a lane whose exponent field may be
anything, below 1 and beyond the carrier's as well, so that nothing in between is subnormal or overflows. Quotients and
products are rounded to the nearest, ties to even, with as many bits as the lane has. The law, in this order:

    t = largest magnitude / (448 * 6), at least 2^-126      of the array's finite numbers; 1 where they are all zero
    s = e4m3((block's largest magnitude / 6) / t)           to nearest, from 2^-6 to 448
    S = s * t
    y = |x| / S, rounded to e2m1 under the mode, saturating at 6
    result = y * S, rounded to nearest, ties to even, in the array's dtype
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qcore.carrier import FLOAT32, FLOAT64, Carrier
from qcore.encoding import encode
from qcore.lanes import with_hidden_bits
from qcore.law import Grid, round_to_grid
from qcore.random import Settle
from qcore.rounding import Rounding

_ERRORS = 3  # steps by which a quotient of floats may be off, at most 2 where compilers multiply by a reciprocal


class Levels(NamedTuple):
    """What NVFP4 is besides its two formats: ints or 0-d arrays.

    Attributes:
        least: the working float's bits of the smallest scale of a block.
    """

    least: Any


def working(carrier: Carrier) -> Carrier:
    """The float in which scales and quotients are: float32, for float64 arrays float64."""
    return FLOAT32 if carrier.lane_bits == 32 else FLOAT64


def widened(xp: Any, bits: Any, carrier: Carrier) -> Any:
    """Magnitudes as lanes of the working float, without an end of exponents; those of infinity and NaN are beyond."""
    offset = (working(carrier).bias - carrier.bias) << carrier.width
    lanes = with_hidden_bits(xp, bits & carrier.magnitude_mask, carrier) + offset
    return xp.clip(lanes, -(carrier.width << carrier.width), None)  # which only a zero is below


def quotient(xp: Any, a: Any, b: Any, carrier: Carrier, settle: Settle) -> Any:
    """a / b: floats guess the significand, and integers that wrap, as all remainders here are small, put it right."""
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    x, y = (a & (hidden - 1)) | hidden, (b & (hidden - 1)) | hidden
    less = (x - y) >> last  # -1 where the quotient of significands is below 1, and has one bit more
    guess = xp.quotient_bits(x, y) - ((carrier.lane_bias + less) << width) + (hidden - _ERRORS)
    rest = (x << (width - less)) - guess * y
    for _ in range(2 * _ERRORS):
        fits = (y - 1 - rest) >> last
        guess, rest = guess - fits, settle(rest - (y & fits))
    nearest = guess - ((y - 1 - (rest << 1)) >> last)  # there are no ties
    return ((((a >> width) - (b >> width)) + (carrier.bias - 1 + less)) << width) + nearest


def product(xp: Any, small: Any, b: Any, carrier: Carrier) -> Any:
    """small * b, where small has at most four significant bits."""
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    x, y = ((small & (hidden - 1)) | hidden) >> (width - 3), (b & (hidden - 1)) | hidden
    exact = x * y  # 27 or 28 bits
    more = -((exact - (hidden << 4)) >> last) - 1  # 0 for 27 bits, -1 for 28
    drop = 3 - more
    rounded = (exact + ((1 << (drop - 1)) - 1) + ((exact >> drop) & 1)) >> drop
    return ((((small >> width) + (b >> width)) - (carrier.bias + 1 + more)) << width) + rounded


def fitted(xp: Any, lanes: Any, carrier: Carrier) -> Any:
    """The magnitudes of working floats in a carrier: to nearest, ties to even, at most its largest finite number."""
    width, hidden = carrier.width, carrier.hidden
    field = (lanes >> width) - (working(carrier).bias - carrier.bias)
    significand = (lanes & (hidden - 1)) | hidden
    below = xp.clip(1 - field, 0, width + 2)  # of which all bits are dropped, and half a step as well
    drop = xp.clip(below + carrier.padding, None, width + 2)
    half = (1 << drop) >> 1
    odd = (significand >> drop) & 1
    rounded = (significand + xp.clip(half - 1 + odd, 0, None)) >> drop << (drop - below)
    fields = xp.clip(xp.clip(field, 1, None), None, carrier.infinity >> width) - 1
    return xp.clip((fields << width) + rounded, None, carrier.infinity - (1 << carrier.padding))


def run_two_level(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    mode: Rounding,
    parts: Sequence[Any],
    axes: tuple[int, ...],
    word: Any,
    settle: Settle,
) -> Any:
    """Rounds lanes, or encodes them; arguments as for `Program.run`.

    `parts` are the grids of elements and of scales on the working float, `Levels`, and where there are codes the
    grids and codes that `encode` takes of both.
    """
    element, scale, levels, *coded = parts
    work, magnitude, last = working(carrier), bits & carrier.magnitude_mask, carrier.last
    whole = _tensor_scale(xp, magnitude, carrier, element, scale, settle)
    largest = xp.amax(magnitude, axis=axes, keepdims=True) if axes else magnitude
    nan = (carrier.infinity - 1 - largest) >> last
    block = quotient(xp, widened(xp, largest, carrier), element.limit, work, settle)
    block = xp.clip(xp.clip(quotient(xp, block, whole, work, settle), levels.least, None), None, scale.limit)
    block = round_to_grid(xp, block, work, Rounding.NEAREST, scale)
    both = settle(product(xp, block, whole, work))
    y = quotient(xp, widened(xp, bits, carrier), both, work, settle)
    y = settle(xp.clip(y, 1, work.infinity - 1) & (-magnitude >> last))
    y = round_to_grid(xp, y | ((bits >> last) & work.negative), work, mode, element, word)
    nans = settle(nan & work.quiet_nan)
    if coded:
        grid, codes, scale_grid, scale_encoding = coded
        values = xp.where(magnitude > carrier.infinity, work.quiet_nan, y | nans)
        found = encode(xp, values, work, Rounding.TOWARD_ZERO, grid, codes, None, "grid")
        block = encode(xp, block | nans, work, Rounding.TOWARD_ZERO, scale_grid, scale_encoding, None, "grid")
        return found, block, whole
    y = y & work.magnitude_mask
    result = fitted(xp, product(xp, y, both, work), carrier) & (-y >> last)
    result = xp.where(nans > 0, carrier.quiet_nan, result) | (bits & carrier.negative)
    return xp.where(magnitude > carrier.infinity, bits, result)


def _tensor_scale(xp: Any, magnitude: Any, carrier: Carrier, element: Grid, scale: Grid, settle: Settle) -> Any:
    work = working(carrier)
    finite = xp.where(magnitude > carrier.infinity - 1, 0, magnitude)
    largest = xp.amax(finite, axis=tuple(range(len(finite.shape))), keepdims=True)
    full = product(xp, scale.limit, element.limit, work)
    whole = quotient(xp, widened(xp, largest, carrier), full, work, settle)
    return xp.where(largest > 0, xp.clip(whole, work.hidden, None), work.bias << work.width)


def scaled_twice(xp: Any, element: Any, block: Any, whole: Any, carrier: Carrier) -> Any:
    """The lanes of elements times scales of their blocks times that of all, given as lanes of the working float."""
    work, last = working(carrier), carrier.last
    block, y = block & work.magnitude_mask, element & work.magnitude_mask
    both = product(xp, block, widened(xp, whole, work), work)
    result = fitted(xp, product(xp, y, both, work), carrier) & (-y >> last) & (-block >> last) & (-whole >> last)
    wrong = (block > work.infinity - 1) | ((whole & work.magnitude_mask) > work.infinity - 1)
    return xp.where(wrong, carrier.quiet_nan, result) | ((element >> last) & carrier.negative)
