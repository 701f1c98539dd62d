"""Kernels for the CPU: what Inductor writes in C++, with one function around it, as a plain library.

Inductor has two ways to call its kernels, and both cost more than rounding a small tensor: a Python program, which
makes a tensor of every intermediate result, and a packaged model, whose code takes longer to compile than the kernel.
Here that Python program runs once, on names in the place of tensors, and what it does becomes a function of pointers.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from qtorch import inductor
from qtorch.inductor import Example

SUFFIX = ".so"

SERIAL_BELOW = 1 << 15  # numbers or pairs in an input; torch's own operations have the same threshold

CALL = Path(__file__).with_name("call.cpp")
_AHEAD = 2048  # bytes, which take longer to round than to come
_STACK = 4096  # bytes that an intermediate result of a fixed size may take there
_DIGEST = hashlib.sha256().digest_size


def compile_kernel(example: Example, path: Path) -> None:
    """Writes a library for `open_kernel`."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source = Path(folder) / "kernel.cpp"
        source.write_text(write_kernel(example))
        library = inductor.build(source)
        library.write_bytes(_sealed(library.read_bytes()))
        os.replace(library, path)


def open_kernel(path: Path, device: torch.device) -> Callable[..., object]:
    """The function of a library; see `qtorch.kernels.Kernel`.

    Raises:
        OSError: if the file is damaged.
    """
    content = path.read_bytes()
    if _sealed(content[:-_DIGEST]) != content:  # a library that ends too soon would take the process with it
        raise OSError(f"{path} is damaged")
    library = ctypes.CDLL(str(path))
    address = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
    library.connect(ctypes.c_void_p(address))
    method = _Method(b"kernel", ctypes.cast(library.call, ctypes.c_void_p), _METH_FASTCALL)
    _methods.append(method)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p)
    return make(("PyCFunction_NewEx", ctypes.pythonapi))(method, None, None)


class _Method(ctypes.Structure):
    """Python's `PyMethodDef`."""

    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_METH_FASTCALL = 0x80
_HEAD = re.compile(r'extern "C" +void +kernel\(')
_WORD = re.compile(r"\b(in_ptr\d+)\[static_cast<int64_t>\((\d+)L\)\]")
_VECTOR = re.compile(r"(loadu|store)\((\w+_ptr\d+ \+ static_cast<int64_t>\((x\d\b[^();]*)\)).*?;")
_PRAGMA = re.compile(r"^ *#pragma omp .*\n", re.MULTILINE)
_methods: list[_Method] = []  # which Python's functions point to


def _sealed(library: bytes) -> bytes:
    """A library and its digest, which those who load it do not see."""
    return library + hashlib.sha256(library).digest()


class _Memory(NamedTuple):
    """What stands for a tensor: C++ for its address, and its sizes."""

    address: str
    sizes: tuple[Any, ...]
    itemsize: int

    def size(self) -> tuple[Any, ...]:
        return self.sizes

    def numel(self) -> Any:
        return inductor.expand(prod(self.sizes))


class _Recorder:
    """Runs Inductor's program, and keeps what it allocates and calls.

    Attributes:
        kernels: their definitions, renamed, each without threads and, unless each thread is to be given its rows, with
            threads as well. To gather a team of one thread takes longer than to round a small tensor, and a team of
            several waits milliseconds while other programs run.
        allocated: how many bytes each result takes, by its address.
        calls: C++ that calls the kernels.
    """

    def __init__(self, rows: bool) -> None:
        self.rows = rows
        self.kernels: list[str] = []
        self.allocated: dict[str, Any] = {}
        self.calls: list[str] = []

    def define(self, types: list[str], source: str) -> Callable[..., None]:
        source = _fetch_ahead(_read_once(source))
        texts = {"serial": _PRAGMA.sub("", source)} | ({} if self.rows else {"parallel": source})
        names = [f"{kind}{len(self.kernels)}" for kind in texts]
        for name, text in zip(names, texts.values(), strict=True):
            self.kernels.append(_HEAD.sub(f"static void {name}(", text))
        chosen = names[0] if self.rows else f"(threads ? {names[1]} : {names[0]})"

        def call(*arguments: Any) -> None:
            given = (f"({kind})({_cpp(value)})" for kind, value in zip(types, arguments, strict=True))
            self.calls.append(f"{chosen}({', '.join(given)});")

        return call

    def allocate(self, sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype) -> _Memory:
        memory = _Memory(f"memory{len(self.allocated)}", tuple(sizes), dtype.itemsize)
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        self.allocated[memory.address] = inductor.expand((last + 1) * dtype.itemsize)
        return memory

    def whole(self, results: Sequence[_Memory]) -> list[str]:
        """The addresses of results, each of which must fill memory of its own."""
        filled = {memory.address: inductor.expand(prod(memory.sizes) * memory.itemsize) for memory in results}
        if len(filled) < len(results) or any(self.allocated.get(place) != size for place, size in filled.items()):
            raise NotImplementedError(f"results {results} in memory {self.allocated}")
        return list(filled)


def _read_once(source: str) -> str:
    """A kernel that reads single numbers, such as a key's words, before its loops.

    In them a compiler would read each again, since it cannot know that no result is written over it.
    """
    words = dict.fromkeys(_WORD.findall(source))
    reads = "".join(f"    const auto {name}_{index} = {name}[{index}];\n" for name, index in words)
    return _WORD.sub(r"\1_\2", source).replace("\n{\n", f"\n{{\n{reads}", 1)


def _fetch_ahead(source: str) -> str:
    """A kernel that has memory brought to the cache before it is read or written, where its next vectors are.

    Processors do so by themselves, but not all soon enough, and not beyond the end of a page.
    """

    def fetch(vector: re.Match[str]) -> str:
        what, address, place = vector.groups()
        index, *outer = map(int, re.findall(r"x(\d)", place))
        if sorted(outer) != list(range(index)):  # other loops are inside of this one, or all of them read the same
            return vector[0]
        return f"{vector[0]} __builtin_prefetch((const char*)({address}) + {_AHEAD}, {int(what == 'store')});"

    return _VECTOR.sub(fetch, source)


def _view(base: _Memory, sizes: Sequence[Any], strides: Sequence[Any], offset: Any = 0) -> _Memory:
    address = f"({base.address} + {_cpp(offset * base.itemsize)})" if offset != 0 else base.address
    return _Memory(address, tuple(sizes), base.itemsize)


def _of_dtype(memory: _Memory, dtype: torch.dtype) -> _Memory:
    if dtype.itemsize != memory.itemsize:
        raise NotImplementedError(f"{memory} as {dtype}")
    return memory


def write_kernel(example: Example) -> str:
    """C++ of all kernels of a module, and of the function that calls them."""
    rows = example.rows
    recorder = _Recorder(rows is not None)
    program, shapes = inductor.program(example, recorder.define)
    sizes = {str(size): size for shape in shapes for size in shape if not isinstance(size, int)}
    program.update(sizes)  # which version 2.15 does not take from the inputs
    program.update(empty_strided_cpu=recorder.allocate, reinterpret_tensor=_view)
    program.update(aten=SimpleNamespace(view=SimpleNamespace(dtype=_of_dtype)))
    inputs = [
        _Memory(f"tensors[{index}]", shape, argument.element_size())
        for index, (shape, argument) in enumerate(zip(shapes, example.arguments, strict=True))
    ]
    results = recorder.whole(program["call"](list(inputs)))
    memory = [f"char* const {name} = tensors[{index}];" for index, name in enumerate(results, start=len(inputs))]
    kept = [_keep(address, size) for address, size in recorder.allocated.items() if address not in results]
    varying = [*(one.numel() * one.itemsize for one in inputs), *(recorder.allocated[name] for name in results)]
    counts = dict.fromkeys(_cpp(one.numel()) for one in inputs)
    written = _RUN.format(
        kernels="".join(recorder.kernels),
        sizes=len(sizes),
        inputs=len(inputs),
        tensors=len(inputs) + len(results),
        row=rows.elements if rows else 1,
        row_bytes=", ".join(_cpp(_row_bytes(size)) if rows else "0" for size in varying),
        window=rows.window if rows else -1,
        names="\n    ".join(f"const int64_t {name} = sizes[{index}];" for index, name in enumerate(sizes)),
        large=" || ".join(f"{count} >= {SERIAL_BELOW}" for count in counts),
        body="\n    ".join(memory + kept + recorder.calls),
    )
    return written + CALL.read_text()


def _row_bytes(size: Any) -> Any:
    """By how much a size in bytes grows with the number of rows."""
    return sum(inductor.expand(size).diff(name) for name in getattr(size, "free_symbols", ()))


# The kernels, and what `call.cpp` needs of them.
_RUN = """\
#include <cstdint>
#include <memory>
{kernels}
namespace {{
constexpr int SIZES = {sizes}, INPUTS = {inputs}, TENSORS = {tensors}, WINDOW = {window};
constexpr int64_t ROW = {row}, ROW_BYTES[TENSORS] = {{{row_bytes}}};

bool is_large(const int64_t* sizes) {{
    {names}
    return {large};
}}

void run(const int64_t* sizes, char* const* tensors, bool threads) {{
    {names}
    {body}
}}
}}  // namespace
"""


def _keep(address: str, size: Any) -> str:
    """Memory for an intermediate result."""
    if (isinstance(size, int) or size.is_number) and size <= _STACK:
        return f"alignas(64) char {address}[{size}];"
    owner = f"kept_{address}"
    return f"const std::unique_ptr<char[]> {owner}(new char[{_cpp(size)}]); char* const {address} = {owner}.get();"


def _cpp(value: Any) -> str:
    return value.address if isinstance(value, _Memory) else inductor.cpp(value)
