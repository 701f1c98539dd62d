"""When a sum of products is exact in float64, and so free of order: decided by formats and lengths, never by data."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

from qcore.arguments import check_int
from qcore.formats.block import NVFP4, BlockFloatingPoint, BlockNumber, BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, check_number
from qcore.formats.posit import Posit
from qcore.law.rounding import Rounding

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
