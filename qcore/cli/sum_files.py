"""Files of vectors of sums, and their comparison with the law; `qcore.cli.sums` has the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from qcore.arguments import quoted
from qcore.cli.layouts import read_rows, write_rows
from qcore.cli.sums import KINDS, Operands, Unit, check_unit, coverage, draw
from qcore.packing import storage
from qcore.version import __version__

SHOWN = 10  # differences that a report has


def write(path: Path, unit: Unit, count: int, seed: int) -> str:
    """Writes the vectors of a unit; returns how many rows there are, and what they cover."""
    kinds, given = draw(unit, count, seed)
    results, steps = unit.columns(given)
    inputs = dict(zip(unit.inputs, _inputs(kinds, given), strict=True))
    digits = unit.inputs | unit.outputs
    columns = [[f"{x:0{digits[name]}x}" for x in column.tolist()] for name, column in (inputs | results).items()]
    header = {**asdict(unit), "version": __version__, "kinds": list(KINDS), "columns": list(digits)}
    write_rows(path, header, digits, list(zip(*columns, strict=True)))
    return "\n".join([f"{path}: {count} rows ({unit.accumulator}, {unit.terms} terms)", *coverage(unit, steps)])


def _inputs(kinds: np.ndarray, given: Operands) -> Iterator[np.ndarray]:
    yield kinds
    for x in (given.a, given.b, *(given.scales or ())):
        yield from x.T
    yield given.c.view(np.uint32)


@dataclass(frozen=True)
class SumVectors:
    """The contents of a file.

    Attributes:
        unit: the unit of its header.
        version: of the library that wrote it.
        columns: the integers of each column.
        present: for the columns of results, where the file has a value.
    """

    unit: Unit
    version: str
    columns: dict[str, np.ndarray]
    present: dict[str, np.ndarray]

    @cached_property
    def expected(self) -> dict[str, np.ndarray]:
        """The law's columns for the file's inputs."""
        return self.unit.columns(self._operands)[0]

    @property
    def _operands(self) -> Operands:
        of = {name: [x for column, x in self.columns.items() if column.rstrip("0123456789") == name] for name in
              ("a", "b", "scale_a", "scale_b")}  # fmt: skip
        a, b = (
            np.stack(of[name], 1).astype(f"u{storage(number.bits) // 8}")
            for name, number in zip("ab", self.unit.numbers, strict=True)
        )
        scales = None
        if self.unit.scale is not None:
            dtype = f"u{storage(self.unit.scale.bits) // 8}"
            scales = np.stack(of["scale_a"], 1).astype(dtype), np.stack(of["scale_b"], 1).astype(dtype)
        return Operands(a, b, scales, self.columns["c"].astype(np.uint32).view(np.float32))


def is_of_sums(path: Path) -> bool:
    """True if a file has vectors of sums."""
    try:
        return "accumulator" in json.loads(read_rows(path)[0])
    except (ValueError, TypeError):  # the reader of other vectors says what is wrong
        return False


def read(path: Path) -> SumVectors:
    """Reads a file of vectors of sums."""
    text, lines = read_rows(path)
    header = json.loads(text)
    try:
        unit = check_unit(header)
        if header.get("columns") != [*unit.inputs, *unit.outputs]:
            raise ValueError("columns are not those of the unit; allowed is what `vectors` wrote")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}, line 1: {error}") from error
    if not lines:
        raise ValueError(f"{path}, line 2: the file ends; allowed are rows")
    digits = unit.inputs | unit.outputs
    rows = [_row(f"{path}, line {index + 2}", line, digits, len(unit.inputs)) for index, line in enumerate(lines)]
    columns, present = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, values in zip(digits, zip(*rows, strict=True), strict=True):
        columns[name] = np.array([value or 0 for value in values], np.uint64)
        if name in unit.outputs:
            present[name] = np.array([value is not None for value in values])
    if (columns["kind"] >= len(KINDS)).any():
        raise ValueError(f"{path}: kind is {columns['kind'].max()}; allowed are 0 to {len(KINDS) - 1}")
    return SumVectors(unit, str(header.get("version")), columns, present)


def _row(where: str, line: str, digits: dict[str, int], inputs: int) -> list[int | None]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(digits):
        raise ValueError(f"{where}: {len(fields)} fields; allowed are {len(digits)}")
    found = list[int | None]()
    for index, (name, field) in enumerate(zip(digits, fields, strict=True)):
        try:
            value = int(field, 16) if field or index < inputs else None
        except ValueError:
            value = -1
        if value is not None and not 0 <= value < 16 ** digits[name]:
            raise ValueError(f"{where}: {name} is {quoted(field)}; allowed are {digits[name]} hexadecimal digits")
        found.append(value)
    return found


def compare(vectors: SumVectors, any_nan: bool) -> np.ndarray:
    """The indices of the rows that differ from the law; with any_nan, any NaN will do for a result that is NaN."""
    differs = np.zeros(len(vectors.columns["kind"]), bool)
    for name in vectors.present:
        differs |= _wrong(vectors, name, any_nan)
    return np.flatnonzero(differs)


def _wrong(vectors: SumVectors, name: str, any_nan: bool) -> np.ndarray:
    found, right = vectors.columns[name], vectors.expected[name]
    wrong = vectors.present[name] & (found != right)
    if any_nan and name == "result":
        numbers = [x.astype(np.uint32).view(np.float32) for x in (found, right)]
        wrong &= ~(np.isnan(numbers[0]) & np.isnan(numbers[1]))
    return wrong


def report(path: Path, vectors: SumVectors, differing: np.ndarray) -> str:
    """How many rows differ, by kind of input, and the steps of the first of them."""
    unit, kinds = vectors.unit, vectors.columns["kind"]
    compared = sum(int(present.sum()) for present in vectors.present.values())
    lines = [
        f"{path}: {len(differing)} of {len(kinds)} rows differ ({unit.accumulator}, {unit.terms} terms; {compared} "
        "fields compared)"
    ]
    for index, kind in enumerate(KINDS):
        wrong, total = int((kinds[differing] == index).sum()), int((kinds == index).sum())
        if total:
            lines.append(f"  {kind}: {wrong} of {total}")
    for row in differing[:SHOWN].tolist():
        lines += _steps(vectors, row)
    if len(differing) and vectors.version != __version__:
        lines.append(f"the file was written by version {vectors.version}, checked by {__version__}")
    return "\n".join(lines)


def _steps(vectors: SumVectors, row: int) -> Iterator[str]:
    """A row's fields by step, the law's; beside a field that differs, what was found."""
    unit = vectors.unit
    yield f"line {row + 2}, {KINDS[int(vectors.columns['kind'][row])]}:"
    groups: dict[str, list[str]] = {}
    for name, digits in unit.outputs.items():
        right, found = (int(columns[name][row]) for columns in (vectors.expected, vectors.columns))
        text = f"{name.rstrip('0123456789')} {right:0{digits}x}"
        if vectors.present[name][row] and found != right:
            text += f" (found {found:0{digits}x})"
        step = name.removeprefix(name.rstrip("0123456789"))
        groups.setdefault(f"step {step}: " if step else "", []).append(text)
    for step, texts in groups.items():
        yield f"  {step}{', '.join(texts)}"
