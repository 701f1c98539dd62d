"""C for the values of a trace: names, expressions and statements, of kernels and of `emit-c`.

A kernel has a variable for each value, and its compiler is told that integers wrap around. `qcore.cli.c_text` writes
fewer variables, in C that every compiler reads alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qcore.trace import C_TYPES, Value, literal, needed


class Writer:
    """C in which each value is a variable."""

    def name(self, value: Value) -> str:
        """The variable: the name that the law gives the value, with a number that no other value has."""
        return f"{value.label}_{value.name[1:]}" if value.label else value.name

    def expression(self, value: Value) -> str:
        """C for a value."""
        return self.pattern(value).format(*(self.part(one, value) for one in value.parts))

    def pattern(self, value: Value) -> str:
        """C for an operation, with `{}` for its parts."""
        return value.text

    def part(self, part: Any, of: Value) -> str:
        """C for an operand, or a number, of a value."""
        return self.name(part) if isinstance(part, Value) else literal(part, of.like)

    def declared(self, value: Value, text: str = "") -> str:
        """The statement that computes a value; it is read from `text` where another pass has computed it."""
        return f"const {C_TYPES[value.dtype]} {self.name(value)} = {text or self.expression(value)};"

    def statements(self, targets: Iterable[Value], level: int, of: int | None = None) -> list[str]:
        """The statements of a level's pass for its targets: those that compute values of this, or of another, level."""
        of = level if of is None else of
        return [self.declared(value) for value in needed(targets, level) if value.level == of]


WRITER = Writer()  # of kernels


def pointer(name: str, dtype: str, address: str, offset: str, writable: bool = False) -> str:
    """The statement that declares a pointer into an array."""
    kind = f"{'' if writable else 'const '}{C_TYPES[dtype]}*"
    return f"{kind} const {name} = ({kind}){address} + {offset};"
