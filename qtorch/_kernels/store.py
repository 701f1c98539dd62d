"""Compiled kernels on disk, named by a hash of their source; processes share them and may die at any moment."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from qcore.notices import warn
from qtorch._kernels import compiler
from qtorch._torch_internals import openmp_address

T = TypeVar("T")
Function = Callable[..., object]  # of sizes and addresses, see `source.Kernel`

_LENGTH = 32  # hexadecimal digits of a hash that are in a name
_ABANDONED = 3600  # seconds after which a temporary folder is taken for the rest of a process that died

_one_at_a_time = threading.Lock()  # among threads; two processes may compile the same kernel, and either file is good


def _forget_lock() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.Lock()  # the thread that holds the old one is not in this process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def load(source: str) -> Function | None:
    """The function of a kernel in C, from disk or freshly compiled; None, after a warning, if it cannot be compiled.

    Raises:
        ValueError: if an environment variable has a value that is not allowed.
    """
    return _from_library(source, _function)


def address(source: str, name: str) -> int | None:
    """The address of a function of a kernel, for callers in C; None and Raises as for `load`."""
    return _from_library(source, lambda library: ctypes.cast(library[name], ctypes.c_void_p).value)


def _from_library(source: str, read: Callable[[ctypes.CDLL], T]) -> T | None:
    try:
        with _one_at_a_time, folder() as kernels:
            return _kept_or_compiled(kernels, source, read)
    except (OSError, RuntimeError) as error:
        warn_of_no_kernel("cpu", error)
        return None


def warn_of_no_kernel(device: str, error: Exception) -> None:
    """Warns that there is no kernel, and why; the compiler's message comes first."""
    words = str(error) if type(error) in (OSError, RuntimeError) else f"{type(error).__name__}: {error}"
    warn(
        f"qtorch has no kernel for {device}: {words[:600]}. It runs operation by operation, which is slower and has "
        "the same results",
        RuntimeWarning,
    )


class Folder(NamedTuple):
    """The folder for kernels while it is open.

    Attributes:
        path: the folder's path for other processes.
        held: the path by the open descriptor: the folder that was checked, even if `path` is replaced meanwhile.
    """

    path: Path
    held: Path


def cache_root() -> Path:
    """The folder of compiled kernels: `QTORCH_CACHE_DIR`, or a folder among the user's caches.

    If the user has no home folder, it raises RuntimeError.
    """
    if chosen := os.environ.get("QTORCH_CACHE_DIR"):
        return Path(os.path.abspath(_with_home(chosen)))
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return Path(caches if os.path.isabs(caches) else _with_home("~/.cache"), "qtorch")


def _with_home(path: str) -> str:
    """A path whose "~" is replaced by the user's folder; an empty HOME does not name one."""
    if path.partition(os.sep)[0] != "~" or os.environ.get("HOME") or not hasattr(os, "getuid"):
        return str(Path(path).expanduser())
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir + path[1:]
    except KeyError:
        raise RuntimeError(f"{path}: HOME is empty, and user {os.getuid()} has no home; set QTORCH_CACHE_DIR") from None


@contextlib.contextmanager
def folder() -> Iterator[Folder]:
    """The open folder for kernels, private to the user; if there is none, a folder of this process, after a warning."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(_opened(cache_root() / "kernels"))
        except (OSError, RuntimeError) as error:
            if not _folder_of_process.cache_info().currsize:
                warn(f"qtorch keeps its kernels for this process only: {error}", RuntimeWarning)
            found = stack.enter_context(_opened(_folder_of_process()))
        yield found


@cache
def _folder_of_process() -> Path:
    return Path(tempfile.mkdtemp(prefix="qtorch-"))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Folder]:
    make_private(path)
    if not hasattr(os, "getuid"):  # Windows, which opens no folders and has other permissions
        yield Folder(path, path)
        return
    # Opened before it is checked, and used by its descriptor: a library that is loaded runs with the user's rights, so
    # nobody may exchange the folder between the check and the use.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _is_ours(os.fstat(descriptor)):
            raise PermissionError(f"{path} can be written by others")
        by_number = Path(f"/proc/self/fd/{descriptor}")
        held = by_number if by_number.exists() else path
        if not os.access(held, os.W_OK):
            raise PermissionError(f"{path} cannot be written")
        _clear_abandoned(path)
        yield Folder(path, held)
    finally:
        os.close(descriptor)


def make_private(path: Path) -> None:
    """Makes a folder and its missing parents with rights for the user alone, whatever the umask is."""
    for one in (*reversed(path.parents), path):
        if not one.exists():
            one.mkdir(0o700, exist_ok=True)


def _is_ours(status: os.stat_result) -> bool:
    """True if a file is the user's, and nobody else can write to it."""
    return not hasattr(os, "getuid") or (
        status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


@cache
def _clear_abandoned(path: Path) -> None:
    """Removes the files of killed compilers; once in a process."""
    for one in path.glob("tmp*"):
        with contextlib.suppress(OSError):  # others clear it as well
            if time.time() - one.stat().st_mtime > _ABANDONED:
                shutil.rmtree(one, ignore_errors=True)


@contextlib.contextmanager
def temporary(kernels: Folder) -> Iterator[Path]:
    """A fresh folder inside the folder of kernels, by its path for other processes.

    It is not a `TemporaryDirectory`: a child process forked meanwhile would remove it at its own end.
    """
    path = kernels.path / Path(tempfile.mkdtemp(dir=kernels.held)).name
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def is_complete(library: Path) -> bool:
    """True if the name ends with the digest of the content, and only the user can have written it.

    To load a damaged library would end the process.
    """
    if not library.is_file():  # a pipe in its place would wait for a writer
        return False
    with library.open("rb") as file:
        ours = _is_ours(os.fstat(file.fileno()))
        return ours and library.stem.endswith(f"-{hashlib.file_digest(file, 'sha256').hexdigest()[:_LENGTH]}")


def _kept_or_compiled(kernels: Folder, source: str, read: Callable[[ctypes.CDLL], T]) -> T:
    try:
        made_by = compiler.identity()
    except RuntimeError:  # no compiler: kernels that any compiler made will do
        made_by = None
    for threads in compiler.thread_options():
        first = _hash(f"{compiler.processor()}\n{threads}\n{source}")
        for library in kernels.held.glob(f"{first}-{'*' if made_by is None else _hash(made_by)}-*.so"):
            with contextlib.suppress(OSError, AttributeError):  # a file that does not load is compiled again
                if is_complete(library):
                    return read(ctypes.CDLL(str(library)))
            library.unlink(missing_ok=True)
    library = _compile(source, kernels, f"{first}-{_hash(made_by or '')}", threads)
    try:
        return read(ctypes.CDLL(str(library)))
    except (OSError, AttributeError) as error:
        library.unlink(missing_ok=True)
        raise RuntimeError(f"the compiler made a library that does not load: {error}") from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _compile(source: str, kernels: Folder, name: str, threads: tuple[str, ...]) -> Path:
    """Compiles to a file beside the library, which then takes its place at once."""
    with temporary(kernels) as fresh:
        text, compiled = fresh / "kernel.c", fresh / "kernel.so"
        text.write_text(source, encoding="utf-8")
        compiler.compile_library(text, compiled, threads)
        compiled.chmod(0o700)
        # Renaming is atomic: other processes see no file, or all of it. The name ends with the content's hash.
        library = kernels.held / f"{name}-{hashlib.sha256(compiled.read_bytes()).hexdigest()[:_LENGTH]}.so"
        os.replace(compiled, library)
    return library


class _Method(ctypes.Structure):
    """Python's `PyMethodDef`."""

    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_METH_FASTCALL = 0x80
_methods: list[_Method] = []  # kept for ever: Python's function objects point into them


def _function(library: ctypes.CDLL) -> Function:
    """The function of a library as a built-in function of Python: calls through ctypes take several times as long."""
    call = library.call_from_python
    method = _Method(b"kernel", ctypes.cast(call, ctypes.c_void_p), _METH_FASTCALL)
    _methods.append(method)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p)
    function = make(("PyCFunction_NewEx", ctypes.pythonapi))(method, None, None)
    return with_threads_of_torch(library, function)


def with_threads_of_torch(library: ctypes.CDLL, function: Function) -> Function:
    """A function that runs on as many threads as torch does.

    If the library has another OpenMP than torch (clang's beside gcc's), `torch.set_num_threads` does not reach it, and
    the number is set before each call.
    """
    try:
        own = ctypes.cast(library.omp_get_max_threads, ctypes.c_void_p).value
    except AttributeError:  # it runs on one thread
        return function
    if own == openmp_address():
        return function

    def call(*arguments: object) -> object:
        library.omp_set_num_threads(torch.get_num_threads())
        return function(*arguments)

    return call
