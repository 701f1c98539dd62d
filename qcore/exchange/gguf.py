"""GGUF files as they are: metadata, and tensors by name, type, shape and bytes.

A file is a magic word, a version and two counts; metadata, as pairs of a key and a typed value; a row for each tensor:
name, lengths of the axes from the last to the first, type, and offset; then the tensors' bytes. All numbers are
little-endian, and each tensor begins at a multiple of the file's alignment. All that a header says is checked before
memory is taken: a file may come from anybody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import check_regular, check_type, quoted
from qcore.exchange.formats.gguf_law import LAYOUTS
from qcore.files import replaced

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_MOST_AXES, _MOST_ELEMENTS = 4, 1 << 59  # of which NumPy counts the bytes
_MOST_NESTED = 4  # arrays of metadata inside of each other
_STRING, _ARRAY = 8, 9
# The dtypes of metadata by their number in files; 8 is a string, 9 an array.
_VALUES = {
    number: np.dtype(name)
    for number, name in {
        **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4"},
        **{6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
    }.items()
}
# Types of tensors by their number in files: a name, the elements of a block, and its bytes.
PLAIN = {
    **{"F32": (0, "<f4"), "F16": (1, "<f2"), "BF16": (30, "<u2"), "F64": (28, "<f8")},
    **{"I8": (24, "i1"), "I16": (25, "<i2"), "I32": (26, "<i4"), "I64": (27, "<i8")},
}
_TYPES = {
    **{number: (name, 1, np.dtype(dtype).itemsize) for name, (number, dtype) in PLAIN.items()},
    **{layout.code: (kind.upper(), layout.size, layout.width) for kind, layout in LAYOUTS.items()},
}
_NUMBERS = {name: number for number, (name, *_) in _TYPES.items()}
_UNREAD = {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M"}


class Tensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        type: its type as GGUF calls it: "Q4_K", "F32".
        shape: of its numbers.
        data: its bytes, uint8 of one dimension.
    """

    type: str
    shape: tuple[int, ...]
    data: np.ndarray


class Contents(NamedTuple):
    """What a file has: tensors by name, and metadata by key.

    Values of metadata are strings, NumPy numbers, arrays of them, and lists of strings or of arrays.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]


def read(path: str | os.PathLike[str]) -> Contents:
    """The tensors and the metadata of a GGUF file.

    The bytes of tensors stay in the file until they are used: they are parts of a memory map.

    Args:
        path: of a GGUF file of version 2 or 3.

    Returns:
        Tensors by name, in the order of the file, and metadata by key.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is cut off or contradicts itself, or a tensor has a type that is not known. The message
            names the tensor or the key.

    Source: ggml, docs/gguf.md.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     w = Tensor("Q8_0", (2, 32), np.zeros(68, np.uint8))
        ...     write(f"{folder}/w.gguf", {"w": w}, {"general.architecture": "llama"})
        ...     read(f"{folder}/w.gguf").tensors["w"].shape
        (2, 32)
    """
    check_type("path", path, (str, os.PathLike), "a str or os.PathLike")
    reader = _Reader(Path(path))
    reader.begin()
    count, pairs = reader.count("tensors", 24), reader.count("pairs of metadata", 13)
    metadata: dict[str, Any] = {}
    for index in range(pairs):
        reader.place = f"pair {index} of the metadata"
        key = reader.string()
        reader.place = f"metadata {quoted(key)}"
        if key in metadata:
            raise reader.error("comes twice", "once")
        metadata[key] = reader.value(reader.number("<u4"), _MOST_NESTED)
    rows = reader.tensors(count)
    alignment = metadata.get("general.alignment", np.uint32(_ALIGNMENT))
    known = int(alignment) if type(alignment) is np.uint32 else alignment
    if not isinstance(known, int) or known < 1 or known & (known - 1):
        raise ValueError(f"general.alignment of {reader.name} is {quoted(known)}; allowed is a power of two, a uint32")
    return Contents(_tensors(reader, rows, known), metadata)


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Writes a GGUF file of version 3.

    Args:
        path: of the file; an existing one is replaced.
        tensors: by name. Their data may have any shape and dtype with as many bytes as the type takes.
        metadata: by key. Values are str, bool, NumPy's numbers with their own types, NumPy arrays of one dimension,
            and lists of str; a Python int is a uint32 (or the first of int32, uint64 and int64 that holds it), and a
            Python float a float32.

    Returns:
        Nothing.

    Raises:
        TypeError: if an argument has the wrong type, or metadata a value without a type in GGUF.
        ValueError: if a tensor's type is not known, or its bytes are too many or too few for its shape.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(
        ...         f"{folder}/w.gguf",
        ...         {"b": Tensor("F32", (3,), np.float32([1, 2, 3]))},
        ...         {"general.name": "toy"},
        ...     )
        ...     contents = read(f"{folder}/w.gguf")
        >>> contents.metadata, contents.tensors["b"].data.view("<f4").tolist()
        ({'general.name': 'toy'}, [1.0, 2.0, 3.0])
    """
    check_type("path", path, (str, os.PathLike), "a str or os.PathLike")
    check_type("tensors", tensors, Mapping, "a dict")
    check_type("metadata", metadata, Mapping, "a dict")
    metadata = {key: value for key, value in metadata.items() if key != "general.alignment"}  # the default's
    head = [_MAGIC, _packed(3, "<u4"), _packed(len(tensors), "<u8"), _packed(len(metadata), "<u8")]
    for key, value in metadata.items():
        head += [_text(key, f"the key {quoted(key)} of metadata"), *_typed(value, f"metadata {quoted(key)}")]
    parts: list[Any] = []
    offset = 0
    for name, tensor in tensors.items():
        check_type(f"tensor {quoted(name)}", tensor, Tensor, "a Tensor")
        place = f"tensor {quoted(name)}"
        if tensor.type not in _NUMBERS:
            raise ValueError(f"{place} has type {quoted(tensor.type)}; allowed are {', '.join(_NUMBERS)}")
        axes = [*reversed(tensor.shape)]
        if not 0 < len(axes) <= _MOST_AXES:
            raise ValueError(f"{place} has shape {tensor.shape}; allowed are 1 to {_MOST_AXES} axes")
        size = _size_of(place, _NUMBERS[tensor.type], axes)
        data = np.ascontiguousarray(tensor.data)
        if data.nbytes != size:
            raise ValueError(f"{place} has {data.nbytes} bytes; allowed for {tensor.type} of {tensor.shape} are {size}")
        lengths = b"".join(_packed(length, "<u8") for length in axes)
        numbers = _packed(_NUMBERS[tensor.type], "<u4") + _packed(offset, "<u8")
        head += [_text(name, f"the name of {place}"), _packed(len(axes), "<u4"), lengths, numbers]
        filling = bytes(-size % _ALIGNMENT)
        parts += [data, filling]
        offset += size + len(filling)
    header = b"".join(head)
    with replaced(path) as fresh, fresh.open("wb") as file:
        file.write(header + bytes(-len(header) % _ALIGNMENT))
        for part in parts:
            file.write(part)


class _Row(NamedTuple):
    """What the header says of a tensor: the lengths are from the last axis to the first."""

    name: str
    axes: list[int]
    number: int
    offset: int


class _Reader:
    """Reads a header from a memory map. Messages name `place`; every length is compared with the rest of the file."""

    def __init__(self, path: Path) -> None:
        self.name, self.place, self.at = path.name, "the header", 0
        check_regular(path)
        size = path.stat().st_size
        self.data = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)

    @property
    def rest(self) -> int:
        return self.data.size - self.at

    def error(self, problem: str, allowed: str) -> ValueError:
        return ValueError(f"{self.place} of {self.name} {problem}; allowed is {allowed}")

    def bytes(self, size: int) -> np.ndarray:
        if size > self.rest:
            raise self.error(f"has {size} bytes where the file has {self.rest}", "a file that was not cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, dtype: str) -> int:
        return int(self.bytes(np.dtype(dtype).itemsize).view(dtype)[0])

    def count(self, what: str, least: int) -> int:
        """A number of things that take at least so many bytes each."""
        found = self.number("<u8")
        if found > self.rest // least:
            raise self.error(f"has {found} {what}", f"at most {self.rest // least}, for which the file has bytes")
        return found

    def string(self) -> str:
        text = self.bytes(self.number("<u8")).tobytes()
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"has the text {quoted(text[:60])}", "UTF-8") from None

    def begin(self) -> None:
        """Reads the magic word and the version."""
        if self.rest < 24 or self.bytes(4).tobytes() != _MAGIC:
            raise self.error(f"does not begin with {_MAGIC.decode()}", "a GGUF file")
        version = self.number("<u4")
        if version not in _VERSIONS:
            swapped = " in the order of bytes of big-endian machines" if version & 0xFFFF == 0 else ""
            raise self.error(f"has version {version}{swapped}", "version 2 or 3, little-endian")

    def value(self, type_: int, nested: int) -> Any:
        """A value of the metadata."""
        if type_ == _STRING:
            return self.string()
        if type_ == _ARRAY:
            return self.array(nested)
        if type_ not in _VALUES:
            raise self.error(f"has the type {type_}", f"one of {', '.join(map(str, sorted([*_VALUES, 8, 9])))}")
        return self.numbers(_VALUES[type_], 1)[0]

    def array(self, nested: int) -> Any:
        type_ = self.number("<u4")
        if type_ in _VALUES:
            return self.numbers(_VALUES[type_], self.count("numbers", _VALUES[type_].itemsize))
        if type_ == _ARRAY and nested == 0:
            raise self.error("has arrays inside of each other", f"{_MOST_NESTED} of them")
        return [self.value(type_, nested - 1) for _ in range(self.count("values", 8))]

    def numbers(self, dtype: np.dtype[Any], count: int) -> np.ndarray:
        found = self.bytes(count * dtype.itemsize)
        if dtype == np.bool_ and found.size and found.max() > 1:
            raise self.error(f"has the byte {found.max()}", "0 and 1 for bools")
        return found.view(dtype).astype(dtype.newbyteorder("="))

    def tensors(self, count: int) -> list[_Row]:
        rows: dict[str, _Row] = {}
        for index in range(count):
            self.place = f"tensor {index}"
            name = self.string()
            self.place = f"tensor {quoted(name)}"
            if name in rows:
                raise self.error("comes twice", "once")
            axes = self.number("<u4")
            if not 0 < axes <= _MOST_AXES:
                raise self.error(f"has {axes} axes", f"1 to {_MOST_AXES}")
            lengths = [self.number("<u8") for _ in range(axes)]
            rows[name] = _Row(name, lengths, self.number("<u4"), self.number("<u8"))
        return list(rows.values())


def _tensors(reader: _Reader, rows: list[_Row], alignment: int) -> dict[str, Tensor]:
    """The tensors, whose bytes lie inside of the file and do not overlap."""
    start = -(-reader.at // alignment) * alignment
    available = max(reader.data.size - start, 0)
    found: dict[str, Tensor] = {}
    ends: list[tuple[int, int, str]] = []
    for row in rows:
        place = reader.place = f"tensor {quoted(row.name)}"
        size = _size_of(f"{place} of {reader.name}", row.number, row.axes)
        if row.offset % alignment:
            raise reader.error(f"begins at byte {row.offset}", f"a multiple of {alignment}")
        if row.offset > available or size > available - row.offset:
            raise reader.error(
                f"has {size} bytes from byte {row.offset} on", f"what lies in the file's {available} bytes of tensors"
            )
        begin = start + row.offset
        found[row.name] = Tensor(_TYPES[row.number][0], tuple(reversed(row.axes)), reader.data[begin : begin + size])
        ends.append((row.offset, size, row.name))
    last = 0
    for offset, size, name in sorted(ends):
        if offset < last:
            reader.place = f"tensor {quoted(name)}"
            raise reader.error(f"begins at byte {offset}", f"a place from {last} on, where the one before ends")
        last = offset + size
    return found


def _size_of(name: str, number: int, axes: list[int]) -> int:
    """The bytes of a tensor; `axes` begin with the length of a row."""
    if number not in _TYPES:
        type_ = _UNREAD.get(number, str(number))
        raise ValueError(f"{name} has the type {type_}; allowed are {', '.join(_NUMBERS)}")
    if prod(max(length, 1) for length in axes) > _MOST_ELEMENTS:
        raise ValueError(f"{name} has the lengths {axes}; allowed are up to 2^59 elements")
    type_, size, width = _TYPES[number]
    if axes[0] % size:
        raise ValueError(f"{name} has rows of {axes[0]}; allowed for {type_} are multiples of {size}")
    return prod(axes) // size * width


def _packed(number: Any, dtype: Any) -> bytes:
    return np.array(number, dtype).tobytes()


def _text(text: Any, argument: str) -> bytes:
    check_type(argument, text, str, "a str")
    encoded = text.encode("utf-8")
    return _packed(len(encoded), "<u8") + encoded


def _typed(value: Any, name: str) -> list[bytes]:
    """A value of the metadata with its type before it."""
    if isinstance(value, str):
        return [_packed(_STRING, "<u4"), _text(value, name)]
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        head = _packed(_ARRAY, "<u4") + _packed(_STRING, "<u4") + _packed(len(value), "<u8")
        return [head, *(_text(one, name) for one in value)]
    if isinstance(value, list):
        parts = [_typed(one, name) for one in value]
        inner = {part[0][:4] for part in parts}
        if inner == {_packed(_ARRAY, "<u4")}:
            head = _packed(_ARRAY, "<u4") + _packed(_ARRAY, "<u4") + _packed(len(value), "<u8")
            return [head, *(b"".join(part)[4:] for part in parts)]
    if isinstance(value, np.ndarray) and value.ndim == 1:
        type_ = _type_of(value.dtype, name)
        head = _packed(_ARRAY, "<u4") + _packed(type_, "<u4") + _packed(value.size, "<u8")
        return [head, value.astype(_VALUES[type_]).tobytes()]
    if isinstance(value, int) and not isinstance(value, bool):
        fits = (one for one in ("u4", "i4", "u8", "i8") if np.iinfo(one).min <= value <= np.iinfo(one).max)
        dtype = next(fits, None)
        if dtype is None:
            raise ValueError(f"{name} is {value}; allowed are ints of 64 bits")
        value = np.array(value, dtype)[()]
    elif isinstance(value, float) and not isinstance(value, np.generic):
        value = np.float32(value)
    if isinstance(value, bool | np.generic):
        type_ = _type_of(np.asarray(value).dtype, name)
        return [_packed(type_, "<u4"), _packed(value, _VALUES[type_])]
    raise TypeError(
        f"{name} is a {type(value).__name__}; allowed are str, bool, int, float, NumPy's numbers, arrays of one "
        "dimension, and lists of str"
    )


def _type_of(dtype: np.dtype[Any], name: str) -> int:
    found = next((type_ for type_, one in _VALUES.items() if one == dtype), None)
    if found is None:
        raise TypeError(f"{name} has dtype {dtype}; allowed are bool, and ints and floats that GGUF has")
    return found
