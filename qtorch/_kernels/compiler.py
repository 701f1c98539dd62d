"""The system's C compiler, its options, and the processor that it compiles for."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from qcore.arguments import quoted
from qcore.notices import warn

_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-shared",
    "-fPIC",
    "-fwrapv",  # sums of random words wrap
    "-ffp-contract=off",  # a product is rounded before it is added to
    "-fno-math-errno",  # errno and traps are not used, and would keep loops from vectors
    "-fno-trapping-math",
    "-fprefetch-loop-arrays",  # 2^24 elements on a Xeon with AVX-512: a tenth less time; others are as fast
    "-fno-ipa-cp",  # no copies of functions for known arguments: as fast, and GCC takes a third less time
)
OPENMP = ("-fopenmp",)
X86_FLAGS = {  # by torch's names of instruction sets
    "default": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-march=skylake-avx512", "-mprefer-vector-width=512"),
}
_QUOTED = 200  # characters of a compiler's message


def compile_library(source: Path, library: Path, threads: Sequence[str]) -> None:
    """Compiles a file of C, with the options `threads`; raises RuntimeError if there is no compiler, or it fails."""
    words = [*command(target_flags(), threads), str(source), "-o", str(library)]
    result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if result.returncode:
        said = _first_words(result.stderr.decode("utf-8", "replace")) or f"status {result.returncode}"
        raise RuntimeError(f"{said} ({shlex.join(words)})")


def _first_words(text: str) -> str:
    """The beginning of a compiler's message from its first error on; from the first line if no line has "error"."""
    lines = [line.strip() for line in text.splitlines()]
    first = next((place for place, line in enumerate(lines) if "error" in line), 0)
    return " ".join(filter(None, lines[first:]))[:_QUOTED]


def command(target: Sequence[str], threads: Sequence[str] = OPENMP) -> list[str]:
    """The compiler and its options, with the options for the processor and for OpenMP.

    Without a compiler it raises RuntimeError; if CC or QTORCH_CFLAGS cannot be split into words, ValueError.
    """
    return [*_compiler(), *target, *_FLAGS, *threads, *_added()]


@cache
def _added() -> tuple[str, ...]:
    """The words of QTORCH_CFLAGS. They come last, because compilers take the last of contradicting options."""
    return tuple(_words("QTORCH_CFLAGS"))


def _words(variable: str) -> list[str]:
    """The words of an environment variable."""
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{variable}={quoted(text)}: {error}; allowed are words as a shell splits them") from None


def _compiler() -> list[str]:
    """The compiler's file, and the words after it in CC."""
    chosen = os.environ.get("CC", "")
    whole = shutil.which(chosen)  # a path may have spaces
    words = [chosen] if whole else _words("CC")
    for name, *more in [words] if words else [["cc"], ["gcc"], ["clang"]]:
        if found := shutil.which(name):
            return [os.path.abspath(found), *more]
    if words:
        raise RuntimeError(f"there is no C compiler: CC={chosen!r:.{_QUOTED}} names none that is there")
    raise RuntimeError("there is no C compiler: install gcc or clang, or set CC")


def identity() -> str:
    """A text that differs between compilers: the files of its command, with their sizes and times."""
    name, *more = _compiler()
    files = [os.path.realpath(found) for found in [name, *map(shutil.which, more)] if found]  # "ccache gcc" has two
    status = [os.stat(file) for file in files]
    facts = [f"{file} {one.st_size} {one.st_mtime_ns}" for file, one in zip(files, status, strict=True)]
    return "\n".join([*facts, *more])


def thread_options() -> Iterator[tuple[str, ...]]:
    """The options for kernels on many threads, then those for one thread if the compiler has no OpenMP.

    A caller looks for a kernel with each of them, and compiles with the last.
    """
    yield OPENMP
    if not _has_openmp(tuple(_compiler())):
        yield ()


@cache
def _has_openmp(compiler: tuple[str, ...]) -> bool:
    """True if a small program with OpenMP compiles (some hundredths of a second); warns if it does not."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "try.c", Path(folder) / "try.so"
        source.write_text("#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }\n", encoding="utf-8")
        try:
            compile_library(source, library, OPENMP)
        except RuntimeError as error:
            source.write_text("int threads(void) { return 1; }\n", encoding="utf-8")
            compile_library(source, library, ())
            warn(
                f"qtorch's kernels run on one thread, because {compiler[0]} has no OpenMP: {error}. Install libomp, or "
                "let CC name a compiler that has OpenMP",
                RuntimeWarning,
            )
            return False
    return True


@cache
def target_flags() -> tuple[str, ...]:
    """The options for the processor: the instruction set of `ATEN_CPU_CAPABILITY`, or all that the processor has.

    Another value of the variable is a ValueError.
    """
    chosen = os.environ.get("ATEN_CPU_CAPABILITY") or None
    if platform.machine() not in ("x86_64", "AMD64"):
        return ("-mcpu=native",)
    if chosen is None:
        return ("-march=native", "-mprefer-vector-width=512")
    if chosen not in X86_FLAGS:
        raise ValueError(f"ATEN_CPU_CAPABILITY={quoted(chosen)}; allowed are {', '.join(X86_FLAGS)}")
    return X86_FLAGS[chosen]


@cache
def processor() -> str:
    """A text that identifies the processor and the compiler's options; a part of the cache's key."""
    return "\n".join((platform.system(), platform.machine(), *target_flags(), *_FLAGS, *_added(), *_processor_lines()))


def _processor_lines() -> Iterator[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("flags", "Features", "model name")):
                yield line
            if not line.strip():
                return
