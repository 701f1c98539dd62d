"""Safetensors files as they are: names, dtypes, shapes and bytes.

A file is an 8-byte length (little-endian), a JSON header of that length, and the tensors' bytes. The package
safetensors has no NumPy dtypes of 4 and 6 bits, nor float8, so files are read and written here. All that a header says
is checked before memory is taken for a tensor: its file may come from anybody.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import check_regular, quoted
from qcore.exchange.encoded import Content
from qcore.files import replaced

_LONGEST = 100_000_000  # bytes of a header, as in the package safetensors
_MOST_BYTES = 1 << 62

# The dtypes whose elements are whole bytes of a NumPy dtype, and those whose elements are codes of a format.
PLAIN = {
    "BOOL": np.bool_,
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits // 8}") for kind in "UI" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "C64": np.dtype("c8"),
}
CODED = {
    "F8_E4M3": "e4m3fn",
    "F8_E5M2": "e5m2",
    "F8_E8M0": "e8m0fnu",
    "F8_E4M3FNUZ": "e4m3fnuz",
    "F8_E5M2FNUZ": "e5m2fnuz",
    "F6_E2M3": "e2m3fn",
    "F6_E3M2": "e3m2fn",
    "F4": "e2m1fn",
}
_BITS = {
    **{name: 8 * np.dtype(dtype).itemsize for name, dtype in PLAIN.items()},
    **{name: int(name[1]) for name in CODED},
    "BF16": 16,
}


class Tensor(NamedTuple):
    """A tensor of a file: its dtype as the file calls it, its shape, and where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    begin: int
    size: int

    def bytes(self) -> np.ndarray:
        """The bytes, uint8 of shape (size,)."""
        found = np.fromfile(self.path, np.uint8, self.size, offset=self.begin)
        if found.size != self.size:
            raise ValueError(f"tensor {quoted(self.name)} of {self.path.name} ends early: the file was cut off")
        return found

    def content(self) -> Content:
        """The tensor as it is in the file."""
        return Content(self.dtype, self.shape, self.bytes())

    def array(self) -> np.ndarray:
        """The numbers of a plain dtype, the codes of others: uint8 of 8 bits, of packed ones bytes in one dimension."""
        data = self.bytes()
        if self.dtype == "BF16":
            return data.view("<u2").astype("u2", copy=False).view(bfloat16()).reshape(self.shape)
        if self.dtype in CODED:
            return data.reshape(self.shape) if _BITS[self.dtype] == 8 else data
        if self.dtype == "BOOL" and data.size and data.max() > 1:
            raise ValueError(f"tensor {quoted(self.name)} has the byte {data.max()}; allowed in BOOL are 0 and 1")
        dtype = np.dtype(PLAIN[self.dtype])
        return data.view(dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(self.shape)


def bfloat16() -> Any:
    """The dtype of ml_dtypes, which NumPy lacks."""
    try:
        return import_module("ml_dtypes").bfloat16
    except ImportError as error:
        raise ImportError("NumPy arrays of bfloat16 need ml_dtypes: pip install ml_dtypes") from error


def read_header(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file, whose header is checked.

    Raises:
        ValueError: if the file is not a safetensors file; the message names the tensor that is wrong.
    """
    check_regular(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST):
            raise ValueError(
                f"{path.name} has {size} bytes, and a header of {length}; allowed is a safetensors file, whose header "
                f"fits in the file and has at most {_LONGEST} bytes"
            )
        text = file.read(length)
    entries = _parsed(path, text)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"__metadata__ of {path.name} is {quoted(metadata)}; allowed is a dict of strings")
    begin = 8 + length
    tensors = {name: _tensor(path, name, entry, begin, size - begin) for name, entry in entries.items()}
    place = begin
    for one in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.size)):
        if one.begin != place:
            raise ValueError(
                f"tensor {quoted(one.name)} of {path.name} begins at byte {one.begin - begin}; allowed is "
                f"{place - begin}, where the one before ends"
            )
        place += one.size
    if place != size:
        raise ValueError(f"{path.name} has {size - begin} bytes of tensors; allowed are {place - begin}, by its header")
    return tensors, metadata


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    """The header's JSON, in which no name comes twice."""
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                twice.append(name)
            found[name] = value
        return found

    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header of {path.name} is not JSON in UTF-8: {error}") from error
    if twice:
        raise ValueError(f"{path.name} has the name {quoted(twice[0])} twice; allowed is once")
    if not isinstance(found, dict):
        raise ValueError(f"the header of {path.name} is a {type(found).__name__}; allowed is a dict")
    return found


def _tensor(path: Path, name: str, entry: Any, begin: int, available: int) -> Tensor:
    place = f"tensor {quoted(name)} of {path.name}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{place} is {quoted(entry)}; allowed are dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"{place} has dtype {quoted(dtype)}; allowed are {', '.join(_BITS)}")
    if not _are_counts(shape) or len(shape) > 32:
        raise ValueError(f"{place} has shape {quoted(shape)}; allowed are up to 32 ints from 0 on")
    if prod(max(length, 1) for length in shape) * 8 > _MOST_BYTES:  # NumPy counts 8 bytes an element at most
        raise ValueError(f"{place} has shape {quoted(shape)}; allowed are up to 2^59 elements")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= available:
        raise ValueError(
            f"{place} has data_offsets {quoted(offsets)}; allowed are a begin and an end within the file's {available} "
            "bytes of tensors"
        )
    bits, size = prod(shape) * _BITS[dtype], offsets[1] - offsets[0]
    if bits != 8 * size:
        raise ValueError(f"{place} has {size} bytes; allowed for {dtype} of shape {shape} are {bits / 8:.15g}")
    return Tensor(name, dtype, tuple(shape), path, begin + offsets[0], size)


def _are_counts(given: Any) -> bool:
    return isinstance(given, list) and all(type(one) is int and one >= 0 for one in given)


def content_of(array: np.ndarray) -> Content:
    """An array of a dtype that files have."""
    name = next((name for name, dtype in PLAIN.items() if array.dtype == dtype), None)
    if array.dtype.name == "bfloat16":
        name, array = "BF16", array.view("u2")
    if name is None:
        raise ValueError(f"an array of {array.dtype}; safetensors files have {', '.join(PLAIN)} and BF16")
    return Content(name, array.shape, np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)))


def write_file(path: str | os.PathLike[str], tensors: Mapping[str, Content], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file; tensors of longer elements come first, so that all are aligned."""
    order = sorted(tensors, key=lambda name: (-_BITS[tensors[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + data.nbytes]}
        place += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with replaced(path) as fresh, fresh.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name].data.tobytes())
