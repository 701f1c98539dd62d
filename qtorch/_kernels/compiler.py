"""The system's C compiler, and what it compiles for."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_FLAGS = (
    *("-std=gnu11", "-O3", "-shared", "-fPIC", "-fopenmp"),
    "-fwrapv",  # sums of random words wrap
    "-ffp-contract=off",  # a product is rounded before it is added to
    *("-fno-math-errno", "-fno-trapping-math"),  # nobody reads these, and they keep loops from becoming vectors
    "-fprefetch-loop-arrays",  # 2^24 elements on a Xeon with AVX-512: a tenth less time; others are as fast
)
X86_FLAGS = {  # by torch's names of instruction sets
    "default": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-march=skylake-avx512", "-mprefer-vector-width=512"),
}


def compile_library(source: Path, library: Path) -> None:
    """Compiles a file of C.

    Raises:
        RuntimeError: if there is no compiler, or it fails.
    """
    words = [*command(target_flags()), str(source), "-o", str(library)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")


def command(target: Sequence[str]) -> list[str]:
    """The compiler and its options, with those that say for which processor.

    Raises:
        RuntimeError: if there is no compiler.
        ValueError: if QTORCH_CFLAGS cannot be split into words.
    """
    return [_compiler(), *target, *_flags()]


@cache
def _flags() -> tuple[str, ...]:
    """The options for every processor, and after them the words of QTORCH_CFLAGS."""
    added = os.environ.get("QTORCH_CFLAGS", "")
    try:
        return (*_FLAGS, *shlex.split(added))
    except ValueError as error:
        raise ValueError(f"QTORCH_CFLAGS={added!r}: {error}; allowed are words as a shell splits them") from None


def _compiler() -> str:
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(name):
            return found
        if name == os.environ.get("CC"):
            break
    raise RuntimeError("there is no C compiler: install gcc or clang, or set CC")


@cache
def target_flags() -> tuple[str, ...]:
    """What the compiler is told of the processor: the instruction set of `ATEN_CPU_CAPABILITY`, or all it has.

    Raises:
        ValueError: if the variable names another set than torch has.
    """
    chosen = os.environ.get("ATEN_CPU_CAPABILITY")
    if platform.machine() not in ("x86_64", "AMD64"):
        return ("-mcpu=native",)
    if chosen is None:
        return ("-march=native", "-mprefer-vector-width=512")
    if chosen not in X86_FLAGS:
        raise ValueError(f"ATEN_CPU_CAPABILITY={chosen!r}; allowed are {', '.join(X86_FLAGS)}")
    return X86_FLAGS[chosen]


def is_for_all_instructions() -> bool:
    """True unless `ATEN_CPU_CAPABILITY` chooses an instruction set, which may be less than the processor has."""
    return os.environ.get("ATEN_CPU_CAPABILITY") is None


@cache
def processor() -> str:
    """What libraries are compiled for, and how, as a text that differs where they may."""
    return "\n".join((platform.system(), platform.machine(), *target_flags(), *_flags(), *_processor_lines()))


def _processor_lines() -> Iterator[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith(("flags", "Features", "model name")):
                yield line
            if not line.strip():
                return
