"""What there is to know about a format, worked out from its description, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from qcore.carrier import FLOAT64
from qcore.fixed import FixedPoint
from qcore.floats import BinaryFloat, FloatingPoint
from qcore.number import Number
from qcore.posit import Posit
from qcore.reference import quantize


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
class Facts:
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
        specials: what there is besides numbers, or is missing among them.
        overflow: what numbers beyond the range become.
    """

    number: Number
    bits: int
    fields: tuple[int, ...]
    split: str
    bias: int | None
    largest: Dyadic
    lowest: Dyadic
    smallest: Dyadic | None
    min_normal: Dyadic | None
    min_subnormal: Dyadic | None
    specials: tuple[str, ...]
    overflow: str


def facts(number: Number) -> Facts:
    """The facts about a format.

    Raises:
        TypeError: if it is none whose numbers stand for themselves.

    Example:
        >>> known = facts(BinaryFloat(exp=4, man=3, specials="fn"))
        >>> str(known.largest), known.min_subnormal.exact, known.specials
        ('448', '2^-9', ('NaN', '-0'))
    """
    if isinstance(number, BinaryFloat):
        there = {"inf": number.has_infinity, "NaN": number.has_nan, "-0": number.has_signed_zero}
        there |= {"no zero": not number.has_zero, "no sign": not number.signed}
        return _float_facts(number, number.signed, there, number.overflow or "")
    if isinstance(number, FloatingPoint):
        infinite = [name for name in ("float32", "float64") if np.isinf(_largest_result(number, name))]
        overflow = "saturate" + (f", inf on {' and '.join(infinite)}" if infinite else "")
        return _float_facts(number, True, {"-0": True}, overflow)
    if isinstance(number, FixedPoint):
        return _fixed_facts(number)
    if isinstance(number, Posit):
        return _posit_facts(number)
    kinds = "BinaryFloat, FloatingPoint, FixedPoint and Posit"
    raise TypeError(f"number={number!r} is a {type(number).__name__}; allowed are {kinds}")


def _largest_result(number: Number, dtype: str) -> float:
    try:
        return float(quantize(np.array([np.inf], dtype), number, "nearest")[0])
    except ValueError:  # the dtype cannot hold its numbers at all
        return 0.0


def _float_facts(number: BinaryFloat | FloatingPoint, signed: bool, there: dict[str, bool], overflow: str) -> Facts:
    scale = number.scale
    normal = scale.largest_code >> number.man >= scale.first
    subnormal = number.man > 0 and scale.subnormals
    largest = Dyadic(*scale.largest)
    fields = (number.exp, number.man)
    return Facts(
        number=number,
        bits=number.bits,
        fields=((1,) if signed else ()) + fields,
        split=f"{number.exp}, {number.man}",
        bias=scale.bias,
        largest=largest,
        lowest=largest._replace(count=-largest.count) if signed else _lowest_unsigned(number, scale.smallest),
        smallest=Dyadic(*scale.smallest),
        min_normal=Dyadic(1, scale.lowest) if normal else None,
        min_subnormal=Dyadic(*scale.smallest) if subnormal else None,
        specials=tuple(name for name, holds in there.items() if holds),
        overflow=overflow,
    )


def _lowest_unsigned(number: BinaryFloat | FloatingPoint, smallest: tuple[int, int]) -> Dyadic:
    return Dyadic(0, 0) if not isinstance(number, BinaryFloat) or number.has_zero else Dyadic(*smallest)


def _fixed_facts(number: FixedPoint) -> Facts:
    digits, step, _ = number.span
    overflow = "wrap" if number.wrap else "saturate" if number.clamp else "none"
    return Facts(
        number=number,
        bits=number.bits,
        fields=(number.bits,),
        split=f"fl {number.fl}",
        bias=None,
        largest=Dyadic((1 << digits) - 1, step),
        lowest=Dyadic(number.symmetric - (1 << digits) if number.signed else 0, step),
        smallest=Dyadic(1, step) if digits else None,
        min_normal=None,
        min_subnormal=None,
        specials=() if number.signed else ("no sign",),
        overflow=overflow,
    )


def _posit_facts(number: Posit) -> Facts:
    largest = Dyadic(1, number.largest_exponent)
    smallest = Dyadic(1, -number.largest_exponent)
    return Facts(
        number=number,
        bits=number.bits,
        fields=(1, number.bits - 1),
        split=f"es {number.es}",
        bias=None,
        largest=largest,
        lowest=largest._replace(count=-1),
        smallest=smallest,
        min_normal=smallest,
        min_subnormal=None,
        specials=("NaR",),
        overflow="saturate",
    )
