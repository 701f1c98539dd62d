"""Formats as they are spelled on the command line and in files of vectors."""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_int
from qcore.block import BlockScaled
from qcore.fixed import FixedPoint
from qcore.floats import FloatingPoint
from qcore.named import NAMED, p3109
from qcore.number import Number
from qcore.posit import Posit

FORMS = (
    "p3109:BITS,PRECISION[,unsigned][,finite], float:EXP,MAN, fixed:WL,FL[,unsigned], posit:BITS,ES, "
    "scaled:ELEMENT,SIZE,RULE"
)

_UNSIGNED = {"unsigned": {"signed": False}}
# kind: (constructor, its two integers, the words that may follow them)
_KINDS: dict[str, tuple[Any, tuple[str, str], dict[str, dict[str, bool]]]] = {
    "p3109": (p3109, ("BITS", "PRECISION"), {**_UNSIGNED, "finite": {"extended": False}}),
    "float": (FloatingPoint, ("EXP", "MAN"), {}),
    "fixed": (FixedPoint, ("WL", "FL"), _UNSIGNED),
    "posit": (Posit, ("BITS", "ES"), {}),
}


def parse_format(text: str) -> Number:
    """The format that a name of `NAMED`, or one of `FORMS`, stands for.

    Raises:
        ValueError: if it stands for none.

    Example:
        >>> parse_format("fixed:8,4,unsigned")
        FixedPoint (wl=8, fl=4, signed=False)
    """
    if text in NAMED:
        return NAMED[text][0]
    kind, colon, rest = text.partition(":")
    if kind == "scaled":
        return _scaled(text, rest.split(","))
    if not colon or kind not in _KINDS:
        raise ValueError(f"format {text!r}; allowed are the names {', '.join(NAMED)}, and {FORMS}")
    make, names, flags = _KINDS[kind]
    values, words = rest.split(",")[:2], rest.split(",")[2:]
    if len(values) < 2:
        raise ValueError(f"format {text!r}; allowed are {FORMS}")
    unknown = [word for word in words if word not in flags or words.count(word) > 1]
    if unknown:
        allowed = ", ".join(flags) or "nothing"
        raise ValueError(f"format {text!r}: {unknown[0]!r} after the integers; allowed there, once: {allowed}")
    options = {name: value for word in words for name, value in flags[word].items()}
    integers = [_integer(text, *pair) for pair in zip(names, values, strict=True)]
    try:
        if kind == "fixed":  # the classes have no end, what prints their ranges must have one
            check_int("wl", integers[0], 1, 64)
        if kind == "posit":
            check_int("es", integers[1], 0, 64)
        return make(*integers, **options)
    except ValueError as error:
        raise ValueError(f"format {text!r}: {error}") from error


def _scaled(text: str, fields: list[str]) -> BlockScaled:
    """Blocks of SIZE in a row, whose elements have the name ELEMENT."""
    if len(fields) != 3:
        raise ValueError(f"format {text!r}; allowed are {FORMS}")
    element, size, rule = fields
    block = {-1: _integer(text, "SIZE", size)}
    try:
        return BlockScaled(element, block, rule)
    except (TypeError, ValueError) as error:
        raise ValueError(f"format {text!r}: {error}") from error


def source(text: str) -> str:
    """Where a format is defined, as far as it has a name; else an empty string."""
    return NAMED[text][1] if text in NAMED else ""


def _integer(text: str, name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"format {text!r}: {name} is {value!r}; allowed is an int") from None
