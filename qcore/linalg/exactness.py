"""Sums of products that have the law's bits by faster means: in any order, or in float32.

Formats and lengths decide where that is so, never data. In float32 twice as many numbers fit in a register.

`FloatRule` rounds by a few operations on floats where the law has `round_to_grid`: it need not find a number of bits.
With E the exponent of a number, or the least one of the format if that is larger, the format's steps there are
2^(E - man). All powers of two are numbers of the carrier, and so are all results but those that shall be rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

import numpy as np

from qcore.arguments import check_int
from qcore.formats.block import NVFP4, BlockFloatingPoint, BlockNumber, BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, check_number
from qcore.formats.posit import Posit
from qcore.law.carrier import FLOAT32, FLOAT64, Carrier
from qcore.law.grid import Grid
from qcore.law.rounding import Rounding
from qcore.linalg.accumulator import Accumulator, rounding_program

_FLOAT64_BITS = 53
_MOST_EXPONENT = 100  # of float32 sums


def sums_are_exact(a: Number | str | None, b: Number | str | None, terms: int) -> bool:
    """True if float64 holds every sum of `terms` products of numbers of two formats, in any order.

    That is so if terms * (largest a / step of a) * (largest b / step of b) <= 2^53, where a step divides all numbers of
    a format. For blocks these are the numbers of one block.

    Args:
        a, b: the formats, or their texts; None is float32.
        terms: how many products, an int of at least 0.

    Returns:
        A bool, which is True for one term or none, whatever the formats.

    Raises:
        TypeError: if terms is no int, or a format neither a `Number` nor text.
        ValueError: if terms is below 0, or a text is no format.

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
    """The largest magnitude of a format, or of one of its blocks, in steps; None if formats cannot say."""
    if isinstance(number, BlockFloatingPoint | BlockScaled):
        number = number.element
    if isinstance(number, FixedPoint):
        digits = number.wl - number.signed
        if not (number.clamp or number.wrap) or digits > _FLOAT64_BITS:
            return None
        return (1 << digits) - int(number.symmetric or not number.signed)
    if isinstance(number, FloatingPoint | BinaryFloat):
        (count, exponent), step = number.magnitudes.largest, number.magnitudes.lowest - number.magnitudes.man
        return count << (exponent - step) if exponent - step <= _FLOAT64_BITS else None
    if isinstance(number, Posit) and number.largest_exponent <= _FLOAT64_BITS:
        return 1 << (2 * number.largest_exponent)
    return None


def float32_suffices(a: Number | None, b: Number | None, number: Number, mode: Rounding, random_bits: int) -> bool:
    """True if a sequential accumulator may add in float32: its own rounding then makes the same of the sum.

    To nearest, rounding first to 24 bits and then to p changes nothing if 24 >= 2 p + 2 and both summands have at most
    p bits (Figueroa, "When is Double Rounding Innocuous?", 1995). Toward zero it changes nothing, and stochastic
    rounding sees no more than random_bits bits below the p of its result: there sums are cut off to 24 bits first. No
    product or sum may be subnormal, or overflow.

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
        return products[0] <= bits <= 11
    seen = {Rounding.STOCHASTIC: random_bits, Rounding.TOWARD_ZERO: 0}.get(mode)
    return seen is not None and products[0] <= 24 and bits + seen <= 24


def sums_are_multiples(a: Number | None, b: Number | None, number: Number) -> bool:
    """True if each product is a multiple of an accumulator's least step: then no sum below its normal numbers rounds.

    Args:
        a, b, number: formats of which `float32_suffices` says so.
    """
    spans = [one.span for one in (a, b, number)]  # type: ignore[union-attr]
    return spans[0][1] + spans[1][1] >= spans[2][1]


def sums_stay_below(a: Number | None, b: Number | None, number: Number, terms: int) -> bool:
    """True if no sum is beyond an accumulator's largest number: each rounding adds a part of 2^(1 - bits) at most.

    Args:
        a, b, number: formats of which `float32_suffices` and `sums_are_multiples` say so.
        terms: how many products.
    """
    spans = [one.span for one in (a, b, number)]  # type: ignore[union-attr]
    if max(spans[0][2], spans[1][2]) >= _MOST_EXPONENT or any(getattr(one, "has_infinity", False) for one in (a, b)):
        return False
    growth = terms * log2(1 + 2.0 ** (1 - spans[2][0]))
    return spans[0][2] + spans[1][2] + 2 + log2(max(terms, 1)) + growth < spans[2][2]


def chunks_share_scales(
    number: Number | None, shape: Sequence[int], axes: Sequence[int], chunk: int, gathers: bool
) -> bool:
    """True if all terms of a chunk that one result needs lie in one block of an operand.

    Args:
        number: the operand's format; None is float32.
        shape: the operand's.
        axes: the axes that the product sums over, in the order of the contraction index, the last one fastest.
        chunk: the terms of a chunk.
        gathers: True if neighbouring terms are not neighbours in the operand.
    """
    if not isinstance(number, BlockNumber):
        return True
    if isinstance(number, NVFP4):
        return False  # its numbers are products with the array's scale, rounded to float32
    sizes = number.block_sizes(len(shape))
    whole = [sizes[axis] is None or sizes[axis] >= shape[axis] for axis in axes]  # type: ignore[operator]
    if all(whole) or gathers:
        return all(whole)
    size, length = sizes[axes[-1]], shape[axes[-1]]
    fits = whole[-1] or (size or 1) % chunk == 0
    return fits and (len(axes) == 1 or length % chunk == 0)


_KINDS = ("grid", "overflowing")  # of floats with subnormal numbers, whose zeros have signs


class FloatRule:
    """How an accumulator rounds its sums, by operations on floats where these suffice; and how a narrow one adds.

    Args:
        accumulator: the accumulator.
        carrier: what its sums are: of float32, sequential ones of which `float32_suffices` says so, or of float64.
        truncates: True where additions of floats are rounded toward zero, which float32 sums may be if `may_truncate`.
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
        """True if float32 sums are those of additions that are rounded toward zero."""
        return self.by_floats and not self._mode.to_nearest

    @property
    def by_floats(self) -> bool:
        """True if floats round; else the law does."""
        return self._grid is not None

    def _fits(self, grid: Grid) -> bool:
        """True if all numbers of `by_floats` are the carrier's."""
        if grid.finest == 0 or grid.lower != 0 or self._mode not in _BY_FLOATS:
            return False
        width = self._carrier.width
        parts = width - grid.finest + (self._accumulator.random_bits if self._mode is Rounding.STOCHASTIC else 0)
        least, largest = (grid.base >> width) + 1 + width - grid.finest, (grid.limit >> width) + 1
        return parts <= width and parts < least and largest + grid.finest < self._carrier.infinity >> width

    def plus(self, xp: Any, total: Any, term: Any) -> Any:
        """A float32 sum of which `rounded` makes what it would make of the exact one."""
        return total + term if self._mode.to_nearest or self._truncates else truncated_sum(xp, total, term)

    def rounded(self, xp: Any, law_names: Any, x: Any, word: Any = None) -> Any:
        """R of such a sum.

        Args:
            xp: the array namespace of products.
            law_names: that of the law of rounding.
            x: array of the carrier's numbers.
            word: int32 array, see `round_to_grid`; floats read the leading random_bits of its 31 bits only.
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
            noise = xp.wide(noise) if wide else noise
        return by_floats(xp, x, self._grid, self._mode, noise, random_bits, self._carrier, self._truncates)


_BY_FLOATS = (Rounding.NEAREST, Rounding.TOWARD_ZERO, Rounding.STOCHASTIC)


def truncated_sum(xp: Any, total: Any, term: Any) -> Any:
    """The exact sum, toward zero to float32: what its nearest float32 number leaves out says where that is beyond it.

    Source: Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
    """
    found = total + term
    part = found - total
    rest = (total - (found - part)) + (term - part)
    bits = xp.float32_bits(found)
    inward = xp.float32_from(xp.float32_bits(rest) ^ (bits & FLOAT32.negative))
    return xp.float32_from(xp.where(inward < 0, bits - 1, bits))  # the rest of an infinity is NaN


def by_integers(xp: Any, x: Any, grid: Grid, word: Any, random_bits: int, below: bool) -> Any:
    """Stochastic rounding of float32 numbers that are multiples of the format's least step.

    Numbers below the normal ones have no bits to drop then, so that all may drop as many: noise is added to these.

    Args:
        xp, x, grid, random_bits: see `by_floats`.
        word: int32 array of the random bits, which lead 31.
        below: True if no number is beyond the format's largest.
    """
    dropped = grid.finest
    bits = xp.float32_bits(x) + (word >> (31 - random_bits) << (dropped - random_bits))
    bits = bits >> dropped << dropped
    if below:
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
        x: array of the carrier's numbers; for stochastic rounding, float32 ones with at most random_bits bits below the
            format's.
        grid, mode: the format's integers, and a rounding of `_BY_FLOATS`.
        noise: stochastic rounding's random bits as integers from 0 on, as floats of the carrier.
        random_bits: how many these are.
        carrier: what x is.
        truncates: True if additions of floats are rounded toward zero.
    """
    to_bits, from_bits = (xp.lanes, xp.floats) if carrier is FLOAT64 else (xp.float32_bits, xp.float32_from)
    width, fields = carrier.width, carrier.infinity
    man = width - grid.finest
    bits = to_bits(x)
    magnitude = bits & carrier.magnitude_mask
    field = xp.clip(bits & fields, (grid.base >> width) + 1 + man << width, None)
    found = from_bits(magnitude)
    parts = random_bits if noise is not None else 0  # of steps / 2^parts
    if mode is Rounding.NEAREST or truncates:
        if noise is not None:
            found = found + noise * from_bits(field - (man + parts << width))
        large = from_bits(field + (grid.finest << width))  # 2^(E + width - man): a sum with it has the same steps
        found = (found + large) - large
    else:
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
