"""Vectors of an operation: codes of operands, and the code of the exact result, rounded once.

| column | holds |
| --- | --- |
| x, y, z | codes of the operands, as many as the operation has |
| result | the code of the result |
| word | the random integer of 24 bits that a stochastic rounding read: that of the row's index, from 0 on |

Operands of up to 16 bits together are all that there are. Of longer ones there are all pairs, or triples, of hard
numbers, then operands whose exact results lie in the middle of two numbers, and random ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qcore import arithmetic
from qcore.arguments import check_seed, quoted
from qcore.arithmetic.call import OperationCall, call_of_codes, exact_of_codes, indices_of, stand_ins_of
from qcore.arithmetic.operations import OPERATIONS
from qcore.arrays import decode, encode, quantize, random_words
from qcore.cli.comparison import Vectors, check_fields, first_line
from qcore.cli.layouts import Rows, rows_text
from qcore.cli.properties import digits, properties, subnormal
from qcore.files import write_text
from qcore.formats.number import check_number
from qcore.law.rounding import RoundingName

OPERANDS = "x", "y", "z"
NAMES = tuple(name for name in OPERATIONS if not name.startswith("next_"))  # those with a result's format and a mode
_RANDOM_BITS, _SHORT, _SEVERAL = 24, 16, 8  # the last: random operands among which ties are found, for each row


@dataclass(frozen=True)
class Header:
    """The first line of a file: everything on which the results depend.

    Attributes:
        operation: its name in `qcore.arithmetic`.
        format: the text of the operands' format.
        result: the text of the result's format.
        rounding: the rounding mode.
        overflow: the policy, or None for the format's own.
        key: for stochastic rounding, else None.
        version: of the library that wrote the file.
    """

    operation: str
    format: str
    result: str
    rounding: RoundingName
    overflow: str | None
    key: int | None
    version: str

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands' columns."""
        return OPERANDS[: OPERATIONS[self.operation].operands]

    def digits(self) -> dict[str, int]:
        """Hexadecimal digits of all columns."""
        width, result = (digits(check_number(text).bits) for text in (self.format, self.result))
        found = dict.fromkeys(self.operands, width) | {"result": result}
        return found if self.key is None else found | {"word": _RANDOM_BITS // 4}

    def law(self, codes: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
        """The columns of results."""
        operation = getattr(arithmetic, f"{self.operation}_codes")
        settings = {"rounding": self.rounding, "overflow": self.overflow, "key": self.key}
        found = {"result": operation(*codes, operands=self.format, result=self.result, **settings)}
        if self.key is None:
            return found
        words = random_words(codes[0].shape, check_seed(self.key), (0, 0), _RANDOM_BITS, False)
        return found | {"word": words >> (31 - _RANDOM_BITS)}

    @cached_property
    def _call(self) -> OperationCall:
        modes = self.rounding, self.overflow, _RANDOM_BITS, 0
        return call_of_codes(self.operation, self.format, self.result, *modes)

    def exact(self, codes: tuple[np.ndarray, ...]) -> np.ndarray:
        """The results before they are rounded, in float64, to odd."""
        if self._call.is_looked_up:
            return stand_ins_of(self._call)[indices_of(self._call.widths, tuple(x.astype(np.intp) for x in codes))]
        return exact_of_codes(self._call, codes)

    def ties(self, exact: np.ndarray) -> np.ndarray:
        """True for results in the middle of two numbers."""
        with np.errstate(all="ignore"):
            low, high = quantize(exact, self.result, "nearest_zero"), quantize(exact, self.result, "nearest_away")
        return (low != high) & ~(np.isnan(low) & np.isnan(high))

    def decode(self, column: str, codes: np.ndarray) -> np.ndarray:
        """The numbers of a column's codes; of words the integers."""
        if column == "word":
            return codes.astype(np.float64)
        return decode(codes, self.result if column == "result" else self.format, np.float64)


def write(path: Path, header: Header, count: int, seed: int) -> str:
    """Writes the vectors of an operation; returns how many rows there are, and what they cover."""
    header.law(tuple(np.zeros(0, np.uint32) for _ in header.operands))  # raises before the work begins
    codes = operands(header, count, seed)
    law = header.law(codes)
    columns = dict(zip(header.operands, codes, strict=True)) | law
    write_text(path, rows_text(path, asdict(header), header.digits(), columns))
    where = kinds(header, codes, law["result"]).items()
    found = ", ".join(f"{np.sum(rows)} {name}" for name, rows in where if np.any(rows))
    return f"{path}: {len(codes[0])} rows ({_text(header)})\nresults: {found}"


def operands(header: Header, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """All operands, or hard and random ones."""
    bits, several = check_number(header.format).bits, len(header.operands)
    if bits * several <= _SHORT:
        return _grid(np.arange(1 << bits, dtype=np.uint32), several)
    rng = np.random.default_rng(seed)
    random = tuple(rng.integers(0, 1 << bits, (several, _SEVERAL * count), np.uint32))
    ties = np.flatnonzero(header.ties(header.exact(random)))[: count // 2]
    parts = zip(_grid(_hard(header.format), several), random, strict=True)
    return tuple(np.concatenate([hard, x[ties], x[: count - len(ties)]]) for hard, x in parts)


def _grid(codes: np.ndarray, several: int) -> tuple[np.ndarray, ...]:
    """All pairs, or triples, of codes."""
    return tuple(x.ravel() for x in np.broadcast_arrays(*np.ix_(*[codes] * several)))


def _hard(text: str) -> np.ndarray:
    """The codes of special numbers, of 1, and of both ends of the range with a neighbour."""
    known = properties(check_number(text))
    ends = [float(one) for one in (known.largest, known.smallest, known.min_normal) if one]
    x = np.array([0.0, 1.0, np.inf, np.nan, *ends])
    with np.errstate(all="ignore"):
        x = np.concatenate([x, -x])
        above, below = quantize(np.nextafter(x, np.inf), text, "up"), quantize(np.nextafter(x, -np.inf), text, "down")
        return np.unique(encode(np.concatenate([x, above, below]), text)).astype(np.uint32)


def kinds(header: Header, codes: tuple[np.ndarray, ...], result: np.ndarray) -> dict[str, np.ndarray]:
    """The kinds of results: True for each row of a kind, and each row has one."""
    exact, number = header.exact(codes), check_number(header.result)
    y, known = header.decode("result", result), properties(number)
    found = {"NaN": np.isnan(exact), "infinite": np.isinf(exact), "ties": header.ties(exact), "exact": y == exact}
    found["beyond the largest number"] = (exact > float(known.largest)) | (exact < float(known.lowest))
    found["subnormal"] = subnormal(exact, number)
    rest = np.ones(exact.shape, bool)
    for name, where in (found | {"other": rest.copy()}).items():
        found[name] = where & rest
        rest &= ~where
    return found


def _text(header: Header) -> str:
    return f"{header.operation} of {header.format} to {header.result}, {header.rounding}"


@dataclass(frozen=True)
class OperationVectors(Vectors):
    """The contents of a file of vectors of an operation; given are the codes of the operands."""

    law: Header

    @property
    def text(self) -> str:
        return _text(self.law)

    @cached_property
    def expected(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        return self.law.law(self.given)

    def numbers(self, name: str, bits: np.ndarray) -> np.ndarray:
        return self.law.decode(name, bits)

    def groups(self, differing: np.ndarray) -> Iterator[str]:
        if len(differing):
            for name, where in kinds(self.law, self.given, self.expected["result"]).items():
                if where.any():
                    yield f"  {name}: {where[differing].sum()} of {where.sum()}"

    def shown(self, row: int, first: bool) -> Iterator[str]:
        given = (f"{name} {self._shown(name, x[row])}" for name, x in zip(self.law.operands, self.given, strict=True))
        yield f"{'the first is' if first else 'then'} line {self.lines[row]}: {', '.join(given)}"
        for name, column in self.found.items():
            if column.present[row]:
                found = column.undefined.get(row) or self._shown(name, column.values[row])
                yield f"  {name}: expected {self._shown(name, self.expected[name][row])}, found {found}"

    def _shown(self, column: str, code: Any) -> str:
        number = self.law.decode(column, np.array([code], np.uint32))[0]
        return f"{int(code):0{self.law.digits()[column]}x} = {quoted(float(number))}"


_TYPES = dict.fromkeys(("operation", "format", "result", "rounding", "version"), (str,)) | {
    "overflow": (str, type(None)),
    "key": (int, type(None)),
}


def is_of(rows: Rows) -> bool:
    """True if a file has vectors of an operation."""
    return "operation" in rows.header


def read(rows: Rows) -> OperationVectors:
    """The contents of a file of vectors of an operation."""
    header = _header(rows)
    sizes, count = header.digits(), len(header.operands)
    columns = rows.columns(sizes, count)
    given = tuple(columns.pop(name).values.astype(np.uint32) for name in header.operands)
    with first_line(rows):
        bits = check_number(header.format).bits
        if any((x >> bits).any() for x in given):
            raise ValueError(f"codes of {header.format}; allowed are {bits} bits")
    return OperationVectors(header, header.version, given, columns, rows.lines)


def _header(rows: Rows) -> Header:
    names = [field.name for field in fields(Header)]
    found = {name: value for name, value in rows.header.items() if name != "rows"}
    with first_line(rows):
        if set(found) != set(names):
            allowed = f"allowed is a JSON object with exactly {', '.join(names)}, rows"
            raise ValueError(f"{quoted(', '.join(found)[:60])}; {allowed}")
        header = Header(**check_fields(found, _TYPES))
        if header.operation not in NAMES:
            raise ValueError(f"operation={quoted(header.operation)}; allowed are {', '.join(NAMES)}")
        header.law(tuple(np.zeros(0, np.uint32) for _ in header.operands))
    return header
