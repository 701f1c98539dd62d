"""The properties of a format, computed exactly from its description."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isnan, prod
from typing import NamedTuple

import numpy as np

from qcore.arguments import check_int, quoted
from qcore.arrays import quantize
from qcore.formats.block import BlockFloatingPoint, BlockScaled, scale_text
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.foreign import BytesNumber, NestedNumber
from qcore.formats.number import Number
from qcore.formats.posit import Posit
from qcore.formats.table import Table
from qcore.law.carrier import FLOAT64
from qcore.law.tiles import block_text


class Dyadic(NamedTuple):
    """A number of a format, exactly: count * 2^exponent, of any size."""

    count: int
    exponent: int

    @property
    def log2(self) -> int:
        """The exponent of the leading bit; the number must not be zero."""
        return abs(self.count).bit_length() - 1 + self.exponent

    @property
    def exact(self) -> str:
        """As an odd integer and a power of two, which lose nothing.

        Example:
            >>> Dyadic(28, 11).exact, Dyadic(1, -3).exact
            ('7 * 2^13', '2^-3')
        """
        if self.count == 0:
            return "0"
        zeros = (self.count & -self.count).bit_length() - 1
        odd, exponent = self.count >> zeros, self.exponent + zeros
        power = f"2^{exponent}"
        return {1: power, -1: f"-{power}"}.get(odd, f"{odd} * {power}") if exponent else str(odd)

    def __float__(self) -> float:
        return float(Fraction(self.count) * Fraction(2) ** self.exponent) if self.count else 0.0

    def __str__(self) -> str:
        """In six decimal digits where that is exact, else in five; beyond float64, as `exact`."""
        if self.count and not FLOAT64.min_exponent <= self.log2 <= FLOAT64.max_exponent:
            return self.exact
        value = float(self)
        text = f"{value:.6g}"
        return text if Fraction(text) == Fraction(value) else f"{value:.5g}"


@dataclass(frozen=True)
class Properties:
    """A format in numbers and words.

    Attributes:
        number: the format.
        bits: the width of a code.
        fields: the widths of a code's parts, the sign's first where there is one.
        split: exponent and mantissa bits, fractional length, or exponent bits of a posit.
        bias: of the exponent field, if there is one.
        largest, lowest: the ends of the range.
        smallest: the smallest number above zero, if there is any.
        min_normal, min_subnormal: the smallest ones above zero, if there are any.
        specials: the codes that are not numbers, and the missing numbers.
        overflow: the result of numbers beyond the range.
    """

    number: Number
    bits: int
    fields: tuple[int, ...]
    split: str
    largest: Dyadic
    lowest: Dyadic
    smallest: Dyadic | None
    specials: tuple[str, ...]
    overflow: str
    bias: int | None = None
    min_normal: Dyadic | None = None
    min_subnormal: Dyadic | None = None


def properties(number: Number) -> Properties:
    """The properties of a format; of blocks, those of their elements.

    Example:
        >>> known = properties(BinaryFloat(exp=4, man=3, specials="fn"))
        >>> str(known.largest), known.min_subnormal.exact, known.specials
        ('448', '2^-9', ('NaN', '-0'))
    """
    if isinstance(number, BinaryFloat):
        there = {"inf": number.has_infinity, "NaN": number.has_nan, "-0": number.has_signed_zero}
        there |= {"no zero": not number.has_zero, "no sign": not number.signed}
        overflow = number.overflow or ""
        if not number.has_infinity and overflow == "inf":  # P3109's SatNone
            overflow = "saturate"
        return _float_properties(number, number.signed, there, overflow)
    if isinstance(number, FloatingPoint):
        infinite = [name for name in ("float32", "float64") if np.isinf(_largest_result(number, name))]
        overflow = "saturate" + (f", inf on {' and '.join(infinite)}" if infinite else "")
        return _float_properties(number, True, {"-0": True}, overflow)
    if isinstance(number, FixedPoint):
        return _fixed_properties(number)
    if isinstance(number, Posit):
        return _posit_properties(number)
    if isinstance(number, Table):
        return _table_properties(number)
    if isinstance(number, BlockFloatingPoint):
        block = "array" if number.dim == -1 else f"index of axis {number.dim}"
        return _shared(properties(number.element), f"2^k per {block}")
    if isinstance(number, BlockScaled):
        row = len(number.block) == 1 and number.block[0][0] == -1
        block = number.block[0][1] if row else block_text(number.block)
        scale = "2^k" if number.scale == "e8m0" else scale_text(number.scale)
        micro = "" if number.sub_block is None else f", a bit per {prod(size or 1 for _, size in number.sub_block)}"
        return _shared(properties(number.element), f"{scale} per {block or 'row'}{micro}")
    if isinstance(number, BytesNumber):
        raise ValueError(f"number={quoted(number.text)} is a layout of bytes; allowed are formats other than gguf()")
    if isinstance(number, NestedNumber):
        raise ValueError(f"number={quoted(number.text)} has scales of scales; allowed is {quoted(number.first.text)}")
    raise TypeError(f"number={quoted(number)} is a {type(number).__name__}; allowed are this library's formats")


def why_no_codes(number: Number) -> str:
    """The reason why a format has no codes or float64 lacks some of its numbers; empty if neither is true."""
    try:
        number.check_exact(FLOAT64)
        number.codes(FLOAT64)
    except ValueError as error:
        return str(error)
    return ""


def exponent_range(number: Number) -> tuple[int, int]:
    """The exponents of a format's smallest and largest number."""
    known = properties(number)
    highest = known.largest.log2
    return min(highest, known.smallest.log2 if known.smallest else highest), highest


def digits(bits: int) -> int:
    """The hexadecimal digits of a number of bits."""
    return -(-bits // 4)


def has_last_place(number: Number) -> bool:
    """True if a number's last place follows from its exponent."""
    return isinstance(number, FixedPoint | FloatingPoint | BinaryFloat)


def guard_bits(x: np.ndarray, number: Number) -> dict[str, np.ndarray]:
    """The guard, the round and the sticky bit of float64 numbers below the last place of a format; integers 0 and 1.

    Example:
        >>> bits = guard_bits(np.float64([1.5, 1.1875]), FixedPoint(8, 0))
        >>> [bits[name].tolist() for name in ("guard", "round", "sticky")]
        [[1, 0], [0, 0], [0, 1]]
    """
    bits, least, _ = number.span
    finite = np.where(np.isfinite(x), np.abs(x), 0.0)
    last = np.frexp(finite)[1] - bits
    last = np.full_like(last, least) if isinstance(number, FixedPoint) else np.maximum(last, least)
    with np.errstate(over="ignore"):  # numbers far above a fixed point format have no bits below its last place
        rest = np.modf(np.ldexp(finite, -last))[0] * 4
    two = rest.astype(np.int64)
    return {"guard": two >> 1, "round": two & 1, "sticky": (rest != two).astype(np.int64)}


def subnormal(x: np.ndarray, number: Number) -> np.ndarray:
    """True for float64 numbers that are subnormal in a format, or have fewer places than that."""
    known = properties(number)
    least = float(known.min_normal) if known.min_normal and known.min_subnormal else 0.0
    return (x != 0) & (np.abs(x) < least)


def _shared(element: Properties, scale: str) -> Properties:
    return replace(element, specials=(*element.specials, scale))


def _largest_result(number: Number, dtype: str) -> float:
    try:
        return float(quantize(np.array([np.inf], dtype), number, "nearest")[0])
    except ValueError:  # the dtype cannot hold its numbers at all
        return 0.0


def _float_properties(
    number: BinaryFloat | FloatingPoint, signed: bool, there: dict[str, bool], overflow: str
) -> Properties:
    magnitudes = number.magnitudes
    normal = magnitudes.largest_code >> number.man >= magnitudes.first
    subnormal = number.man > 0 and magnitudes.subnormals
    largest = Dyadic(*magnitudes.largest)
    fields = (number.exp, number.man)
    return Properties(
        number=number,
        bits=number.bits,
        fields=((1,) if signed else ()) + fields,
        split=f"{number.exp}, {number.man}",
        bias=magnitudes.bias,
        largest=largest,
        lowest=largest._replace(count=-largest.count) if signed else _lowest_unsigned(number, magnitudes.smallest),
        smallest=Dyadic(*magnitudes.smallest),
        min_normal=Dyadic(1, magnitudes.lowest) if normal else None,
        min_subnormal=Dyadic(*magnitudes.smallest) if subnormal else None,
        specials=tuple(name for name, holds in there.items() if holds),
        overflow=overflow,
    )


def _lowest_unsigned(number: BinaryFloat | FloatingPoint, smallest: tuple[int, int]) -> Dyadic:
    return Dyadic(0, 0) if not isinstance(number, BinaryFloat) or number.has_zero else Dyadic(*smallest)


def _fixed_properties(number: FixedPoint) -> Properties:
    check_int("wl", number.wl, 1, 64)
    digits, step, _ = number.span
    overflow = "wrap" if number.wrap else "saturate" if number.clamp else "none"
    return Properties(
        number=number,
        bits=number.bits,
        fields=(number.bits,),
        split=f"fl {number.fl}",
        largest=Dyadic((1 << digits) - 1, step),
        lowest=Dyadic(number.symmetric - (1 << digits) if number.signed else 0, step),
        smallest=Dyadic(1, step) if digits else None,
        specials=() if number.signed else ("no sign",),
        overflow=overflow,
    )


def _posit_properties(number: Posit) -> Properties:
    check_int("es", number.es, 0, 64)
    largest = Dyadic(1, number.largest_exponent)
    smallest = Dyadic(1, -number.largest_exponent)
    return Properties(
        number=number,
        bits=number.bits,
        fields=(1, number.bits - 1),
        split=f"es {number.es}",
        largest=largest,
        lowest=largest._replace(count=-1),
        smallest=smallest,
        min_normal=smallest,
        specials=("NaR",),
        overflow="saturate",
    )


def _table_properties(number: Table) -> Properties:
    lowest, largest = min(number.finite), max(number.finite)
    there = {"inf": inf in number.values, "NaN": any(map(isnan, number.values)), "no sign": lowest >= 0}
    return Properties(
        number=number,
        bits=number.bits,
        fields=(number.bits,),
        split=f"{len(set(number.finite))} numbers",
        largest=_dyadic(largest),
        lowest=_dyadic(lowest),
        smallest=_dyadic(min(abs(one) for one in number.finite if one)),
        specials=tuple(name for name, is_there in there.items() if is_there),
        overflow="saturate" if number.beyond is None else "inf",
    )


def _dyadic(value: float) -> Dyadic:
    count, denominator = value.as_integer_ratio()
    return Dyadic(count, 1 - denominator.bit_length())
