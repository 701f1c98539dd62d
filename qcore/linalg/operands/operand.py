"""How an operand of a product is rounded."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qcore.arguments import quoted
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import check_number
from qcore.formats.text import Kind, choice, parse, register, write
from qcore.law.rounding import MODES, Rounding, check_rounding
from qcore.linalg.accumulator import optional_number
from qcore.linalg.operands.hadamard import Hadamard
from qcore.linalg.operands.scale import Scale


@dataclass(frozen=True)
class Operand:
    """How an operand of a product is rounded.

    Args:
        number: a format or its text; None does not round. Axes of blocks are those of the tensor that is passed.
        rounding: a name or member of `Rounding`.
        scale: a `Scale` or its text, for fixed and floating point formats; None multiplies with nothing.
        transform: a `Hadamard` or its text, which comes first; None does not transform. An operand with a transform, or
            with a scale for each tile, is rounded as the matrix that the product multiplies, laid out as (..., other
            axis, terms of the sum): the axes of its blocks, and the order of its random words, are that matrix's.

    Attributes:
        text: what `parse` makes the operand from.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> Operand("e5m2", "stochastic").text
        'operand(e5m2,rounding=stochastic)'
        >>> Operand("e4m3fn", scale=Scale(1, 128)).text
        'operand(e4m3fn,scale=scale(outer=1,terms=128))'
    """

    number: Any = None
    rounding: Any = Rounding.NEAREST
    scale: Any = None
    transform: Any = None
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", None if self.number is None else check_number(self.number))
        object.__setattr__(self, "rounding", check_rounding(self.rounding))
        for name, kind in (("scale", Scale), ("transform", Hadamard)):
            object.__setattr__(self, name, _part(name, getattr(self, name), kind))
        if self.scale is not None:
            self._check_scale()
        object.__setattr__(self, "text", write(self))

    def _check_scale(self) -> None:
        if not isinstance(self.number, FixedPoint | FloatingPoint | BinaryFloat) or self.largest is None:
            raise ValueError(
                f"scale={self.scale.text} with number={self.number}; allowed are fixed and floating point formats with "
                "a largest number"
            )
        if self.transform is not None and self.scale.history is not None:
            raise ValueError(f"scale={self.scale.text} with {self.transform.text}; allowed is a scale without history")

    @property
    def largest(self) -> float | None:
        """The largest number of the format; None if it has none."""
        if isinstance(self.number, FixedPoint):
            digits = self.number.wl - self.number.signed
            return ((1 << digits) - 1) * 2.0**-self.number.fl if self.number.clamp or self.number.wrap else None
        count, exponent = self.number.magnitudes.largest
        return float(count) * 2.0**exponent if exponent + count.bit_length() <= 128 else None

    @property
    def stochastic(self) -> bool:
        """True if rounding needs a key."""
        return self.number is not None and self.rounding is Rounding.STOCHASTIC

    @property
    def as_matrix(self) -> bool:
        """True if it is rounded as the matrix that the product multiplies."""
        return self.transform is not None or self.tiled

    @property
    def tiled(self) -> bool:
        """True if a tensor has several scales."""
        return self.scale is not None and not self.scale.whole

    @property
    def delayed(self) -> bool:
        """True if its scale is state."""
        return self.scale is not None and self.scale.history is not None


def _part(name: str, value: Any, kind: Any) -> Any:
    found = parse(value) if isinstance(value, str) else value
    if found is not None and not isinstance(found, kind):
        allowed = f"a {kind.__name__}, its text, and None"
        raise TypeError(f"{name}={quoted(value)} is a {type(found).__name__}; allowed are {allowed}")
    return found


def check_operand(operand: Any, argument: str) -> Operand:
    """An operand, given as a format, a text, an `Operand` or None."""
    operand = parse(operand) if isinstance(operand, str) and operand.startswith("operand") else operand
    if isinstance(operand, Operand):
        return operand
    return Operand(None if operand is None else check_number(operand, argument))


_PARAMETERS = {
    "number": optional_number,
    "rounding": choice(tuple(MODES)),
    "scale": lambda reader: reader.registered("scale"),
    "transform": lambda reader: reader.registered("hadamard"),
}
register("operand", Kind(Operand, _PARAMETERS, 0, 1, 0))
