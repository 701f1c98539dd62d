"""Conformance vectors: text files of inputs and the law's results, for comparison with other implementations.

The first line is a JSON object, the fields of `Header` and the number of rows. Each further line is a row, in
hexadecimal; `qcore.cli.layouts` has two more layouts:

| column | holds |
| --- | --- |
| input, output | bits of the header's dtype |
| code | empty if the format has no codes of up to 32 bits, or if float64 lacks some of its numbers |
| guard, round, sticky | of the input: the first and the second bit below the last place, the OR of the rest; only for |
| | formats whose last place follows from the exponent |
| scale | the code of the scale, for formats with shared scales and codes |
| word | the random integer of 24 bits that a stochastic rounding read: that of the row's index, from 0 on |

With shared scales the rows are an array of one dimension, cut into blocks from the first row on, as the format says; or
all rows are one block.

The inputs are chosen so that a wrong implementation of a format is likely to differ. To test an implementation, replace
the outputs or codes in a file by its results, and compare the file with the law.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arguments import check_seed, quoted
from qcore.arrays import decode, encode, quantize, random_words
from qcore.cli.comparison import Vectors, check_fields, first_line
from qcore.cli.layouts import Rows, rows_text
from qcore.cli.properties import digits, guard_bits, has_last_place, properties, subnormal, why_no_codes
from qcore.files import write_text
from qcore.formats.block import BlockNumber, BlockScaled
from qcore.formats.foreign import BytesNumber, ForeignNumber
from qcore.formats.number import Number, check_number
from qcore.formats.posit import Posit
from qcore.law.carrier import CARRIERS
from qcore.law.rounding import Rounding, RoundingName
from qcore.packing import storage


@dataclass(frozen=True)
class Header:
    """The first line of a file: everything on which the results depend.

    Attributes:
        format: the format's text.
        rounding: the rounding mode.
        dtype: of inputs and outputs.
        overflow: the policy, or None for the format's own.
        key: for stochastic rounding, else None.
        version: of the library that wrote the file.
    """

    format: str
    rounding: RoundingName
    dtype: str
    overflow: str | None
    key: int | None
    version: str

    @property
    def number(self) -> Number:
        """The format that the text stands for."""
        return check_number(self.format, "format")

    def law(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """The bits of the outputs, codes, scales and words of `digits`, for inputs; codes are 0 if there are none."""
        number, found = self.number, dict[str, np.ndarray]()
        found["output"] = bits_of(quantize(x, number, self.rounding, key=self.key, overflow=self.overflow))
        found["code"] = np.zeros(x.size, np.uint32)
        if not why_no_codes(number):
            codes: Any = encode(x, number, self.rounding, key=self.key, overflow=self.overflow)
            if isinstance(number, BlockNumber):
                codes, scales = codes
                scales = bits_of(scales[0] if isinstance(scales, tuple) else scales)
                found["scale"] = scales.repeat(number.block_sizes(1)[0] or x.size)[: x.size]
            found["code"] = codes
        if has_last_place(number):
            found |= guard_bits(self.decode("input", bits_of(x)), number)
        if self.key is not None:
            words = random_words(x.shape, check_seed(self.key), (0, 0), _RANDOM_BITS, False)
            found["word"] = words >> (31 - _RANDOM_BITS)
        return {name: found[name] for name in self.digits()}

    def digits(self) -> dict[str, int]:
        """Hexadecimal digits of the results' columns; of codes 0 if the format has none."""
        number = self.number
        found = {
            "output": dtype_of(self.dtype).itemsize * 2,
            "code": 0 if why_no_codes(number) else digits(number.bits),
        }
        if has_last_place(number):
            found |= {"guard": 1, "round": 1, "sticky": 1}
        if isinstance(number, BlockNumber) and found["code"]:
            found["scale"] = self.scale_dtype.itemsize * 2
        return found if self.key is None else found | {"word": _RANDOM_BITS // 4}

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """The dtype of blocks' scales."""
        number: Any = self.number
        if number.scale_format is not None:
            return np.dtype(f"u{storage(number.scale_bits) // 8}")
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)

    def decode(self, column: str, bits: np.ndarray) -> np.ndarray:
        """The numbers that the bits of a column stand for, in float64; of words and single bits the integers."""
        number: Any = self.number
        if column in ("word", *_BITS):
            return bits.astype(np.float64)
        if column in ("input", "output"):
            with np.errstate(invalid="ignore"):  # signalling NaN
                return bits.view(dtype_of(self.dtype)).astype(np.float64)
        if column == "scale" and self.scale_dtype.kind == "f":
            return bits.astype(f"u{self.scale_dtype.itemsize}").view(self.scale_dtype).astype(np.float64)
        if column == "scale":
            number = number.scale_format
        elif isinstance(number, BlockScaled):
            number = number.element
        return decode(bits, number, np.float64)


def write(path: Path, header: Header, count: int, seed: int) -> str:
    """Writes the vectors for a law; returns how many lines of them there are, and what they cover."""
    dtype = dtype_of(header.dtype)
    _check_format(header.number)
    header.law(np.empty(0, dtype))  # raises for wrong arguments before the work begins
    x = vector_inputs(header.number, dtype, count, seed)
    sizes, law = header.digits(), header.law(x)
    columns = {"input": bits_of(x), **law}
    write_text(path, rows_text(path, asdict(header), {"input": sizes["output"], **sizes}, columns))
    where = kinds(header, bits_of(x), law).items()
    found = ", ".join(f"{np.sum(rows)} {name}" for name, rows in where if np.any(rows))
    return f"{path}: {len(x)} lines ({header.format}, {header.rounding}, {header.dtype})\ninputs: {found}"


ALL_BITS = 12  # for formats of up to 12 bits the inputs include all values
SAMPLES = 1024  # the number of values of larger formats; their neighbours are added
_RANDOM_BITS = 24  # that roundings read here
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


def _check_format(number: Number) -> None:
    if isinstance(number, ForeignNumber):
        what = "is a layout of bytes" if isinstance(number, BytesNumber) else "has scales of scales"
        raise ValueError(f"format={quoted(number.text)} {what}; allowed are formats other than gguf() and nested=")


def vector_inputs(number: Number, dtype: np.dtype[Any], count: int, seed: int) -> np.ndarray:
    """Numbers of the format, midpoints between them, overflow thresholds and special values, each with its neighbours.

    Args:
        number: the format; for blocks see `_blocks`.
        dtype: of the result.
        count: how many random ones follow: bit patterns, then as many numbers inside the format's range.
        seed: of these, and of the sample where a format has too many numbers to take them all.

    Returns:
        An array of one dimension: the points in the order of their bits, each once, then the random ones.
    """
    _check_format(number)
    rng = np.random.default_rng(seed)
    if isinstance(number, BlockNumber):
        return _blocks(number, dtype, count, seed)
    values = _values(number, dtype, rng)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan]
    with np.errstate(all="ignore"):
        points = np.concatenate([values, _midpoints(number, values), _edges(number), special]).astype(dtype)
    bits = bits_of(points)
    near = np.unique(np.concatenate([bits, bits + 1, bits - 1]))
    random = _random_bits(dtype, count - count // 2, rng).view(dtype)
    return np.concatenate([near.view(dtype), random, _inside(number, dtype, count // 2, rng)])


def _inside(number: Number, dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> np.ndarray:
    """Random numbers from a format's smallest number to its largest, as many of each exponent."""
    known = properties(number)
    signed, largest = bool(known.lowest.count), known.largest if known.largest.count else known.lowest
    lowest, highest = _exponents(dtype)
    top = min(largest.log2, highest)
    bottom = min(max(known.smallest.log2 if known.smallest else top, lowest), top)
    x = np.ldexp(rng.uniform(1, 2, count), rng.integers(bottom, top, count, endpoint=True))
    x = np.minimum(
        x, float(abs(Fraction(largest.count)) * Fraction(2) ** largest.exponent) if largest.log2 <= highest else np.inf
    )
    sign = 1 - 2 * rng.integers(0, 2, count) if signed and known.largest.count else 1 - 2 * int(signed)
    return (x * sign).astype(dtype)


def _exponents(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The exponents of a dtype's smallest and largest number."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    largest = (bits_of(np.array(np.inf, dtype)) - 1).astype(unsigned).view(dtype)
    ends = np.ones(1, unsigned).view(dtype)[0], largest
    lowest, highest = (int(np.frexp(float(end))[1]) - 1 for end in ends)
    return lowest, highest


def _blocks(number: Any, dtype: np.dtype[Any], count: int, seed: int) -> np.ndarray:
    """Blocks of the elements' hard inputs under scales from the whole range; then random bits and normal numbers.

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
    inside = more if together else more // 2 // size * size
    random = _random_bits(dtype, more - inside, rng).view(dtype), rng.standard_normal(inside).astype(dtype)
    return np.concatenate([first.ravel(), blocks.ravel(), *random])


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
    for mode, end in ((Rounding.DOWN, -np.inf), (Rounding.UP, np.inf)):
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


_BITS = "guard", "round", "sticky"
_TYPES = dict.fromkeys(("format", "rounding", "dtype", "version"), (str,)) | {
    "overflow": (str, type(None)),
    "key": (int, type(None)),
}


@dataclass(frozen=True)
class FormatVectors(Vectors):
    """The contents of a file of vectors of a format; given are the bit patterns of the inputs."""

    law: Header

    rows = "lines"

    @property
    def text(self) -> str:
        return f"{self.law.format}, {self.law.rounding}, {self.law.dtype}"

    @cached_property
    def expected(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        return self.law.law(self.given.view(dtype_of(self.law.dtype)))

    def numbers(self, name: str, bits: np.ndarray) -> np.ndarray:
        return self.law.decode(name, bits)

    def groups(self, differing: np.ndarray) -> Iterator[str]:
        if len(differing):
            for name, where in kinds(self.law, self.given, self.expected).items():
                if where.any():
                    yield f"  {name}: {where[differing].sum()} of {where.sum()}"

    def shown(self, row: int, first: bool) -> Iterator[str]:
        expected, sizes, one = self.expected, self.law.digits(), slice(row, row + 1)
        start = "the first is" if first else "then"
        shown = _shown(self.law, "input", self.given[one], sizes["output"])
        yield f"{start} line {self.lines[row]}: input {shown}"
        if "guard" in expected:
            yield "  " + ", ".join(f"{name} {expected[name][row]}" for name in _BITS)
        for name, column in self.found.items():
            if column.present[row] and (name not in _BITS or column.differs(expected[name])[row]):
                right, bits = expected[name][one], column.values[one].astype(expected[name].dtype)
                found = column.undefined.get(row) or _shown(self.law, name, bits, sizes[name])
                yield f"  {name}: expected {_shown(self.law, name, right, sizes[name])}, found {found}"


def read(rows: Rows) -> FormatVectors:
    """The contents of a file of vectors of a format."""
    header = _header(rows)
    sizes = header.digits()
    columns = rows.columns({"input": sizes["output"], **sizes}, 1)
    inputs = columns.pop("input").values.astype(f"u{sizes['output'] // 2}")
    return FormatVectors(header, header.version, inputs, columns, rows.lines)


def _header(rows: Rows) -> Header:
    names = [field.name for field in fields(Header)]
    found = {name: value for name, value in rows.header.items() if name != "rows"}
    with first_line(rows):
        if set(found) != set(names):
            raise ValueError(
                f"{quoted(', '.join(found)[:60])}; allowed is a JSON object with exactly {', '.join(names)}, rows"
            )
        header = Header(**check_fields(found, _TYPES))
        if header.dtype not in CARRIERS:
            raise ValueError(f"dtype={quoted(header.dtype)}; allowed are {', '.join(CARRIERS)}")
        header.law(np.empty(0, dtype_of(header.dtype)))
    return header


def kinds(header: Header, inputs: np.ndarray, law: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The kinds of inputs: True for each row of a kind, and each row has one."""
    x, known = header.decode("input", inputs), properties(header.number)
    y = header.decode("output", law["output"])
    largest, smallest = known.largest, known.smallest
    found = {"NaN": np.isnan(x), "infinity": np.isinf(x), "zero": x == 0, "numbers of the format": y == x}
    if "guard" in law:
        found["ties"] = (law["guard"] & ~(law["round"] | law["sticky"]) & 1) > 0
    if not isinstance(header.number, BlockNumber):  # blocks have no range of their own
        top, bottom = (end.log2 if end and end.count else None for end in (largest, smallest))
        exponents = np.frexp(x)[1] - 1
        found |= {"beyond the largest exponent": exponents > top} if top is not None else {}
        found |= {"below the smallest number": exponents < bottom} if bottom is not None else {}
    if "guard" in law:
        found["carries into the next exponent"] = np.isfinite(y) & (np.frexp(y)[1] > np.frexp(x)[1])
        found["subnormal numbers"] = subnormal(x, header.number)
    rest = np.ones(x.shape, bool)
    for name, where in (found | {"numbers between": rest.copy()}).items():
        found[name] = where & rest
        rest &= ~where
    return found


def _shown(header: Header, column: str, bits: np.ndarray, size: int) -> str:
    text = f"{int(bits[0]):0{size}x}"
    return text if column in _BITS else f"{text} = {quoted(float(header.decode(column, bits)[0]))}"
