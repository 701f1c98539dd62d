"""C from a law: names, expressions and statements of the values of a trace.

The text is for readers: a variable of C has the name that the law gives its value, and the comment above it is the
function of the law. Other values become parts of the expressions that read them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from math import inf
from typing import Any

import numpy as np

from qcore.cli.c_helpers import HELPERS
from qcore.cli.vectors import bits_of
from qcore.formats.names import NAMED
from qcore.namespace import Ints
from qcore.trace import Trace, Value, decided, needed
from qcore.writer import Writer

RESERVED = set(
    re.findall(
        r"\w+",
        """
    auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while main
    bits x result blocks block count key key0 key1 index high low start i
""",
    )
)

_CALLS = {  # by the trace's pattern for an operation on lanes of 32 bits
    "{} << {}": "left({}, {})",
    "{} >> {}": "right({}, {})",
    "{0} < {1} ? {1} : {0}": "at_least({}, {})",
    "{0} > {1} ? {1} : {0}": "at_most({}, {})",
    "bits32({})": "bits_of({})",
    "float32({})": "number_of({})",
    "float32_bits({})": "float_bits({})",
    "(int32_t)float32({})": "integer({})",
    "bits32(to_float32({}) * to_float32({}))": "product_bits({}, {})",
    "bits32(to_float32({}) / to_float32({}))": "quotient_bits({}, {})",
}
_WRAPS = {
    "{} + {}": "add({}, {})",
    "{} - {}": "subtract({}, {})",
    "{} * {}": "multiply({}, {})",
    "-{}": "subtract(0, {})",
}


UNNAMED = "part"  # of variables that the law does not name: several expressions read them


class Field(int):
    """An integer of a format with the name that the law reads it by."""

    name: str

    def __new__(cls, number: int, name: str) -> Field:
        found = super().__new__(cls, number)
        found.name = name
        return found

    def __add__(self, other: Any) -> Any:
        return self if isinstance(other, int) and other == 0 else super().__add__(other)


class Reading(Trace):
    """A trace for one format, whose integers make some operations needless."""

    def binary(self, sign: str, a: Any, b: Any) -> Any:
        if sign == "-" and a is b:
            return 0
        found = decided(sign, a, b)
        if sign == "+" and isinstance(b, int) and b < 0 and not isinstance(b, Field):
            sign, b = "-", -b
        return super().binary(sign, a, b) if found is None else found

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        return Ints.clip(x, low, high) if isinstance(x, int) else super().clip(x, low, high)

    def hidden(self, number: int, like: Value) -> int:
        return number

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return (a if condition else b) if isinstance(condition, bool) else super().where(condition, a, b)


class Body(Writer):
    """What a function of C computes: the values that some results of a trace depend on.

    Args:
        trace: of the law.
        results: its results that are read.
        taken: the names of the function's own variables.
    """

    def __init__(self, trace: Trace, results: Sequence[Value], taken: Iterable[str] = ()) -> None:
        self.trace, self.results, self.taken = trace, results, RESERVED | HELPERS.keys() | {*taken}
        self.values: list[Any] = self._values()
        self.variables = self._variables()
        self.names: dict[str, str] = {}
        self.ranges: dict[str, tuple[int, int]] = {}

    def _values(self) -> list[Value]:
        """The values that the results depend on; the law also computes values that a kind does not read."""
        found: dict[str, Value] = {}
        left = [*self.results]
        while left:
            value = left.pop()
            if value.name not in found:
                found[value.name] = value
                left += self.read_by(value)
        return list(found.values())

    def read_by(self, value: Value) -> Sequence[Value]:
        """The values that one is computed from."""
        return value.operands

    def _variables(self) -> set[str]:
        """The values that are variables of C; all other values are parts of expressions.

        These are the values that the law names, values that several expressions or other levels read, and arguments.
        """
        values = self.values
        readers = [(one, operand) for one in values for operand in self.read_by(one)]
        found = {one.name for one in values if not one.parts or one.label}
        found |= {operand.name for one, operand in readers if one.level != operand.level}
        counts: dict[str, int] = {}
        for _, operand in readers:
            counts[operand.name] = counts.get(operand.name, 0) + 1
        return found | {name for name, count in counts.items() if count > 1} | {one.name for one in self.results}

    # Expressions and statements.

    def name(self, value: Value) -> str:
        """The name of a variable: its name in the law, with a number if the law uses the name again."""
        if value.name not in self.names:
            if not value.parts and value.text:
                return value.text  # an argument
            base = value.label or UNNAMED
            base = f"{base}_" if base in self.taken else base
            taken, name, count = set(self.names.values()), base, 1
            while name in taken:
                count += 1
                name = f"{base}_{count}"
            self.names[value.name] = name
        return self.names[value.name]

    def part(self, part: Any, of: Value | None = None) -> str:
        """C for an operand, in parentheses where an operator reads it, or for a number."""
        if not isinstance(part, Value):
            return part.name if isinstance(part, Field) else number_text(part)
        if part.name in self.variables:
            return self.name(part)
        text = self.expression(part)
        return text if of is None or _is_call(self.pattern(of)) or _is_call(self.pattern(part)) else f"({text})"

    def pattern(self, value: Value) -> str:
        """C for an operation: operators where they cannot wrap around, else calls of helpers."""
        of_lanes = value.text.replace("64", "32") if value.width == 64 else value.text
        called = _CALLS.get(of_lanes) if self._fits(value) else _WRAPS.get(value.text)
        return (called.replace("(", "64(", 1) if value.width == 64 else called) if called else value.text

    def commented(self, targets: Iterable[Value], level: int, indent: str) -> list[str]:
        """The statements that compute the targets from variables of lower levels and of the loop."""
        lines, last = [], ""
        for value in needed(targets, level):
            if value.level == level and value.parts and value.name in self.variables:
                lines += self.comment(value, indent) if value.function != last else []
                lines.append(indent + self.declared(value))
                last = value.function or last
        return lines

    def comment(self, value: Value, indent: str) -> list[str]:
        """The line with the function of the law that names a value."""
        return [f"{indent}/* {value.function} */"] if value.function else []

    def handed(self, level: int) -> list[Value]:
        """The values of a level that higher levels read."""
        return [one for value in self.values if value.level > level for one in value.operands if one.level == level]

    def _fits(self, value: Value) -> bool:
        """False if an operation may wrap around, which operators of C must not."""
        if value.text not in _WRAPS or value.dtype.startswith("float"):
            return True
        found = _exact(value.text, [self.range(part) for part in value.parts])
        least, most = _all_of(value)
        return found is not None and found[0] >= least and found[1] <= most

    def range(self, part: Any) -> tuple[int, int]:
        """Bounds of a value."""
        if not isinstance(part, Value):
            return int(part), int(part)
        if part.name not in self.ranges:
            least, most = _all_of(part)
            read = part.parts or part.operands  # a maximum has one operand
            ranges = [] if any(_is_float(one) for one in read) else [self.range(one) for one in read]
            found = _exact(part.text, ranges) if ranges else None
            fits = found is not None and found[0] >= least and found[1] <= most
            self.ranges[part.name] = found if found is not None and fits else (least, most)
        return self.ranges[part.name]


def _is_call(pattern: str) -> bool:
    return re.match(r"\w+\(", pattern) is not None


def _is_float(part: Any) -> bool:
    return isinstance(part, float) or (isinstance(part, Value) and part.dtype.startswith("float"))


def _all_of(value: Value) -> tuple[int, int]:
    """The bounds of a lane."""
    return -(1 << (value.width - 1)), (1 << (value.width - 1)) - 1


def identifier(text: str) -> str:
    """A part of C names for a format: other formats have other parts, and no part has more than 75 letters.

    A name of ours, or a kind with natural numbers such as fixed_8_4, says all. Other texts have signs that names cannot
    have, or are names of users: their digest follows.
    """
    words = re.sub(r"\W+", "_", text).strip("_")
    if text in NAMED or re.fullmatch(r"[a-z]+\(\d+(, ?\d+)*\)", text):
        return words
    return f"{words[:60].rstrip('_')}_x{sha256(text.encode()).hexdigest()[:12]}"


def _exact(pattern: str, ranges: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Bounds of an operation's result before it wraps around, from the bounds of its operands; None without any."""
    (low, high), *others = ranges
    match pattern, others:
        case "{} + {}", [(least, most)]:
            return low + least, high + most
        case "{} - {}", [(least, most)]:
            return low - most, high - least
        case "{} * {}", [(least, most)]:
            ends = [a * b for a in (low, high) for b in (least, most)]
            return min(ends), max(ends)
        case "{} << {}", [(least, most)] if least >= 0:
            ends = [a << min(b, 64) for a in (low, high) for b in (least, most)]
            return min(ends), max(ends)
        case "{} >> {}", [(least, most)] if least >= 0:
            ends = [a >> b for a in (low, high) for b in (least, most)]
            return min(ends), max(ends)
        case "{} & {}", [(least, most)] if max(low, least) >= 0:
            return 0, min(most_ for least_, most_ in (ranges[0], ranges[1]) if least_ >= 0)
        case (("{} & {}" | "{} | {}" | "{} ^ {}"), [(least, most)]):
            bits = max(one.bit_length() if one >= 0 else (~one).bit_length() for one in (low, high, least, most))
            return 0 if min(low, least) >= 0 else -(1 << bits), (1 << bits) - 1
        case "~{}", []:
            return ~high, ~low
        case "-{}", []:
            return -high, -low
        case "", []:
            return low, high  # a maximum
        case "{0} < {1} ? {1} : {0}", [(least, most)]:
            return max(low, least), max(high, most)
        case "{0} > {1} ? {1} : {0}", [(least, most)]:
            return min(low, least), min(high, most)
        case "{} ? {} : {}", [a, b]:
            return min(a[0], b[0]), max(a[1], b[1])
        case "float32_bits({})", [] if low >= 0:
            return 0, 0x4F000000
        case "bits32(to_float32({}) / to_float32({}))", [(least, _)] if low >= 0 and least > 0:
            return 0, 0x4F000000
        case (("(int32_t){}" | "(int64_t){}"), []):
            return low, high
    return (0, 1) if pattern[3:5].strip() in ("<", "<=", ">", ">=", "==", "!=") else None


class Constants:
    """The integers of a format that a function reads, by the names that the law reads them by.

    Args:
        fields: their classes and names.
        integers: the integers; those of a table are in tuples, one for each row.
        prefix: of their names in C.

    Attributes:
        given: what the law is given.
    """

    def __init__(self, fields: Sequence[tuple[type[Any], str]], integers: Sequence[Any], prefix: str = "") -> None:
        seen: dict[str, int] = {}
        self.given: list[Any] = []
        self._notes: dict[str, tuple[int, str]] = {}
        for (part, name), constant in zip(fields, integers, strict=True):
            seen[name] = seen.get(name, 0) + 1
            upper = prefix + name.upper() + (f"_{seen[name]}" if seen[name] > 1 else "")
            found: Any = Field(constant, upper) if isinstance(constant, int) else _row(constant, upper)
            self.given.append(found)
            note = notes(part).get(name, "")
            for field in found if isinstance(found, tuple) else (found,):
                self._notes[field.name] = (int(field), note)
                note = ""  # of a row it stands once

    def declared(self, text: str, dtype: str = "int32_t") -> list[str]:
        """The lines that declare those which a text reads."""
        lines = []
        for name, number, note in self.read_in(text):
            lines += [f"/* {note} */"] if note else []
            lines += [f"static const {dtype} {name} = {number_text(number)};"]
        return lines

    def read_in(self, text: str) -> list[tuple[str, int, str]]:
        """Those which a text reads: name, integer, and what it means."""
        return [(name, *of) for name, of in self._notes.items() if re.search(rf"\b{name}\b", text)]

    def add(self, name: str, number: int, note: str) -> Field:
        """One more constant."""
        self._notes[name] = (number, note)
        return Field(number, name)


def _row(constant: Sequence[int], name: str) -> tuple[Field, ...]:
    return tuple(Field(number, f"{name}_{place}") for place, number in enumerate(constant))


def listed(arguments: Sequence[str]) -> str:
    return ",\n".join(f"    {one}" for one in arguments)


def number_text(number: float) -> str:
    """A number as C has it."""
    if isinstance(number, float):
        if abs(number) == inf:
            return "HUGE_VAL" if number > 0 else "(-HUGE_VAL)"
        return "0.0" if number == 0 else number.hex()
    if number == -(1 << 63):
        return "(-INT64_C(0x7FFFFFFFFFFFFFFF) - 1)"
    if not -(1 << 31) <= number < 1 << 31:
        return f"{'-' if number < 0 else ''}INT64_C(0x{abs(number):016X})"
    if number == -(1 << 31):
        return "(-0x7FFFFFFF - 1)"
    return f"{number}" if abs(number) < 1024 else f"{'-' if number < 0 else ''}0x{abs(number):08X}"


def table(x: np.ndarray) -> list[str]:
    words = [f"0x{word:08X}" for word in bits_of(x).ravel().tolist()]
    return [f"    {', '.join(words[i : i + 8])}," for i in range(0, len(words), 8)]


@cache
def notes(part: type[Any]) -> dict[str, str]:
    """The sentences of a class's docstring on its attributes, by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(part.__doc__ or "").splitlines():
        if start := re.fullmatch(r"\s+((?:[a-z_]+, )*[a-z_]+): (.+)", line):
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif names and line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found
