"""The signatures of public functions: their arguments have names, and the reference shows their source."""

from __future__ import annotations

from typing import Any

from qcore.arithmetic.operations import OPERATIONS


def of_numbers(name: str) -> Any:
    """The function of one, two or three arrays of numbers."""

    def one(
        self: Any,
        x: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x,), result, (rounding, overflow, random_bits, start), key)

    def two(
        self: Any,
        x: Any,
        y: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x, y), result, (rounding, overflow, random_bits, start), key)

    def three(
        self: Any,
        x: Any,
        y: Any,
        z: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x, y, z), result, (rounding, overflow, random_bits, start), key)

    return (one, two, three)[OPERATIONS[name].operands - 1]


def of_table(name: str) -> Any:
    """The function of one or two arrays of numbers that is a table."""

    def one(
        self: Any,
        x: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        operands: Any = None,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x,), result, (rounding, overflow, random_bits, start), key, operands)

    def two(
        self: Any,
        x: Any,
        y: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        operands: Any = None,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x, y), result, (rounding, overflow, random_bits, start), key, operands)

    return (one, two)[OPERATIONS[name].operands - 1]


def of_codes(name: str) -> Any:
    """The function of one, two or three arrays of codes."""

    def one(
        self: Any,
        x: Any,
        operands: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._codes(name, (x,), operands, result, (rounding, overflow, random_bits, start), key)

    def two(
        self: Any,
        x: Any,
        y: Any,
        operands: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._codes(name, (x, y), operands, result, (rounding, overflow, random_bits, start), key)

    def three(
        self: Any,
        x: Any,
        y: Any,
        z: Any,
        operands: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._codes(name, (x, y, z), operands, result, (rounding, overflow, random_bits, start), key)

    return (one, two, three)[OPERATIONS[name].operands - 1]


def of_neighbour(name: str, rounding: str) -> tuple[Any, Any]:
    """The functions of numbers and of codes that round in a given mode."""

    def numbers(self: Any, x: Any, result: Any = None, *, overflow: str | None = None) -> Any:
        return self._numbers(name, (x,), result, (rounding, overflow, 24, 0), None)

    def codes(self: Any, x: Any, operands: Any, result: Any = None, *, overflow: str | None = None) -> Any:
        return self._codes(name, (x,), operands, result, (rounding, overflow, 24, 0), None)

    return numbers, codes


def of_comparison(name: str) -> tuple[Any, Any]:
    """The functions of two arrays of numbers, and of codes, that return bools."""

    def numbers(self: Any, x: Any, y: Any) -> Any:
        return self._asked(name, (x, y))

    def codes(self: Any, x: Any, y: Any, operands: Any) -> Any:
        return self._asked_of_codes(name, (x, y), operands)

    return numbers, codes


def of_predicate(name: str) -> tuple[Any, Any]:
    """The functions of one array of numbers, or of codes, that ask what these are."""

    def numbers(self: Any, x: Any, operands: Any = None) -> Any:
        return self._asked(name, (x,), operands)

    def codes(self: Any, x: Any, operands: Any) -> Any:
        return self._asked_of_codes(name, (x,), operands)

    return numbers, codes
