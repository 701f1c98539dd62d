"""Tables: rounding to a list of arbitrary numbers, and their codes. Integers only.

A number's KEY is an integer that grows with the number: its bits, with the magnitude inverted where the sign is set.

    ... -2.0 -1.0 -0.0 +0.0 1.0 2.0 ...      the keys of -0.0 and +0.0 are -1 and 0

The numbers of a table in ascending order have PLACES 0, 1, 2, ... Under every mode that is not stochastic, the result
grows with the number. So a format is a row of bounds, and an element's place is the last place whose bound is below its
key. The bounds express the rounding mode and the direction of ties, see `qcore.formats.table`.

    place             0      1      2      3
    bound                    b1     b2     b3       the largest key that is rounded to an earlier place
    result            r0     r1     r2     r3       a lane, or a code

A short table compares a key with all bounds. In a long table, the leading 16 bits of a key lead to the first possible
place, and a binary search starts there. Keys grow like logarithms, so a search takes one or two steps unless the
numbers are very unevenly spread.

Stochastic rounding finds the gap between two neighbours in the same way, and decides there by distance. With n and f
the neighbours nearer to and farther from zero, and k = 2^24 - U for the 24 random bits U, the result is f where

    x - n >= (f - n) * k / 2^24         where f is above n; for f below n all signs change

x is cut off to a multiple of t = 2^(E - 53), where E is the exponent of f, and n and f to multiples of 2^24 * t. In
lanes of 64 bits t is 2^(E - 83). Two integers of 27 bits (42 in lanes of 64 bits) hold each number. Modes that round
the distance add half of the last random bit to U. With 24 random bits U has no room for this half, so the bound gets
smaller by it. Under ties to even, f is the result of a tie only if U without that half is even.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qcore.law.carrier import Carrier, field_and_significand
from qcore.law.rounding import Rounding, lowest_bit, rounds_distance

FEW = 32  # up to so many places, comparing with each bound takes less time than a search
BUCKETS = 1 << 16
RANDOM_BITS = 24


class Steps(NamedTuple):
    """A table under a mode: rows with one entry a place, each a tuple, or an array of one dimension.

    Attributes:
        bounds: the largest key that is rounded to an earlier place; the bound of place 0 is not read.
        results: the lanes of the numbers, or their codes.
    """

    bounds: Any
    results: Any


class Gaps(NamedTuple):
    """A table under stochastic rounding: rows with one entry a place, see `Steps`.

    Place 0 holds keys below all numbers, and place p holds keys from number p - 1 up to the next number.

    Attributes:
        bounds: the largest key below number p - 1; the bound of place 0 is not read.
        near, far: the lanes, or the codes, of the neighbours nearer to zero and farther from it.
        flips: -1 where the farther neighbour is below the nearer one, else 0.
        shifts: the sum of this and an element's exponent field is the number of bits by which its significand is
            shifted to the left; then it counts multiples of t.
        starts, widths: n, and f - n, in multiples of 2^24 * t; without the sign of f - n.
    """

    bounds: Any
    near: Any
    far: Any
    flips: Any
    shifts: Any
    starts: Any
    widths: Any


class Starts(NamedTuple):
    """Where a search in a long table begins.

    Attributes:
        starts: a row with the first place of the keys of each bucket, see `bucket`.
    """

    starts: Any


class TableCodes(NamedTuple):
    """The numbers of a table by their codes.

    Attributes:
        numbers: a row of lanes; NaN for codes that stand for no number.
        mask: the bits of a code.
    """

    numbers: Any
    mask: Any


class TableEncoding(NamedTuple):
    """The further integer of an encoding; the results of a table are codes already.

    Attributes:
        nan: the code of NaN; 0 for tables without one.
    """

    nan: Any


def bucket(key: Any, carrier: Carrier) -> Any:
    """The leading 16 bits of a key, from 0."""
    return (key >> bucket_shift(carrier)) + BUCKETS // 2


def bucket_shift(carrier: Carrier) -> int:
    """The bits of a key below those that choose its bucket."""
    return carrier.exponent_bits + carrier.width + 1 - 16


def half_of_word(carrier: Carrier) -> int:
    """The bits of each of the two integers that hold a number in units of t."""
    return 27 if carrier.lane_bits == 32 else 42


def round_to_table(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    mode: Rounding,
    parts: Sequence[Any],
    steps: int,
    word: Any = None,
    signed_zero: bool = True,
) -> Any:
    """Rounds each lane to a number of the table.

    Args:
        xp, bits, carrier, mode, word: as for `qcore.law.grid.round_to_grid`.
        parts: `Steps`, or for stochastic rounding `Gaps`; of long tables after `Starts`.
        steps: the number of steps of the search in a long table.
        signed_zero: True if a result of zero has the sign of the lane.
    """
    value, mask = _found(xp, bits, carrier, mode, parts, steps, word), carrier.magnitude_mask
    xp.named("round_to_table", value=value)
    if signed_zero:
        value = xp.where((value & mask) > 0, value, bits & carrier.negative)
    return xp.where((bits & mask) > carrier.infinity, bits, value)


def encode(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    mode: Rounding,
    parts: Sequence[Any],
    encoding: TableEncoding,
    steps: int,
    word: Any = None,
) -> Any:
    """Rounds lanes and returns the codes of the results. Arguments as for `round_to_table`."""
    code = _found(xp, bits, carrier, mode, parts, steps, word)
    return xp.where((bits & carrier.magnitude_mask) > carrier.infinity, encoding.nan, code)


def decode(xp: Any, code: Any, codes: TableCodes) -> Any:
    """The lanes of the numbers with these codes; bits above a code's highest are ignored."""
    code = code & codes.mask
    if len(codes.numbers) > FEW:
        return xp.take(codes.numbers, code)
    (lanes,) = _compared(xp, code, range(-1, len(codes.numbers) - 1), [codes.numbers])
    return lanes


def _found(xp: Any, bits: Any, carrier: Carrier, mode: Rounding, parts: Sequence[Any], steps: int, word: Any) -> Any:
    """The results of a table, without the rules for NaN and for the sign of zero."""
    *starts, (bounds, *rows) = parts
    key = bits ^ ((bits >> carrier.last) & carrier.magnitude_mask)
    xp.named("_found", key=key)
    if starts:
        place = _searched(xp, key, carrier, starts[0].starts, bounds, steps)
        found = [xp.take(row, place) for row in rows]
    else:
        found = _compared(xp, key, bounds, rows)
    if not mode.stochastic:
        return found[0]
    near, far, flip, shift, start, width = found
    xp.named("_found", near=near, far=far, flip=flip, shift=shift, start=start, width=width)
    return xp.where(_is_far(xp, bits, carrier, mode, flip, shift, start, width, word), far, near)


def _compared(xp: Any, key: Any, bounds: Any, rows: Sequence[Any]) -> list[Any]:
    """For each key the entries of the rows at the last place whose bound is below the key, else at place 0."""
    found = [row[0] + (key & 0) for row in rows]
    for place in range(1, len(bounds)):
        above = key > bounds[place]
        found = [xp.where(above, row[place], one) for row, one in zip(rows, found, strict=True)]
        xp.named("_compared", above=above)
    return found


def _searched(xp: Any, key: Any, carrier: Carrier, starts: Any, bounds: Any, steps: int) -> Any:
    """The last place whose bound is below a key. It is less than 2^steps places after the start of the key's bucket."""
    place = xp.take(starts, bucket(key, carrier))
    for step in reversed(range(steps)):
        following = place + (1 << step)
        place = xp.where(key > xp.take(bounds, following), following, place)
    return place


def _is_far(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, flip: Any, shift: Any, start: Any, width: Any, word: Any
) -> Any:
    """True where the distance from the nearer neighbour is at least the random part of the gap."""
    last, half = carrier.last, half_of_word(carrier)
    mask, low_bits = (1 << half) - 1, half - RANDOM_BITS
    field, significand = field_and_significand(xp, bits & carrier.magnitude_mask, carrier)
    left = field + shift
    # The shifted significand as two integers. Shifts are clipped: C does not define others.
    high = (significand << xp.clip(left - half, 0, last)) >> xp.clip(half - left, 0, last)
    low = significand & ((1 << xp.clip(half - left, 0, carrier.width + 2)) - 1)
    low = (low << xp.clip(left, 0, half)) >> xp.clip(-left, 0, last)
    sign = (bits >> last) ^ flip  # -1 where the distance is counted down: two's complement
    low = ((low ^ sign) & mask) - sign
    xp.named("_is_far", field=field, significand=significand, left=left, sign=sign, low=low)
    high, low = (high ^ sign) + (low >> half), low & mask

    # start * 2^24 + width * k in two integers, from partial products of at most 28 bits (43 in lanes of 64 bits)
    k = (1 << RANDOM_BITS) - (word >> (last - RANDOM_BITS))
    digits, k_high, k_low = half - 12, k >> 12, k & 0xFFF
    w_high, w_low = width >> digits, width & ((1 << digits) - 1)
    upper, lower = w_high * k_low, w_low * k_high
    bound = ((start & ((1 << low_bits) - 1)) << RANDOM_BITS) + w_low * k_low
    bound = bound + ((upper & 0xFFF) << digits) + ((lower & ((1 << digits) - 1)) << 12)
    if rounds_distance(mode):
        bound = bound + _half_less(xp, mode, width, word, last)
    xp.named("_is_far", k=k, k_high=k_high, k_low=k_low, w_high=w_high, w_low=w_low, upper=upper, lower=lower)
    bound_high = (start >> low_bits) + w_high * k_high + (upper >> 12) + (lower >> digits) + (bound >> half)
    xp.named("_is_far", high=high, low=low, bound=bound, bound_high=bound_high)
    return (high > bound_high) | ((high == bound_high) & (low >= (bound & mask)))


def _half_less(xp: Any, mode: Rounding, width: Any, word: Any, last: int) -> Any:
    """The correction of the bound in modes that round the distance: for a half that U has no room for, and for ties."""
    lowest = lowest_bit(word)
    is_cut = (lowest >> (last - RANDOM_BITS - 1)) & 1  # 1 if 24 bits are random: the half is then the first bit cut off
    less = (width >> 1) & -is_cut
    xp.named("_half_less", lowest=lowest, is_cut=is_cut, less=less)
    if mode is not Rounding.STOCHASTIC_C:
        return -less
    odd = xp.clip(word & (lowest << 1), None, 1)
    return (odd & ~(is_cut & width)) - less  # half of an odd width is not an integer, so ties do not occur
