"""What benchmarks share: calls timed by turns, an allocator that keeps its pages, and a record of where they ran.

Usage:
    if __name__ == "__main__":
        keep_pages()  # may start the program again
        ...
    ours, copy = by_turns([partial(quantize, x), partial(out.copy_, x)], clock_for("cpu"), seconds=0.5)
    print(ours.median / copy.median)
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parent.parent.parent

Call = Callable[[], object]
Clock = Callable[[Call, int], float]

# glibc takes large blocks fresh from the system and gives them back when freed, and a fresh page costs more than
# rounding the numbers in it. Threads other than the first have heaps that no large block fits in, so XLA's, which
# allocates in its own threads, needs the third setting (jitted abs of 2^24 elements: 4 ms with it, 31 without).
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_ARENA_MAX": "1",
}
# On a GPU, JAX would take most of the memory before torch asks for any.
_ENVIRONMENT = {**_ALLOCATOR, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

_BATCH_SECONDS = 1e-3  # of repeated calls between two readings of the clock
_FEWEST_TURNS = 5


class Timing(NamedTuple):
    """Seconds a call: the median over all turns, and the fastest of them."""

    median: float
    fastest: float


def keep_pages() -> None:
    """Starts this program again where its allocator would return memory, as only the environment can forbid that."""
    missing = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **missing})


def default_allocator() -> dict[str, str]:
    """This process's environment without what `keep_pages` added."""
    return {name: value for name, value in os.environ.items() if name not in _ALLOCATOR}


def by_turns(calls: Sequence[Call], clock: Clock, seconds: float) -> list[Timing]:
    """Times calls in alternation, so that whatever else the machine does happens to all of them.

    Args:
        calls: what to time; each is warmed up first.
        clock: see `clock_for`.
        seconds: how long to go on, all calls together; each gets five turns at least.

    Returns:
        A timing for each call, in seconds.
    """
    counts = [_batch(call, clock) for call in calls]
    turns: list[list[float]] = [[] for _ in calls]
    gc.collect()
    gc.disable()
    try:
        end = perf_counter() + seconds
        while len(turns[0]) < _FEWEST_TURNS or perf_counter() < end:
            for call, count, times in zip(calls, counts, turns, strict=True):
                times.append(clock(call, count))
    finally:
        gc.enable()
    return [Timing(statistics.median(times), min(times)) for times in turns]


def _batch(call: Call, clock: Clock) -> int:
    """How many calls take long enough to be timed; warms them up on the way."""
    clock(call, 2)
    count = 1
    while clock(call, count) * count < _BATCH_SECONDS:
        count *= 2
    return count


def clock_for(device: str) -> Clock:
    """A function of (call, count): the mean seconds of `count` calls in a row on "cpu" or "cuda"."""
    return _cuda_clock if device == "cuda" else _wall_clock


def _wall_clock(call: Call, count: int) -> float:
    begin = perf_counter()
    for _ in range(count):
        call()
    return (perf_counter() - begin) / count


def _cuda_clock(call: Call, count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count / 1e3


def versions() -> dict[str, str]:
    """The versions of all that takes part, and this repository's commit."""
    found = {"python": platform.python_version(), "commit": _commit()}
    for name in ("torch", "jax", "jaxlib", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine(device: str) -> dict[str, Any]:
    """What the numbers depend on besides versions; the load is that of the minute before."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "torch threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "allocator keeps pages": all(name in os.environ for name in _ALLOCATOR),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {})


def usable_cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
