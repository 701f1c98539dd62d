"""Results of others against the law, bit by bit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.cli.inputs import bits_of, dtype_of
from qcore.cli.vectors import Header
from qcore.law.carrier import CARRIERS
from qcore.version import __version__

_NUMBER = re.compile(r"(?:0x)?([0-9a-f]*)", re.IGNORECASE)
_COLUMNS = ("output", "code", "scale")
_TYPES = {"overflow": (str, type(None)), "key": (int, type(None))}


@dataclass(frozen=True)
class Vectors:
    """A file of vectors, as it was read.

    Attributes:
        header: its first line.
        inputs: the bit patterns of the inputs.
        results: for output bits, codes and, of blocks, scales: what the file has, and where it has any.
    """

    header: Header
    inputs: np.ndarray
    results: tuple[tuple[np.ndarray, np.ndarray], ...]


def read(path: Path) -> Vectors:
    """Reads a file of vectors."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = [line.strip() for line in file]
    while lines and not lines[-1]:
        del lines[-1]
    header = _header(path, lines[0] if lines else "")
    if len(lines) < 2:
        raise ValueError(f"{path}, line 2: the file ends; allowed are lines of input_bits,output_bits,code")
    digits = header.digits()
    dtype = f"u{digits[0] // 2}"
    inputs, *results = zip(*_rows(path, lines[1:], digits), strict=True)
    types = (dtype, *("u4",) * (len(results) - 1))
    return Vectors(header, np.array(inputs, dtype), tuple(map(_column, results, types)))


def _header(path: Path, line: str) -> Header:
    names = [field.name for field in fields(Header)]
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, line 1: {error}; allowed is a JSON object with {', '.join(names)}") from None
    if not isinstance(found, dict) or set(found) != set(names):
        raise ValueError(
            f"{path}, line 1: {quoted(line[:60])}; allowed is a JSON object with exactly {', '.join(names)}"
        )
    for name in names:
        if not isinstance(found[name], _TYPES.get(name, str)):
            raise ValueError(f"{path}, line 1: {name} is {quoted(found[name])}; allowed is what `vectors` wrote")
    header = Header(**found)
    try:
        if header.dtype not in CARRIERS:
            raise ValueError(f"dtype={quoted(header.dtype)}; allowed are {', '.join(CARRIERS)}")
        header.law(np.empty(0, dtype_of(header.dtype)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}, line 1: {error}") from error
    return header


def _rows(path: Path, lines: list[str], digits: tuple[int, ...]) -> Iterator[tuple[int | None, ...]]:
    names = ("input_bits", "output_bits", "code", "scale")[: len(digits) + 1]
    wanted = (digits[0], *digits)
    for index, line in enumerate(lines):
        found = [_NUMBER.fullmatch(field) for field in line.split(",")]
        texts = [match[1] if match else None for match in found]
        long = len(texts) != len(wanted) or None in texts or any(map(_too_long, texts, wanted))
        if long or not texts[0] or not any(texts[1:]):
            raise ValueError(
                f"{path}, line {index + 2}: {quoted(line[:60])}; allowed is {','.join(names)} in hexadecimal, "
                f"{wanted[0]} digits, {', '.join(map(str, digits[:-1]))} and {digits[-1]}, all but input_bits "
                "possibly empty"
            )
        yield tuple(int(text, 16) if text else None for text in texts)


def _too_long(text: Any, digits: int) -> bool:
    return len(text.lstrip("0")) > digits or bool(text and not digits)


def _column(values: tuple[int | None, ...], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    present = np.array([value is not None for value in values])
    return np.array([value or 0 for value in values], dtype), present


def compare(vectors: Vectors, any_nan: bool) -> np.ndarray:
    """The indices of the lines that differ from the law.

    Args:
        vectors: the file.
        any_nan: whether any NaN will do where the law has one, in output bits and in codes.
    """
    header, expected = vectors.header, _expected(vectors)
    differs = np.zeros(len(vectors.inputs), bool)
    for column, ((actual, present), right) in enumerate(zip(vectors.results, expected, strict=True)):
        wrong = present & (actual != right)
        if any_nan and wrong.any():
            wrong &= ~(np.isnan(_values(header, column, actual)) & np.isnan(_values(header, column, right)))
        differs |= wrong
    return np.flatnonzero(differs)


def _expected(vectors: Vectors) -> list[np.ndarray]:
    header = vectors.header
    outputs, *codes = header.law(vectors.inputs.view(dtype_of(header.dtype)))
    return [bits_of(outputs), *(codes or [np.zeros(len(outputs), np.uint32)])]


def _values(header: Header, column: int, bits: np.ndarray) -> np.ndarray:
    """The numbers that output bits (column 0), codes (1) or scales (2) stand for."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return bits.view(dtype_of(header.dtype)).astype(np.float64) if column == 0 else header.decode(column, bits)


def report(path: Path, vectors: Vectors, differing: np.ndarray) -> str:
    """How many lines differ, and the first of them."""
    header, total = vectors.header, len(vectors.inputs)
    counts = [f"{present.sum()} {name}s" for name, (_, present) in zip(_COLUMNS, vectors.results, strict=False)]
    compared = " and ".join([", ".join(counts[:-1]), counts[-1]])
    law = f"{header.format}, {header.mode}, {header.dtype}"
    summary = f"{path}: {len(differing)} of {total} lines differ ({law}; {compared} compared)"
    if not len(differing):
        return summary
    return "\n".join([summary, *_first(vectors, int(differing[0]))])


def _first(vectors: Vectors, index: int) -> Iterator[str]:
    header = vectors.header
    digits = header.digits()
    yield f"the first is line {index + 2}: input {_shown(header, 0, vectors.inputs[index : index + 1], digits[0])}"
    for column, ((actual, present), right) in enumerate(zip(vectors.results, _expected(vectors), strict=True)):
        if not present[index]:
            continue
        shown = [_shown(header, column, bits[index : index + 1], digits[column]) for bits in (right, actual)]
        yield f"  {_COLUMNS[column]}: expected {shown[0]}, found {shown[1]}"
    if header.version != __version__:
        yield f"the file was written by version {header.version}, checked by {__version__}"


def _shown(header: Header, column: int, bits: np.ndarray, digits: int) -> str:
    return f"{int(bits[0]):0{digits}x} = {quoted(float(_values(header, column, bits)[0]))}"
