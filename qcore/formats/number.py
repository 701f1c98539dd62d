"""The base of all formats: an immutable description that reduces itself to a few integers for each carrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from qcore.arguments import check_choice, quoted
from qcore.html import html_table
from qcore.law.carrier import Carrier
from qcore.law.codes import Codes, FixedCodes, FloatCodes, encoding
from qcore.law.grid import Grid
from qcore.law.program import Constants, Decoding, Program, entries_of, kind_of
from qcore.law.rounding import Rounding
from qcore.law.tapered import PositCodes
from qcore.law.tiles import Sizes
from qcore.packing import storage

OVERFLOWS = ("saturate", "propagate", "inf", "nan", "wrap")


class FormatTexts:
    """The functions that read and write formats as text.

    `qcore.formats.text` imports the formats, so they cannot import it. It registers its functions here.

    Attributes:
        known: an object whose attributes are the formats of all texts that were read, by `attribute_of`. Dynamo cannot
            trace a parser; of a dictionary it sees the texts at the start of a program, of an object each attribute
            when it is read.
        learn: reads a text into `known`; its second argument is the name for messages.
        write: the text of a format.
        name_of_dtype: the name of a dtype, None for other objects.
    """

    known: ClassVar[Any] = SimpleNamespace()
    learn: ClassVar[Callable[[str, str], None]]
    write: ClassVar[Callable[[Any], str]]
    name_of_dtype: ClassVar[Callable[[Any], str | None]]


class Number(ABC):
    """A number format. Formats are immutable, hashable, comparable and picklable.

    Example:
        >>> from qcore import FloatingPoint
        >>> number = FloatingPoint(exp=5, man=2)
        >>> isinstance(number, Number), number.text, number == FloatingPoint(5, 2)
        (True, 'float(5,2)', True)
    """

    @property
    def text(self) -> str:
        """The format as text, which `parse` reads."""
        # Kept without a lock, which a process that is forked meanwhile would find locked; two threads write the same.
        text = vars(self).get("_text")
        if text is None:
            text = FormatTexts.write(self)
            self._set(_text=text)
        return text

    def __getstate__(self) -> dict[str, Any]:
        """The fields for pickle and copy, without the text, which follows from them."""
        return {name: value for name, value in vars(self).items() if name != "_text"}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return call_text(self) if is_dataclass(self) else object.__repr__(self)

    def _repr_html_(self) -> str:
        """The HTML that notebooks show: the format's fields and, where it has codes, its properties."""
        rows = self._shown_fields()
        with suppress(ValueError):
            significant, step, largest = self.span
            rows += [("bits of a code", self.bits), ("significant bits", significant)]
            rows += [("smallest step", f"2^{step}"), ("largest number", f"below 2^{largest + 1}")]
        text = self.text
        return html_table([type(self).__name__, text if len(text) <= 200 else f"{text[:200]}..."], rows)

    def _shown_fields(self) -> list[tuple[str, object]]:
        """The format's fields and their values, as notebooks show them."""
        return [(one.name, getattr(self, one.name)) for one in fields(self)]  # type: ignore[arg-type]

    def _set(self, **values: Any) -> None:
        """Sets fields of a frozen dataclass, from its `__post_init__`."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def reduce(self, carrier: Carrier) -> tuple[str, Constants]:
        """The kind of this format (see `Program`) and its integers on a carrier.

        Raises:
            ValueError: if the carrier cannot represent the format's numbers at all.
        """

    def program(self, mode: Rounding, carrier: Carrier, coded: bool) -> tuple[Program, Constants]:
        """The program that rounds to this format, or to its codes, and its constants."""
        kind, constants = self.reduce(carrier)
        if not coded:
            return Program(carrier, mode, kind), constants
        codes, size = self.codes(carrier), len(Grid._fields)
        program = Program(carrier, mode, kind, kind_of(codes), storage(self.bits))
        if isinstance(codes, PositCodes):
            return program, (*constants, *codes)
        grid, encoded = encoding(carrier, Grid(*constants[:size]), cast("FloatCodes | FixedCodes", codes))
        return program, (*grid, *constants[size:], *encoded)

    def decoding(self, carrier: Carrier) -> tuple[Decoding, tuple[int, ...]]:
        """The program that decodes this format's codes, and its constants.

        Raises:
            ValueError: if the format has no codes, or numbers that the carrier cannot represent.
        """
        self.check_exact(carrier)
        codes = self.codes(carrier)
        return Decoding(carrier, kind_of(codes), entries=entries_of(codes)), tuple(codes)

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The axes of an array of `ndim` dimensions along which an element's result depends on other elements."""
        return ()

    def block_sizes(self, ndim: int) -> Sizes:
        """The number of elements along each axis that share a scale; None is all of them."""
        return (1,) * ndim

    def tile_sizes(self, ndim: int) -> Sizes:
        """The sizes of blocks along each axis on which an element's result depends, with those of their sub-blocks."""
        return self.block_sizes(ndim)

    @property
    def bits(self) -> int:
        """The width of a code. Formats without codes raise a ValueError here, and in `codes` and `span`."""
        raise self._no_codes()

    def codes(self, carrier: Carrier) -> Codes:
        """The integers of this format's codes on a carrier. Codes of more than 32 bits raise a ValueError."""
        raise self._no_codes()

    @property
    def span(self) -> tuple[int, int, int]:
        """Significant bits of the numbers, and the exponents of the smallest step and of the largest number."""
        raise self._no_codes()

    def _no_codes(self) -> ValueError:
        return ValueError(f"number={quoted(self)} has no codes for single numbers")

    def check_exact(self, carrier: Carrier) -> None:
        """Raises a ValueError unless the carrier can represent all of the format's numbers."""
        bits, step, largest = self.span
        allowed = (carrier.mantissa_bits + 1, carrier.step_exponent, carrier.max_exponent)
        if bits > allowed[0] or step < allowed[1] or largest > allowed[2]:
            raise ValueError(
                f"dtype={carrier.name}; "
                f"{quoted(self)} has numbers of {bits} bits from 2^{step} to 2^{largest}, allowed is a "
                f"dtype that has them all ({carrier.name} has {allowed[0]} bits, 2^{allowed[1]} to 2^{allowed[2]})"
            )

    def check_target(self, argument: str) -> None:  # noqa: B027  # most formats have nothing to refuse
        """Raises a ValueError, which names the argument, if no number can be rounded to this format."""

    def overflowing(self, overflow: str) -> Number:
        """This format with another overflow policy, see `quantize`; a ValueError if the format does not allow it."""
        raise ValueError(f"overflow={quoted(overflow)}; {quoted(self)} has no other policy than its own")


def call_text(value: Any, **texts: str) -> str:
    """The call that makes a dataclass, without arguments that have their defaults.

    Args:
        value: the dataclass.
        texts: what stands for arguments whose own `repr` the constructor does not take, or readers would not.

    Example:
        >>> from qcore import FixedPoint
        >>> call_text(FixedPoint(8, 4, signed=False)), call_text(FixedPoint(8, 4), fl="2 * 2")
        ('FixedPoint(wl=8, fl=4, signed=False)', 'FixedPoint(wl=8, fl=2 * 2)')
    """
    given = [
        f"{one.name}={texts.get(one.name) or repr(getattr(value, one.name))}"
        for one in fields(value)
        if one.init and getattr(value, one.name) != one.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"


def check_number(number: Any, argument: str = "number") -> Number:
    """A format, given as an object, as text, or as a dtype."""
    if isinstance(number, Number):
        return number
    text = number if isinstance(number, str) else FormatTexts.name_of_dtype(number)
    if text is None:
        raise TypeError(
            f"{argument}={quoted(number)} is a {type(number).__name__}; allowed is a Number, a text such as "
            "'float(5,2)', or a dtype"
        )
    FormatTexts.learn(text, argument)
    return getattr(FormatTexts.known, attribute_of(text))


def attribute_of(text: str) -> str:
    """The attribute of `FormatTexts.known` for a text: another for each text, without points, which Dynamo refuses."""
    return text.replace("%", "%%").replace(".", "%p")


def check_target(number: Any, argument: str = "number") -> Number:
    """`check_number` of a setting, to which arrays will be rounded: formats that can only be decoded raise."""
    number = check_number(number, argument)
    number.check_target(argument)
    return number


def prepare(
    number: Number, mode: Rounding, carrier: Carrier, overflow: str | None, coded: bool
) -> tuple[Program, Constants]:
    """The program and the constants for a format; an overflow policy that is not None replaces the format's own."""
    return with_overflow(number, overflow).program(mode, carrier, coded)


def with_overflow(number: Number, overflow: Any) -> Number:
    """The format under a user's overflow policy; None is the format's own."""
    if overflow is None:
        return number
    check_choice("overflow", overflow, OVERFLOWS)
    return number.overflowing(overflow)
