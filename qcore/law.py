"""The law of rounding, once, for every format, framework and device: integers only.

A float's magnitude bits (exponent | mantissa) are an increasing integer, so rounding a number means: drop low
bits of that integer under a rounding mode. Only the number of dropped bits differs from element to element.

    magnitude bits     eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    - base             so that the quantum 2^q, the smallest step of the format here, has exponent field 1
    + increment        decided by the rounding mode and the `drop` low bits
    & ~mask            the low bits are gone; a carry has moved into the exponent by itself
    + base, limit      back, and the range of the format

With the base subtracted, fields >= 1 hold numbers of at least one quantum, whose hidden bit the field supplies,
and field 0 holds those in [1/2, 1) quantum: all bits are dropped there, of which the highest is the hidden one.
Smaller numbers are negative.

Functions here take the array namespace `xp` (numpy, torch, jax.numpy) and lanes (int32 or int64 arrays, see
Carrier). They use operators, `xp.where`, `xp.clip`, `xp.amax` and what `qcore.lanes` says, nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.carrier import Carrier
from qcore.lanes import split
from qcore.rounding import Rounding, increment


class Grid(NamedTuple):
    """A format on a carrier, reduced to integers: ints, 0-d arrays, or arrays with one entry a block.

    Attributes:
        base: subtracted from the magnitude bits, so that the smallest quantum has exponent field 1.
        top: bits to drop where the exponent field is 0, were there no limits; one less for each field above.
        coarsest: the most bits dropped (below this the quantum no longer shrinks).
        finest: the fewest bits dropped (above this the quantum grows with the number).
        limit: bits of the largest positive result.
        keep: magnitudes above this stay as they are: NaN, or infinity as well.

        Read for "grid", "deep" and "wide" formats only:
        lower: what is added to `limit` for negative numbers.

        Read for "overflowing", "general" and "wide" formats only:
        jump: what is added to `limit` for numbers beyond it, so that they become infinity or NaN; 0 saturates.

        Read for "general" and "wide" formats only:
        slope: fields are multiplied by 2^slope before they shrink `top`; 0 where there are subnormals.
        signed_zero: -1 where zero has a sign, else 0.

        Read for "deep" and "wide" formats only:
        floor: the least result before `base` is added back: 0, or the smallest number where there is no zero, or a NaN.

        Read for "wide" formats only:
        unit: the carrier's hidden bit where numbers have no stored mantissa (so that n is 1, odd), else 0.
        zero: what becomes of zero: 0, or a NaN.
        unsigned: -1 where there are no negative numbers, else 0.
        lower_jump: what is added to `jump` for negative numbers.
        lowest: the magnitude bits of the smallest normal number.
        coded: -1 where ties go by the parity of codes, and numbers have no stored mantissa; else 0.
        shift: what is added to exponent fields of magnitudes less `base` to get those codes' parity.
    """

    base: Any
    top: Any
    coarsest: Any
    finest: Any
    limit: Any
    keep: Any
    lower: Any = 0
    jump: Any = 0
    slope: Any = 0
    signed_zero: Any = -1
    floor: Any = 0
    unit: Any = 0
    zero: Any = 0
    unsigned: Any = 0
    lower_jump: Any = 0
    lowest: Any = 0
    coded: Any = 0
    shift: Any = 0


GENERAL = ("general", "wide")  # kinds of formats that have not both subnormals and signed zero
DEEP = ("deep", "wide")  # kinds whose exponents go below the carrier's
SATURATING = ("grid", "deep")  # kinds without overflow
SYMMETRIC = ("overflowing", "general")  # kinds with the same limit for negative numbers


def uniform_grid(xp: Any, quantum: Any, carrier: Carrier) -> tuple[Any, Any, Any]:
    """`base`, `top` and `coarsest` of a grid whose smallest quantum has the biased exponent `quantum`."""
    width = carrier.width
    base = xp.clip(quantum - 1, 0, None) << width
    return base, xp.clip(quantum + width, 0, width + 1), xp.clip(quantum + (width - 1), 0, width + 1)


def round_to_grid(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, word: Any = None, kind: str = "grid"
) -> Any:
    """Rounds each lane to the grid.

    Args:
        xp: the array namespace.
        bits: lanes of the carrier's bits, any shape.
        carrier: their layout.
        mode: the rounding mode.
        grid: the format's integers.
        word: random words of the shape of `bits`, see `qcore.random.rounding_words`; STOCHASTIC only.
        kind: "grid" for formats that saturate; "overflowing" for floats that do not; "general" for those without
            subnormals, or signed zero; "deep" for saturating formats whose exponents go below the carrier's,
            so that the quantum of its subnormal numbers depends on their own leading bit; or "wide" for all.
    """
    rounded, drop, _ = round_magnitude(xp, bits, carrier, mode, grid, word, kind)
    rounded = cleared(rounded, drop, carrier)
    if kind in DEEP:
        rounded = xp.clip(rounded, grid.floor, None)
    value = (rounded + grid.base) & (-rounded >> carrier.last)  # what is not above zero is zero
    largest = grid.limit if kind in SYMMETRIC else grid.limit + ((bits >> carrier.last) & grid.lower)
    value = limit(xp, value, largest, bits, carrier, mode, grid, kind)
    return finish(xp, value, bits, bits & carrier.negative, bits, carrier, grid, kind)


def round_magnitude(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, word: Any, kind: str
) -> tuple[Any, Any, Any]:
    """Magnitudes less `base`, rounded without limits; anything below 1 is zero.

    Returns:
        The magnitudes after the increment; how many of their bits are to be dropped, see `cleared`; and for "deep" and
        "wide" formats how far the exponent fields, before rounding, would go on below 1.
    """
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    sign, magnitude = bits >> last, bits & carrier.magnitude_mask
    m = magnitude - grid.base
    if mode is Rounding.STOCHASTIC:  # below one half, in units of 1 / hidden, less one: floor is what the law takes
        _, significand = split(xp, magnitude, carrier)
        m = xp.clip(m, (significand >> xp.clip(-(m >> width), 0, last)) - hidden, None)
    elif mode.directed:  # below one half only whether a number is zero matters
        m = xp.clip(m, xp.clip(magnitude, None, 1) - hidden, None)
    field, below = m >> width, None
    drop = grid.top - (field << grid.slope if kind in GENERAL else field)
    kept = xp.clip(m, 0, None) if mode is Rounding.ODD else m
    if kind in DEEP:
        drop, below = _deep(xp, magnitude, xp.clip(drop, None, grid.coarsest), carrier, grid, kind)
    else:
        drop = xp.clip(xp.clip(drop, grid.finest, None), None, grid.coarsest)
    odd = None
    if mode in (Rounding.NEAREST, Rounding.ODD):
        odd = kept >> drop
        if kind == "wide":
            normal = ~(magnitude - grid.lowest >> last)  # below, ties are with zero, which is even
            odd = (kept | xp.clip(kept, None, grid.unit)) >> drop
            odd = odd + ((below + grid.shift) & normal & grid.coded)
    top_bits = word >> (last - drop) if mode is Rounding.STOCHASTIC else None
    step = increment(mode, ~(-1 << drop), odd, sign, top_bits)
    if mode is Rounding.STOCHASTIC or mode.directed:  # below one quantum, no more than what leads there
        step = xp.clip(step, None, hidden - xp.clip(m, None, 0))
    return m + step, drop, below


def cleared(rounded: Any, drop: Any, carrier: Carrier) -> Any:
    """Rounded magnitudes without the low bits; the hidden bit stays where all below it are dropped."""
    return rounded & ((-1 << drop) | -carrier.hidden)


def _deep(xp: Any, magnitude: Any, drop: Any, carrier: Carrier, grid: Grid, kind: str) -> tuple[Any, Any]:
    """Bits to drop, and how far exponent fields would go on below 1, where the carrier's subnormal numbers may be
    normal ones of the format.

    `drop` are the bits below the quantum of the format's subnormal numbers.
    """
    leading = xp.float_bits(xp.clip(magnitude, None, carrier.hidden)) >> carrier.width
    below = leading - (carrier.lane_bias + carrier.width)  # how far below field 1; 0 for the carrier's normal numbers
    if kind != "wide":
        return xp.clip(drop, grid.finest + below, None), below
    return xp.clip(drop & (magnitude - grid.lowest) >> carrier.last, grid.finest + below, None), below


def limit(xp: Any, value: Any, largest: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, kind: str) -> Any:
    """The magnitudes, or codes, that came of `bits`: at most the largest, or what stands for those beyond it."""
    if kind in SATURATING:
        return xp.clip(value, None, largest)
    sign, jump = bits >> carrier.last, grid.jump
    beyond = (largest - value) >> carrier.last
    stays = mode.stays_finite(sign)
    if stays is not None:
        finite = ((bits & carrier.magnitude_mask) - carrier.infinity) >> carrier.last
        beyond = beyond & ~(stays & finite & ~(sign & grid.unsigned))
    if kind == "wide":
        jump = jump + (sign & grid.lower_jump)
    return xp.clip(value, None, largest) + (beyond & jump)


def finish(xp: Any, value: Any, bits: Any, negative: Any, kept: Any, carrier: Carrier, grid: Grid, kind: str) -> Any:
    """The results for magnitudes, or their codes: with signs, zeros, and what the format keeps as it is.

    Args:
        value: the magnitudes or codes, which came of `bits`.
        negative: what negative numbers have besides, for these.
        kept: what infinities and NaNs are to be, where they do not overflow.
    """
    magnitude, keep = bits & carrier.magnitude_mask, grid.keep
    if kind == "wide":
        nonzero = -magnitude >> carrier.last
        value = (value & nonzero) | (grid.zero & ~nonzero)
    if kind in GENERAL:
        negative = negative & ((-value >> carrier.last) | grid.signed_zero)
    if kind == "wide":
        keep = xp.clip(keep - ((bits >> carrier.last) & grid.unsigned), None, carrier.infinity)
    return xp.where(magnitude > keep, kept, value | negative)
