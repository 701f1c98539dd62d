"""Compiled kernels on disk, by what they are compiled from; processes share them and may die at any moment."""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from qtorch._kernels import compiler

T = TypeVar("T")
Function = Callable[..., object]  # of sizes and addresses, see `source.Kernel`

_DIGEST = hashlib.sha256().digest_size
_one_at_a_time = threading.Lock()  # other processes are not waited for


def load(source: str) -> Function | None:
    """The function of a kernel in C, from disk or freshly compiled; None, after one warning, where none can be made.

    Raises:
        ValueError: if an environment variable says what is not allowed.
    """
    return _from_library(source, _function)


def address(source: str, name: str) -> int | None:
    """Where a function of a kernel lies, for others in C; None and Raises as for `load`."""
    return _from_library(source, lambda path: ctypes.cast(ctypes.CDLL(str(path))[name], ctypes.c_void_p).value)


def _from_library(source: str, read: Callable[[Path], T | None]) -> T | None:
    name = hashlib.sha256(f"{compiler.processor()}\n{source}".encode()).hexdigest()
    try:
        with _one_at_a_time:
            path = folder() / f"{name[:32]}.so"
            if not is_whole(path):
                _compile(source, path)
            return read(path)
    except (OSError, RuntimeError) as error:
        warn("cpu", error)
        return None


def warn(device: str, error: Exception) -> None:
    """Says why there is no kernel."""
    warnings.warn(
        f"qtorch could not compile a kernel for {device} and runs operation by operation, which is slower and has the "
        f"same results: {type(error).__name__}: {str(error)[:300]}",
        RuntimeWarning,
        stacklevel=3,
    )


def cache_root() -> Path:
    """Where compiled kernels are kept: `QTORCH_CACHE_DIR`, or a folder of the user's caches."""
    chosen, caches = os.environ.get("QTORCH_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else Path(caches or Path.home() / ".cache") / "qtorch"


@cache
def folder() -> Path:
    """The folder for kernels; ours alone, so that nobody can put code there."""
    place = cache_root() / "kernels"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = place.stat()
        if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise PermissionError(f"{place} can be written by others")
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        warnings.warn(f"qtorch keeps its kernels for this process only: {error}", RuntimeWarning, stacklevel=2)
        return Path(tempfile.mkdtemp(prefix="qtorch-"))
    return place


def is_whole(library: Path) -> bool:
    """True if the file ends with the digest of the rest: to load a damaged one would end the process."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return content[-_DIGEST:] == hashlib.sha256(content[:-_DIGEST]).digest()


def _compile(source: str, library: Path) -> None:
    """Compiles to a file beside the library, which then takes its place at once."""
    with tempfile.TemporaryDirectory(dir=library.parent) as fresh:
        text, compiled = Path(fresh) / "kernel.c", Path(fresh) / "kernel.so"
        text.write_text(source)
        compiler.compile_library(text, compiled)
        content = compiled.read_bytes()
        compiled.write_bytes(content + hashlib.sha256(content).digest())
        os.replace(compiled, library)


class _Method(ctypes.Structure):
    """Python's `PyMethodDef`."""

    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_METH_FASTCALL = 0x80
_methods: list[_Method] = []  # which Python's functions point to


def _function(library: Path) -> Function:
    """The function of a library, as one of Python's own: calls through ctypes take several times as long."""
    call = ctypes.CDLL(str(library)).call_from_python
    _methods.append(_Method(b"kernel", ctypes.cast(call, ctypes.c_void_p), _METH_FASTCALL))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p)
    return make(("PyCFunction_NewEx", ctypes.pythonapi))(_methods[-1], None, None)
