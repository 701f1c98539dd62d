"""Faster sums of products with the law's bits: sums in any order, and sums in float32.

Formats and lengths decide where a faster sum has the same bits, never data. In float32, a register holds twice as many
numbers.

`FloatRule` rounds by a few operations on floats in the place of `round_to_grid`, without counting bits. With E the
exponent of a number, or the least exponent of the format if that is larger, the format's steps there are 2^(E - man).
All powers of two in these operations are numbers of the carrier, and all results but the sum to be rounded are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ldexp, log2
from typing import Any

import numpy as np

from qcore.arguments import check_int
from qcore.formats.block import BlockFloatingPoint, BlockNumber, BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, check_number
from qcore.formats.posit import Posit
from qcore.formats.table import Table
from qcore.law.carrier import FLOAT32, FLOAT64, Carrier
from qcore.law.grid import Grid
from qcore.law.rounding import Rounding
from qcore.law.tiles import is_flat
from qcore.linalg.accumulator import Accumulator, rounding_program

_FLOAT64_BITS = 53
_MOST_EXPONENT = 100  # of float32 sums


def sums_are_exact(a: Number | str | None, b: Number | str | None, terms: int) -> bool:
    """True if float64 holds every sum of `terms` products of numbers of two formats, in any order.

    The condition is terms * (largest a / step of a) * (largest b / step of b) <= 2^53, where a step divides all numbers
    of a format, or of one block of a block format.

    Args:
        a, b: the formats, or their texts; None is float32.
        terms: the number of products, an int of at least 0.

    Returns:
        A bool; True for one term or none, whatever the formats.

    Raises:
        TypeError: if terms is not an int, or a format is neither a `Number` nor text.
        ValueError: if terms is below 0, or a text does not name a format.

    Example:
        >>> sums_are_exact("e4m3fn", "e4m3fn", 171196), sums_are_exact("e4m3fn", "e4m3fn", 171197)
        (True, False)
        >>> sums_are_exact("e5m2", "e5m2", 1)
        True
    """
    numbers = [None if number is None else check_number(number, name) for name, number in (("a", a), ("b", b))]
    if check_int("terms", terms, 0) <= 1:
        return True  # a product of two float32 numbers has at most 48 bits
    steps = [_steps(number) for number in numbers]
    return all(count is not None for count in steps) and terms * steps[0] * steps[1] <= 1 << _FLOAT64_BITS  # type: ignore[operator]


def _steps(number: Any) -> int | None:
    """The largest magnitude of a format, or of one of its blocks, in steps; None if it has no bound or is too large."""
    if isinstance(number, BlockScaled) and number.scale != "e8m0":
        return None  # products with a float's scale are rounded, so that a block's numbers have no common step
    if isinstance(number, BlockFloatingPoint | BlockScaled):
        number = number.element
    if isinstance(number, FixedPoint):
        digits = number.wl - number.signed
        if not (number.clamp or number.wrap) or digits > _FLOAT64_BITS:
            return None
        # The lowest number of two's complement, -2^digits, has one step more than the largest.
        return (1 << digits) - int(number.symmetric or not number.signed)
    if isinstance(number, FloatingPoint | BinaryFloat):
        (count, exponent), step = number.magnitudes.largest, number.magnitudes.lowest - number.magnitudes.man
        return count << (exponent - step) if exponent - step <= _FLOAT64_BITS else None
    if isinstance(number, Table):
        _, step, largest = number.span
        magnitude = max(abs(one) for one in number.finite)
        return int(ldexp(magnitude, -step)) if largest - step < _FLOAT64_BITS else None
    if isinstance(number, Posit) and number.largest_exponent <= _FLOAT64_BITS:  # from 2^-largest to 2^largest
        return 1 << (2 * number.largest_exponent)
    return None


def float32_suffices(a: Number | None, b: Number | None, number: Number, mode: Rounding, random_bits: int) -> bool:
    """True if a sequential accumulator may add in float32: its own rounding then gives the same result.

    To nearest, rounding first to 24 bits and then to p changes nothing if 24 >= 2 p + 2 and both summands have at most
    p bits (Figueroa, "When is Double Rounding Innocuous?", 1995). Toward zero, cutting off sums to 24 bits first
    changes nothing. Stochastic rounding reads random_bits bits below the p of its result, so it may be cut off first as
    well if these fit 24 bits. No product or sum may be subnormal, or overflow.

    Args:
        a, b: the operands' formats; None is float32.
        number, mode, random_bits: the accumulator's format and rounding.
    """
    known = all(isinstance(one, FloatingPoint | BinaryFloat) for one in (a, b, number))
    if not known:
        return False
    spans = [one.span for one in (a, b, number)]  # type: ignore[union-attr]
    products = [first + second for first, second in zip(*spans[:2], strict=True)]
    bits, step, largest = spans[2]
    if min(products[1], step) < -_MOST_EXPONENT or max(products[2] + 1, largest) >= _MOST_EXPONENT:
        return False
    if mode.to_nearest:
        return products[0] <= bits <= 11  # 24 >= 2 * 11 + 2; products are summands, so they need the p bits as well
    seen = {Rounding.STOCHASTIC: random_bits, Rounding.TOWARD_ZERO: 0}.get(mode)
    return seen is not None and products[0] <= 24 and bits + seen <= 24


def sums_are_multiples(a: Number | None, b: Number | None, number: Number) -> bool:
    """True if each product is a multiple of an accumulator's least step: then no sum below its normal numbers rounds.

    The formats are formats for which `float32_suffices` is True.
    """
    spans = [one.span for one in (a, b, number)]  # type: ignore[union-attr]
    return spans[0][1] + spans[1][1] >= spans[2][1]


def sums_stay_below(a: Number | None, b: Number | None, number: Number, terms: int) -> bool:
    """True if no sum is beyond an accumulator's largest number: each rounding adds a part of 2^(1 - bits) at most.

    The formats are formats for which `float32_suffices` and `sums_are_multiples` are True.
    """
    spans = [one.span for one in (a, b, number)]  # type: ignore[union-attr]
    if max(spans[0][2], spans[1][2]) >= _MOST_EXPONENT or any(getattr(one, "has_infinity", False) for one in (a, b)):
        return False
    # An operand is below 2^(exponent + 1), so a product is below 2^(both + 2). Every rounding may make the sum larger.
    growth = terms * log2(1 + 2.0 ** (1 - spans[2][0]))
    return spans[0][2] + spans[1][2] + 2 + log2(max(terms, 1)) + growth < spans[2][2]


def chunks_share_scales(
    number: Number | None, shape: Sequence[int], axes: Sequence[int], chunk: int, gathers: bool
) -> bool:
    """True if all terms of a chunk that one result needs lie in one block of an operand.

    Args:
        number: the operand's format; None is float32.
        shape: the operand's shape.
        axes: the axes that the product sums over, in the order of the contraction index, the last one fastest.
        chunk: the terms of a chunk.
        gathers: True if neighbouring terms are not neighbours in the operand.
    """
    if not isinstance(number, BlockNumber):
        return True
    if number.tensor_scale is not None:
        return False  # its numbers are products with float scales, rounded to float32: they have no common step
    sizes = number.block_sizes(len(shape))
    if is_flat(sizes):
        return False  # blocks go on from one row into the next
    whole = [sizes[axis] is None or sizes[axis] >= shape[axis] for axis in axes]  # type: ignore[operator]
    if all(whole) or gathers:  # a convolution gathers terms of several rows: only a block of all axes is sure
        return all(whole)
    # Chunks begin at multiples of their length, so a block holds whole chunks if its length is a multiple, too. With
    # several axes, chunks must not run over the end of the last one.
    size, length = sizes[axes[-1]], shape[axes[-1]]
    fits = whole[-1] or (size or 1) % chunk == 0
    return fits and (len(axes) == 1 or length % chunk == 0)


_KINDS = ("grid", "overflowing")  # of floats with subnormal numbers, whose zeros have signs


class FloatRule:
    """The rounding of an accumulator's sums, by operations on floats where these suffice, and its narrow additions.

    Args:
        accumulator: the accumulator.
        carrier: the type of the sums: float64, or float32 for sequential sums for which `float32_suffices` is True.
        truncates: True where the processor rounds additions toward zero; allowed for float32 sums if `may_truncate`.
        multiples, below: see `qcore.linalg.law.Sums`.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        carrier: Carrier = FLOAT32,
        truncates: bool = False,
        multiples: bool = False,
        below: bool = False,
    ) -> None:
        self._truncates, self._multiples, self._below = truncates, multiples, below
        self._accumulator, self._mode, self._carrier = accumulator, accumulator.rounding, carrier
        self._program, self._constants = rounding_program(accumulator.number, self._mode, carrier)
        grid = Grid(*self._constants) if self._program.kind in _KINDS else None
        self._grid = grid if grid is not None and self._fits(grid) else None

    @property
    def may_truncate(self) -> bool:
        """True if additions of float32 numbers that round toward zero give the sums."""
        return self.by_floats and not self._mode.to_nearest

    @property
    def by_floats(self) -> bool:
        """True if operations on floats round the sums, False if `round_to_grid` does."""
        return self._grid is not None

    def _fits(self, grid: Grid) -> bool:
        """True if every power of two and every intermediate result of `by_floats` is a normal number of the carrier."""
        if grid.finest == 0 or grid.lower != 0 or self._mode not in _BY_FLOATS:
            return False
        width = self._carrier.width
        parts = width - grid.finest + (self._accumulator.random_bits if self._mode.stochastic else 0)
        least, largest = (grid.base >> width) + 1 + width - grid.finest, (grid.limit >> width) + 1
        return parts <= width and parts < least and largest + grid.finest < self._carrier.infinity >> width

    def plus(self, xp: Any, total: Any, term: Any) -> Any:
        """A float32 sum that `rounded` rounds to the same number as the exact sum."""
        return total + term if self._mode.to_nearest or self._truncates else truncated_sum(xp, total, term)

    def rounded(self, xp: Any, law_names: Any, x: Any, word: Any = None) -> Any:
        """R of a sum.

        Args:
            xp: the array namespace of products.
            law_names: the array namespace of the law of rounding.
            x: array of the carrier's numbers.
            word: int32 array, see `round_to_grid`; `by_floats` reads only the leading random_bits of its 31 bits.
        """
        wide = self._carrier is FLOAT64
        to_bits, from_bits = (xp.lanes, xp.floats) if wide else (xp.float32_bits, xp.float32_from)
        if self._grid is None:
            return from_bits(self._program.run(law_names, to_bits(x), self._constants, (), word))
        noise, random_bits = None, self._accumulator.random_bits
        if word is not None and self._multiples and not wide:
            return by_integers(xp, x, self._grid, word, random_bits, self._below)
        if word is not None:
            noise = xp.float32_from(law_names.float_bits(word >> (31 - random_bits)))
            noise = xp.float64(noise) if wide else noise
        return by_floats(xp, x, self._grid, self._mode, noise, random_bits, self._carrier, self._truncates)


_BY_FLOATS = (Rounding.NEAREST, Rounding.TOWARD_ZERO, Rounding.STOCHASTIC)


def truncated_sum(xp: Any, total: Any, term: Any) -> Any:
    """The exact sum of two float32 numbers, rounded toward zero to float32.

    The error of the nearest sum is a float32 number itself. Where it points toward zero, the nearest sum lies beyond
    the exact one and the float before it is the result. Source: Knuth, "The Art of Computer Programming", volume 2,
    section 4.2.2, theorem B.
    """
    found = total + term
    part = found - total
    rest = (total - (found - part)) + (term - part)
    bits = xp.float32_bits(found)
    inward = xp.float32_from(xp.float32_bits(rest) ^ (bits & FLOAT32.negative))
    return xp.float32_from(xp.where(inward < 0, bits - 1, bits))  # the rest of an infinity is NaN


def by_integers(xp: Any, x: Any, grid: Grid, word: Any, random_bits: int, below: bool) -> Any:
    """Stochastic rounding of float32 numbers that are multiples of the format's least step.

    Such numbers have no bits to drop below the format's normal numbers, where their low bits are zeros. So every number
    drops the same count of bits, and random bits are added to the lowest before.

    Args:
        xp, x, grid, random_bits: see `by_floats`.
        word: int32 array of the random bits, which lead 31.
        below: True if no number is beyond the format's largest.
    """
    dropped = grid.finest
    bits = xp.float32_bits(x) + (word >> (31 - random_bits) << (dropped - random_bits))
    bits = bits >> dropped << dropped
    if below:  # the sum cannot overflow, so the carry of the addition is all there is to do
        return xp.float32_from(bits)
    sign, found = bits & FLOAT32.negative, xp.float32_from(bits & FLOAT32.magnitude_mask)
    largest = float(np.array(grid.limit, np.int32).view(np.float32))
    return xp.float32_from(xp.where(found > largest, sign | (grid.limit + grid.jump), bits))  # NaN is not beyond it


def by_floats(
    xp: Any, x: Any, grid: Grid, mode: Rounding, noise: Any, random_bits: int, carrier: Carrier, truncates: bool
) -> Any:
    """`round_to_grid`, for the grid of a float with subnormal numbers.

    Args:
        xp: the array namespace of products.
        x: array of the carrier's numbers; for stochastic rounding, float32 numbers with at most random_bits bits below
            the format's.
        grid, mode: the format's integers, and a rounding of `_BY_FLOATS`.
        noise: the random bits of stochastic rounding, integers from 0 on as floats of the carrier.
        random_bits: the number of random bits.
        carrier: the layout of x.
        truncates: True if additions of floats are rounded toward zero.
    """
    to_bits, from_bits = (xp.lanes, xp.floats) if carrier is FLOAT64 else (xp.float32_bits, xp.float32_from)
    width, fields = carrier.width, carrier.infinity
    man = width - grid.finest
    bits = to_bits(x)
    magnitude = bits & carrier.magnitude_mask
    # E: below the format's normal numbers its steps stay as they are.
    field = xp.clip(bits & fields, (grid.base >> width) + 1 + man << width, None)
    found = from_bits(magnitude)
    parts = random_bits if noise is not None else 0  # of steps / 2^parts
    if mode is Rounding.NEAREST or truncates:
        if noise is not None:
            found = found + noise * from_bits(field - (man + parts << width))
        large = from_bits(field + (grid.finest << width))  # 2^(E + width - man): a sum with it has the same steps
        found = (found + large) - large
    else:  # counts steps, so that a conversion to whole numbers cuts off; both factors are powers of two
        steps = (fields >> width) - 1 + man + parts << width
        steps = steps - (steps >> carrier.last << carrier.lane_bits)  # as a lane, which wraps
        found = xp.trunc(found * from_bits(steps - field))
        if noise is not None:
            found = xp.trunc((found + noise) * 2.0**-parts)
        found = found * from_bits(field - (man << width))
    largest = float(np.array(grid.limit, f"i{carrier.lane_bits // 8}").view(f"f{carrier.lane_bits // 8}"))
    if grid.jump:
        beyond = grid.limit + grid.jump
        if mode is Rounding.TOWARD_ZERO:  # finite numbers stay so
            beyond = grid.limit + (((fields - 1 - magnitude) >> carrier.last) & grid.jump)
        found = xp.where(found > largest, beyond, to_bits(found))  # NaN is not beyond it
    else:
        found = to_bits(xp.clip(found, None, largest))
    return from_bits(found | (bits & carrier.negative))
