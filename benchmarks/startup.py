"""What qtorch and qjax cost before the first result, and what memory: each measured in processes of its own.

Usage:
    python -m benchmarks.speed             runs this after the timings
    python -m benchmarks.startup compile   runs one probe in this process and prints its numbers as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.support.memory import peak_of, reset_peak

ROOT = Path(__file__).resolve().parent.parent

IMPORT_LIMIT = 0.1  # seconds that qtorch may add to torch
COLD_LIMIT, WARM_LIMIT = 5.0, 1.0  # seconds to the first results, with nothing and with everything on disk
NVFP4_LIMIT = 6.0  # seconds to its first result, compiled
MEMORY_LIMIT = 1.01  # times input and output

_IMPORTS = (("numpy", "qcore", None), ("torch", "qtorch", IMPORT_LIMIT), ("jax", "qjax", None))
_IMPORT_RUNS = 5
_MEMORY_CASES = ("float nearest", "float stochastic", "block nearest", "block stochastic", "rows stochastic")

Environment = dict[str, str]


@dataclass(frozen=True)
class Finding:
    """One measured number, and what it may be at most."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def findings(environment: Environment, device: str, exponent: int) -> Iterator[Finding]:
    """Runs all probes.

    Args:
        environment: for the probes' processes; must leave the allocator as it is by default.
        device: "cpu" or "cuda".
        exponent: memory is measured on 2^exponent elements.
    """
    for base, package, limit in _IMPORTS:
        yield from _imports(base, package, limit, environment)
    yield from _compilation(environment, device)
    for case in _MEMORY_CASES:
        peak = _probe("memory", case, str(exponent), device=device, environment=environment)
        size = 4 << exponent  # bytes of the input, and of the output
        note = f"{case}, 2^{exponent} elements: the call added {peak['bytes'] / size:.3f} outputs ({peak['source']})"
        yield Finding("peak memory", (size + peak["bytes"]) / (2 * size), "x (input + output)", MEMORY_LIMIT, note)


def _imports(base: str, package: str, limit: float | None, environment: Environment) -> Iterator[Finding]:
    # Both are timed in one process: the difference between two processes' times would be mostly noise.
    code = (
        f"from time import perf_counter as now; a = now(); import {base}; b = now(); import {package}; c = now(); "
        "print([b - a, c - b])"
    )
    runs = [json.loads(_python(["-c", code], environment)) for _ in range(_IMPORT_RUNS)]
    first, added = (median(times) for times in zip(*runs, strict=True))
    both = median(sum(times) for times in runs)
    yield Finding(f"import {base}", first, "s")
    yield Finding(f"import {base}, {package}", both, "s")
    yield Finding(f"import {package} after {base}", added, "s", limit)


def _compilation(environment: Environment, device: str) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="qtorch-cold-") as folder:
        # Inductor keeps its precompiled headers below the temporary directory, whatever its own cache is.
        fresh = {name: os.path.join(folder, name) for name in ("QTORCH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR")}
        os.mkdir(fresh["TMPDIR"])
        cold, warm = (_probe("compile", device=device, environment=environment | fresh) for _ in range(2))
        by_inductor = environment | fresh | {"QTORCH_KERNELS": "inductor"}
        slow, kept = (_probe("package", device=device, environment=by_inductor) for _ in range(2))
        first, again = (_probe("count", device=device, environment=environment | fresh) for _ in range(2))
    yield Finding("first results, cold", cold["seconds"], "s", COLD_LIMIT, "float nearest + stochastic, all compiled")
    yield Finding("first result of NVFP4, cold", cold["nvfp4"], "s", NVFP4_LIMIT, "nearest")
    yield Finding("first results, warm", warm["seconds"], "s", WARM_LIMIT, "the same in a later process, from disk")
    for run, what in ((slow, "cold"), (kept, "warm")):
        note = "float nearest, with QTORCH_KERNELS=inductor"
        yield Finding(f"first result by Inductor, {what}", run["seconds"], "s", None, note)
    for run, what in ((cold, "cold"), (warm, "warm")):
        yield Finding(f"compilations, {what}", run["compiled"], "kernels", None if run is cold else 0)
    note = f"{first['formats']} formats x {first['shapes']} shapes, nearest and stochastic"
    yield Finding("kernels in use", first["kernels"], "kernels", first["expected"], f"{note}: one for a kind and mode")
    yield Finding("compilations, from disk", again["compiled"], "kernels", 0, f"{note}, in a later process")
    yield Finding("Dynamo's counters", again["dynamo"]["counts"], "counts", 0, again["dynamo"]["state"])


def _probe(name: str, *arguments: str, device: str, environment: Environment) -> dict[str, Any]:
    output = _python(["-m", "benchmarks.startup", name, *arguments, "--device", device], environment)
    result = json.loads(output.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def _python(arguments: list[str], environment: Environment) -> str:
    """What a fresh interpreter prints; its errors go where ours go."""
    command = [sys.executable, *arguments]
    environment = {key: value for key, value in environment.items() if key != "PYTHONDONTWRITEBYTECODE"}  # as installed
    return subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def _compile_probe(device: str) -> dict[str, Any]:
    import torch

    from qtorch import FloatingPoint, quantize

    compiled = _count_compilations()
    number, x = FloatingPoint(5, 2), torch.randn(1000, device=device)
    begin = perf_counter()
    quantize(x, number, "nearest")
    quantize(x, number, "stochastic")
    _synchronize(device)
    seconds = perf_counter() - begin
    quantize(x, "nvfp4", "nearest")
    _synchronize(device)
    return {"seconds": seconds, "nvfp4": perf_counter() - begin - seconds, "compiled": len(compiled)}


def _package_probe(device: str) -> dict[str, Any]:
    import torch

    from qtorch import FloatingPoint, quantize

    x = torch.randn(1000, device=device)
    begin = perf_counter()
    quantize(x, FloatingPoint(5, 2), "nearest")
    _synchronize(device)
    return {"seconds": perf_counter() - begin}


def _count_probe(device: str) -> dict[str, Any]:
    import torch

    from qtorch import BlockFloatingPoint, FixedPoint, FloatingPoint, quantize
    from qtorch._kernels import laws

    compiled = _count_compilations()
    formats = [
        *(FloatingPoint(exp, man) for exp, man in ((2, 1), (3, 2), (4, 3), (5, 2), (6, 9), (8, 7))),
        *(FixedPoint(wl, fl) for wl, fl in ((2, 1), (4, 2), (8, 0), (8, 4), (16, 10), (24, 20))),
        *(BlockFloatingPoint(wl) for wl in (2, 4, 6, 8, 12, 16)),
    ]
    shapes = ((), (64,), (33, 65), (8, 16, 7, 7), (1 << 20,))
    for shape in shapes:
        x = torch.randn(shape, device=device)
        for number in formats:
            quantize(x, number, "nearest")
            quantize(x, number, "stochastic", key=1)
    found = {"formats": len(formats), "shapes": len(shapes), "compiled": len(compiled)}
    kinds = 2  # element by element, which floats and fixed point share, and in blocks
    return found | {"kernels": laws.rounding.cache_info().misses, "expected": 2 * kinds, "dynamo": _dynamo()}


def _count_compilations() -> list[object]:
    """A list that grows with every kernel compiled from now on."""
    from qtorch._kernels import store

    compiled: list[object] = []
    original = store._compile

    def counted(*arguments: Any) -> Path:
        compiled.append(arguments)
        return original(*arguments)

    store._compile = counted
    return compiled


def _dynamo() -> dict[str, Any]:
    if "torch._dynamo" not in sys.modules:
        return {"counts": 0, "state": "torch._dynamo was not even imported"}
    from torch._dynamo.utils import counters

    found = {name: dict(counts) for name, counts in counters.items() if counts}
    return {"counts": sum(map(len, found.values())), "state": f"torch._dynamo was imported; counters: {found}"}


def _memory_probe(case: str, exponent: int, device: str) -> dict[str, Any]:
    import torch

    from qtorch import BlockFloatingPoint, FloatingPoint, Number, Rounding, quantize

    kind, mode = case.split()
    rounding = Rounding(mode)
    number: Number = FloatingPoint(5, 2) if kind == "float" else BlockFloatingPoint(8, dim=0 if kind == "rows" else -1)
    rows = 1 if kind == "float" else 64
    key = 1 if rounding.stochastic else None
    quantize(
        torch.randn(rows, 1 << 10, device=device), number, rounding, key=key
    )  # loads the kernel, starts the threads
    x = torch.randn(rows, (1 << exponent) // rows, device=device)
    source, before = reset_peak(device)
    result = quantize(x, number, rounding, key=key)
    peak = peak_of(source)
    assert result.shape == x.shape
    return {"bytes": peak - before, "source": source}


def _synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run one probe in this process and print its numbers as JSON.")
    parser.add_argument("probe", choices=("compile", "package", "count", "memory"))
    parser.add_argument("case", nargs="?", choices=_MEMORY_CASES, default=_MEMORY_CASES[0], help="for memory")
    parser.add_argument("exponent", nargs="?", type=int, default=26, help="for memory: 2^exponent elements")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(argv)
    probes: dict[str, Callable[[], dict[str, Any]]] = {
        "compile": lambda: _compile_probe(options.device),
        "package": lambda: _package_probe(options.device),
        "count": lambda: _count_probe(options.device),
        "memory": lambda: _memory_probe(options.case, options.exponent, options.device),
    }
    print(json.dumps(probes[options.probe]()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
