"""Conformance vectors: text files of inputs and the law's results, for comparison with other implementations.

The first line is a JSON object, the fields of `Header`. Each further line is `input_bits,output_bits,code`, in
hexadecimal; the code is empty if the format has no codes of up to 32 bits, or if float64 lacks some of its numbers. The
random word of stochastic rounding is that of the line's index among these lines, from 0 on.

For formats with shared scales and codes, lines have a fourth field, the code of the scale. The lines are an array of
one dimension, cut into blocks from the first line on, as the format says; or all lines are one block.

The inputs are chosen so that a wrong implementation of a format is likely to differ. To test an implementation, replace
the outputs or codes in a file by its results, and compare the file with the law.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.arrays import decode, encode, quantize
from qcore.cli.properties import properties, why_no_codes
from qcore.files import write_text
from qcore.formats.block import BlockNumber, BlockScaled
from qcore.formats.doubled import Doubled
from qcore.formats.gguf import GGUF
from qcore.formats.number import Number, check_number
from qcore.formats.posit import Posit
from qcore.law.carrier import CARRIERS
from qcore.packing import storage
from qcore.version import __version__


@dataclass(frozen=True)
class Header:
    """The first line of a file: everything on which the results depend.

    Attributes:
        format: the format's text.
        mode: the rounding mode.
        dtype: of inputs and outputs.
        overflow: the policy, or None for the format's own.
        key: for stochastic rounding, else None.
        version: of the library that wrote the file.
    """

    format: str
    mode: str
    dtype: str
    overflow: str | None
    key: int | None
    version: str

    @property
    def number(self) -> Number:
        """The format that the text stands for."""
        return check_number(self.format, "format")

    def law(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """The outputs for inputs, their codes if the format has any, and for blocks the codes of their scales."""
        number = self.number
        outputs = quantize(x, number, self.mode, key=self.key, overflow=self.overflow)
        if why_no_codes(number):
            return (outputs,)
        codes = encode(x, number, self.mode, key=self.key, overflow=self.overflow)
        if not isinstance(number, BlockNumber):
            return outputs, codes
        codes, scales = codes
        scales = bits_of(scales[0] if isinstance(scales, tuple) else scales)
        return outputs, codes, scales.repeat(number.block_sizes(1)[0] or x.size)[: x.size]

    def digits(self) -> tuple[int, ...]:
        """Hexadecimal digits of bit patterns, of codes, which are 0 where there are none, and for blocks of scales."""
        number = self.number
        digits = dtype_of(self.dtype).itemsize * 2, 0 if why_no_codes(number) else -(-number.bits // 4)
        if not isinstance(number, BlockNumber) or not digits[1]:
            return digits
        return *digits, self.scale_dtype.itemsize * 2

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """The dtype of blocks' scales."""
        number: Any = self.number
        if number.scale_format is not None:
            return np.dtype(f"u{storage(number.scale_bits) // 8}")
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)

    def decode(self, column: int, codes: np.ndarray) -> np.ndarray:
        """The numbers with these codes, in float64: of column 1 elements', of column 2 scales'."""
        number: Any = self.number
        if column == 2 and self.scale_dtype.kind == "f":
            return codes.astype(f"u{self.scale_dtype.itemsize}").view(self.scale_dtype).astype(np.float64)
        if column == 2:
            number = number.scale_format
        elif isinstance(number, BlockScaled):
            number = number.element
        return decode(codes, number, np.float64)


def write(path: Path, header: Header, count: int, seed: int) -> int:
    """Writes the vectors for a law; returns how many lines of them there are."""
    dtype = dtype_of(header.dtype)
    header.law(np.empty(0, dtype))  # raises for wrong arguments before the work begins
    x = vector_inputs(header.number, dtype, count, seed)
    columns = [[f"{bits:0{header.digits()[0]}x}" for bits in bits_of(x).tolist()]]
    results = header.law(x)
    for column, digits in zip((bits_of(results[0]), *results[1:]), header.digits(), strict=False):
        columns.append([f"{bits:0{digits}x}" for bits in column.tolist()])
    if len(results) == 1:
        columns.append([""] * len(x))
    lines = [json.dumps(asdict(header)), *map(",".join, zip(*columns, strict=True))]
    write_text(path, "\n".join(lines) + "\n")
    return len(x)


ALL_BITS = 12  # for formats of up to 12 bits the inputs include all values
SAMPLES = 1024  # the number of values of larger formats; their neighbours are added
BLOCK, BLOCKS = 32, 64  # the elements of a block if the format allows any number; the fewest blocks


def dtype_of(name: str) -> np.dtype[Any]:
    """A carrier's dtype by name; bfloat16 needs ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bit patterns of an array."""
    return x.view(f"u{x.dtype.itemsize}")


def vector_inputs(number: Number, dtype: np.dtype[Any], count: int, seed: int) -> np.ndarray:
    """Numbers of the format, midpoints between them, overflow thresholds and special values, each with its neighbours.

    Args:
        number: the format; for blocks see `_blocks`.
        dtype: of the result.
        count: how many random bit patterns follow.
        seed: of these, and of the sample where a format has too many numbers to take them all.

    Returns:
        An array of one dimension: the points in the order of their bits, each once, then the random ones.
    """
    rng = np.random.default_rng(seed)
    if isinstance(number, GGUF | Doubled):
        what = "is a layout of bytes" if isinstance(number, GGUF) else "has scales of scales"
        raise ValueError(f"format={quoted(number.text)} {what}; allowed are formats other than gguf() and nested=")
    if isinstance(number, BlockNumber):
        return _blocks(number, dtype, count, seed)
    values = _values(number, dtype, rng)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan]
    with np.errstate(all="ignore"):
        points = np.concatenate([values, _midpoints(number, values), _edges(number), special]).astype(dtype)
    bits = bits_of(points)
    near = np.unique(np.concatenate([bits, bits + 1, bits - 1]))
    return np.concatenate([near, _random_bits(dtype, count, rng)]).view(dtype)


def _blocks(number: Any, dtype: np.dtype[Any], count: int, seed: int) -> np.ndarray:
    """Blocks of the elements' hard inputs under scales from the whole range, and of random bit patterns.

    The first blocks have: only zeros, a NaN, an infinity, the dtype's smallest number, its largest, and the number just
    below a power of two. If all blocks share a scale, or there is only one block, all numbers are near 1, and random
    numbers replace random bit patterns; a single block has no NaN and no infinity.
    """
    size = number.tile_sizes(1)[0]
    size = size[0] if isinstance(size, tuple) else size
    rng, whole = np.random.default_rng(seed), size is None
    size = BLOCK if whole else size
    with np.errstate(invalid="ignore"):  # signalling NaN
        points = vector_inputs(number.element, dtype, 0, seed).astype(np.float64)
    points = rng.permutation(points[np.isfinite(points)])
    points = np.resize(points, (max(-(-len(points) // size), BLOCKS), size))
    together, unsigned = whole or number.tensor_scale is not None, f"u{dtype.itemsize}"
    smallest = np.ones(1, unsigned).view(dtype)[0]
    largest = (bits_of(np.array(np.inf, dtype)) - 1).astype(unsigned).view(dtype)
    ends = (2.0**-12, 2.0**4) if together else (smallest, largest)
    lowest, highest = (np.frexp(float(end))[1] for end in ends)
    room = np.frexp(np.abs(points).max(1, keepdims=True))[1]
    exponents = rng.integers(lowest, highest, points.shape[:1], endpoint=True)[:, None] - room
    exponents[::2] = np.minimum(0, highest - room[::2])
    with np.errstate(all="ignore"):
        blocks = np.ldexp(points, exponents).astype(dtype)
    first = np.repeat(blocks[:1], 6, 0)
    first[0] = np.where(np.arange(size) % 2, -0.0, 0.0)
    first[3] = 0
    special = (1, -1) if whole else (np.nan, -np.inf)
    first[1:, 0] = *special, smallest, ends[1], np.nextafter(dtype.type(2), dtype.type(0))
    more = -(-count // size) * size
    random = rng.standard_normal(more).astype(dtype) if together else _random_bits(dtype, more, rng).view(dtype)
    return np.concatenate([first.ravel(), blocks.ravel(), random])


def _random_bits(dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> np.ndarray:
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True)


def _values(number: Number, dtype: np.dtype[Any], rng: np.random.Generator) -> np.ndarray:
    """Numbers of the format in float64: all, or a sample; without codes, rounded random numbers."""
    if why_no_codes(number):
        x = _random_bits(dtype, SAMPLES, rng).view(dtype)
        with np.errstate(all="ignore"):
            return quantize(x, number, "nearest").astype(np.float64)
    every = number.bits <= ALL_BITS
    codes = np.arange(1 << number.bits) if every else rng.integers(0, 1 << number.bits, SAMPLES)
    return decode(codes, number, np.float64)


def _midpoints(number: Number, values: np.ndarray) -> np.ndarray:
    """The midpoints between each number and the next ones above and below it, of posits those of their codes."""
    around = [values]
    for mode, end in (("down", -np.inf), ("up", np.inf)):
        following = quantize(np.nextafter(values, end), number, mode)
        around += [values / 2 + following / 2, following]
        if isinstance(number, Posit):
            exponents = np.frexp(values)[1] + np.frexp(following)[1] - 2
            around.append(np.ldexp(np.sign(values), exponents // 2))
    return np.concatenate(around)


def _edges(number: Number) -> np.ndarray:
    """Where numbers begin to overflow and to vanish: the outermost numbers, and half and whole steps from there."""
    known = properties(number)
    halves = [(4 * end.count, end) for end in (known.largest, known.lowest)]
    halves += [(2 * end.count + step, end) for end in (known.largest, known.lowest) for step in (-2, -1, 0, 1, 2)]
    halves += [(count, known.smallest) for count in (1, 2, 3) if known.smallest]
    with np.errstate(over="ignore"):
        edges = np.array([np.ldexp(float(count), max(min(end.exponent - 1, 9999), -9999)) for count, end in halves])
    return np.concatenate([edges, -edges])


_NUMBER = re.compile(r"(?:0x)?([0-9a-f]*)", re.IGNORECASE)
_COLUMNS = ("output", "code", "scale")
_TYPES = {"overflow": (str, type(None)), "key": (int, type(None))}


@dataclass(frozen=True)
class Vectors:
    """The contents of a file of vectors.

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
            wrong &= ~(np.isnan(_numbers_of(header, column, actual)) & np.isnan(_numbers_of(header, column, right)))
        differs |= wrong
    return np.flatnonzero(differs)


def _expected(vectors: Vectors) -> list[np.ndarray]:
    header = vectors.header
    outputs, *codes = header.law(vectors.inputs.view(dtype_of(header.dtype)))
    return [bits_of(outputs), *(codes or [np.zeros(len(outputs), np.uint32)])]


def _numbers_of(header: Header, column: int, bits: np.ndarray) -> np.ndarray:
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
    return f"{int(bits[0]):0{digits}x} = {quoted(float(_numbers_of(header, column, bits)[0]))}"
