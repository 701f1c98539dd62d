"""The law of rounding, once, for every format, framework and device: integers only.

A float's magnitude bits (exponent | mantissa) are an increasing integer, so rounding a number means: drop low
bits of that integer under a rounding mode. Only the number of dropped bits differs from element to element.

    magnitude bits     eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    - base             so that the quantum 2^q, the smallest step of the format here, has exponent field 1
    + increment        decided by the rounding mode and the `drop` low bits
    & ~mask            the low bits are gone; a carry has moved into the exponent by itself
    + base, limit      back, and the range of the format

After the base is subtracted, numbers of at least one quantum have fields >= 1, and the field supplies their hidden
bit. Numbers in [1/2, 1) quantum have field 0: all bits are dropped there, the hidden bit included. Smaller numbers are
negative.

Functions here take the array namespace `xp` (numpy, torch, jax.numpy) and lanes (int32 or int64 arrays, see
`Carrier`). They use operators and the names that `qcore.namespace` lists, nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.law.carrier import Carrier, field_and_significand
from qcore.law.rounding import Rounding, aligned_bits, below_tie, increment, lowest_bit, rounds_distance, stays_finite


class Grid(NamedTuple):
    """A format on a carrier, reduced to integers: ints, 0-d arrays, or arrays with one entry a block.

    Attributes:
        base: subtracted from the magnitude, so that the smallest quantum has exponent field 1.
        top: the number of bits to drop at exponent field 0, without limits; one less for each field above.
        coarsest: the most bits dropped (below this the quantum no longer shrinks).
        finest: the fewest bits dropped (above this the quantum grows with the number).
        limit: the magnitude of the largest positive result.
        keep: magnitudes above this do not change: NaN, or also infinity.

        For "grid", "deep" and "wide" formats only:
        lower: added to `limit` for negative numbers.

        For "overflowing", "general" and "wide" formats only:
        jump: added to `limit` for numbers beyond it, so that they become infinity or NaN; 0 saturates.

        For "general" and "wide" formats only:
        slope: fields are multiplied by 2^slope before they reduce `top`; 0 for formats with subnormals.
        signed_zero: -1 if zero has a sign, else 0.
        ends_odd: -1 if rounding to odd ends at the largest number, 0 if it goes on to an infinity with an odd code.

        For "deep" and "wide" formats only:
        floor: the least result before `base` is added back: 0, a NaN, or the smallest number of a format without zero.

        For "wide" formats only:
        unit: the carrier's hidden bit if numbers have no stored mantissa (their n is 1, odd), else 0.
        zero: the result for zero: 0, or a NaN.
        unsigned: -1 for formats without negative numbers where these overflow in every mode, else 0.
        lower_jump: added to `jump` for negative numbers.
        lowest: the magnitude of the smallest normal number.
        coded: -1 if ties go to even codes and numbers have no stored mantissa, else 0.
        shift: added to exponent fields of magnitudes less `base`, gives the parity of these codes.
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
    ends_odd: Any = -1


GENERAL = ("general", "wide")  # kinds of formats without subnormals or without signed zero
DEEP = ("deep", "wide")  # kinds with exponents below the carrier's
SATURATING = ("grid", "deep", "propagating")  # kinds whose finite numbers do not overflow
KEEPING = ("wide", "propagating")  # kinds whose infinities may stay
SYMMETRIC = ("overflowing", "general", "propagating")  # kinds with the same limit for negative numbers


def uniform_grid(xp: Any, quantum: Any, carrier: Carrier) -> tuple[Any, Any, Any]:
    """`base`, `top` and `coarsest` of a grid whose smallest quantum has the biased exponent `quantum`."""
    # A field more means a bit less to drop, from `quantum + width` at field 0. `width + 1` drops all bits and the
    # hidden one. A quantum below field 1 needs no base; there the carrier's subnormal numbers drop as field 1 does.
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
        word: random words of the shape of `bits`, see `qcore.random.threefry.rounding_words`; stochastic modes only.
        kind: "grid" for formats that saturate; "propagating" for floats that do so with finite numbers only;
            "overflowing" for floats that do not; "general" for floats without
            subnormals or without signed zero; "deep" for saturating formats with exponents below the carrier's, where
            the quantum of the carrier's subnormal numbers depends on their leading bit; "wide" for all formats.
    """
    rounded, drop, _ = round_magnitude(xp, bits, carrier, mode, grid, word, kind)
    rounded = cleared(rounded, drop, carrier)
    if kind in DEEP:
        rounded = xp.clip(rounded, grid.floor, None)
    # From 0 down nothing was carried into the quantum's field: the result is zero, not `base`.
    value = xp.where(rounded > 0, rounded + grid.base, 0)
    # The range comes last: rounding decides whether a number overflows (IEEE 754, section 7.4).
    largest = grid.limit if kind in SYMMETRIC else grid.limit + ((bits >> carrier.last) & grid.lower)
    xp.named("round_to_grid", rounded=rounded, value=value, largest=largest)
    value = limit(xp, value, largest, bits, carrier, mode, grid, kind)
    return finish(xp, value, bits, bits & carrier.negative, bits, carrier, grid, kind)


def round_magnitude(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, word: Any, kind: str
) -> tuple[Any, Any, Any]:
    """Magnitudes less `base`, rounded without limits; all below 1 are zero.

    Returns:
        The magnitudes after the increment; how many of their bits `cleared` is to drop; and for "deep" and "wide"
        formats how far below 1 the exponent fields were before rounding, with subnormal numbers normalized.
    """
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    sign, magnitude = bits >> last, bits & carrier.magnitude_mask
    m = magnitude - grid.base
    xp.named("round_magnitude", sign=sign, magnitude=magnitude, m=m)
    # Below half a quantum m is negative, and its bits are not linear in the number.
    if mode.stochastic:
        # v quanta become 2 * v * hidden - hidden, rounded down, as for the numbers with field 0. A random step of
        # width + 1 bits then reaches `hidden`, which is one quantum, with probability v.
        _, significand = field_and_significand(xp, magnitude, carrier)
        shift = xp.clip(-(m >> width), 0, last)
        if rounds_distance(mode):
            m = xp.where(m < 0, _rounded_distance(xp, significand, shift, word, carrier, mode) - hidden, m)
        else:
            m = xp.clip(m, (significand >> shift) - hidden, None)
    elif mode.directed:
        # The largest step is 2 * hidden - 1: it takes 1 - hidden to one quantum, and zero's -hidden to less.
        m = xp.clip(m, xp.clip(magnitude, None, 1) - hidden, None)
    # A field more drops a bit less. Without subnormals all bits are dropped below the first field, so there a field
    # counts 2^slope times: the clips below turn any step away from it into `coarsest`.
    field, below = m >> width, None
    drop = grid.top - (field << grid.slope if kind in GENERAL else field)
    kept = xp.clip(m, 0, None) if mode is Rounding.ODD else m  # the bits of a negative m are not those of a number
    if kind in DEEP:
        drop, below = _deep(xp, magnitude, xp.clip(drop, None, grid.coarsest), carrier, grid, kind)
    else:
        drop = xp.clip(xp.clip(drop, grid.finest, None), None, grid.coarsest)
    odd, power = None, 1 << drop
    xp.named("round_magnitude", m=m, field=field, below=below, drop=drop, power=power)
    if mode in (Rounding.NEAREST, Rounding.ODD):
        if kind == "wide":  # without a mantissa the last kept bit is the hidden one, which is not stored
            kept = kept | xp.clip(kept, None, grid.unit)
        odd = xp.clip(kept & power, None, 1)
        if kind == "wide":
            normal = ~(magnitude - grid.lowest >> last)  # below it, ties are with zero, which is even
            odd = odd ^ ((below + grid.shift) & normal & grid.coded & 1)
    # A word has `last` random bits, of which the highest are read: a step needs one for each dropped bit.
    # Where width + 1 bits are dropped, the first of them is the hidden bit, which is not in m.
    top_bits = aligned_bits(xp, mode, word, last - drop, m + hidden) if mode.stochastic else None
    mask = power - 1
    step = increment(mode, mask, odd, sign, top_bits)
    if mode.stochastic or mode.directed:
        # Below one quantum the step has width + 1 bits and could carry twice; the result is at most one quantum.
        # Steps that drop fewer bits are below `hidden`, so this does not change them.
        step = xp.clip(step, None, hidden - xp.clip(m, None, 0))
    xp.named("round_magnitude", kept=kept, odd=odd, mask=mask, step=step)
    return m + step, drop, below


def _rounded_distance(xp: Any, significand: Any, shift: Any, word: Any, carrier: Carrier, mode: Rounding) -> Any:
    """Significands shifted to the right, rounded to the number of random bits, for numbers below half a quantum.

    In float32, the last of 24 random bits is the last bit of the result. Its half is the bit below. A tie is one with
    no bit further below: one more bit is kept, and one for all that are lost.
    """
    wide = significand << 3
    kept = wide >> shift
    kept = kept | xp.clip(wide - (kept << shift), None, 1)
    half = lowest_bit(word) >> (carrier.last - carrier.width - 4)
    step = half - below_tie(xp, half, kept) if mode is Rounding.STOCHASTIC_C else half
    xp.named("_rounded_distance", wide=wide, kept=kept, half=half, step=step)
    return ((kept + step) & -(half << 1)) >> 3


def cleared(rounded: Any, drop: Any, carrier: Carrier) -> Any:
    """Rounded magnitudes without the bits to drop; the hidden bit stays if all bits below it are dropped."""
    return rounded & ~(((1 << drop) - 1) & (carrier.hidden - 1))


def _deep(xp: Any, magnitude: Any, drop: Any, carrier: Carrier, grid: Grid, kind: str) -> tuple[Any, Any]:
    """The bits to drop, and how far below 1 exponent fields are with subnormal numbers normalized.

    For formats that may represent the carrier's subnormal numbers as normal ones. `drop` are the bits below the quantum
    of the format's own subnormal numbers.
    """
    # As an integer, a subnormal magnitude has its leading bit where a conversion to a float finds it.
    leading = xp.float_bits(xp.clip(magnitude, None, carrier.hidden)) >> carrier.width
    below = leading - (carrier.lane_bias + carrier.width)  # how far below field 1; 0 for the carrier's normal numbers
    xp.named("_deep", leading=leading, below=below)
    if kind != "wide":
        return xp.clip(drop, grid.finest + below, None), below
    return xp.clip(drop & (magnitude - grid.lowest) >> carrier.last, grid.finest + below, None), below


def limit(xp: Any, value: Any, largest: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, kind: str) -> Any:
    """The magnitudes or codes that `bits` round to. Beyond `largest` they saturate, or become infinity or NaN."""
    if kind in SATURATING:
        return xp.clip(value, None, largest)
    sign, jump = bits >> carrier.last, grid.jump
    if kind == "wide":
        jump = jump + (sign & grid.lower_jump)
    stays = stays_finite(mode, sign)
    if mode is Rounding.ODD and kind in GENERAL:
        # A format without negative numbers has a `lower` that takes the limit to 0: these always overflow.
        stays = grid.ends_odd & ~(sign & (grid.lower >> carrier.last))
    if stays is not None:  # only finite numbers saturate: infinity overflows in every mode
        finite = ((bits & carrier.magnitude_mask) - carrier.infinity) >> carrier.last
        jump = jump & ~(stays & finite & ~(sign & grid.unsigned))
    xp.named("limit", jump=jump, stays=stays)
    return xp.where(value > largest, largest + jump, value)


def finish(xp: Any, value: Any, bits: Any, negative: Any, kept: Any, carrier: Carrier, grid: Grid, kind: str) -> Any:
    """The results for magnitudes or codes: adds signs, zeros, infinities and NaNs.

    Args:
        value: the magnitudes or codes that `bits` round to.
        negative: for negative numbers, the bits besides the magnitude.
        kept: the results for infinities and NaNs that do not overflow.
    """
    magnitude, keep = bits & carrier.magnitude_mask, grid.keep
    if kind == "wide":
        nonzero = -magnitude >> carrier.last
        value = (value & nonzero) | (grid.zero & ~nonzero)
    if kind in GENERAL:  # -1 for a value above zero, whose sign always stays
        negative = negative & ((-value >> carrier.last) | grid.signed_zero)
    if kind == "wide":
        # A format without negative numbers does not keep -infinity: it overflows as every other negative number.
        keep = xp.clip(keep - ((bits >> carrier.last) & grid.unsigned), None, carrier.infinity)
    xp.named("finish", negative=negative, value=value)
    return xp.where(magnitude > keep, kept, value | negative)
