"""What each private part of torch is worth to qtorch: the same call with it and without it.

Usage:
    python -m benchmarks.internals
    python -m benchmarks.internals --json internals.json

Both take turns in one process, and medians are compared; imports are timed in processes of their own. The parts are
those of the docstring of qtorch/_torch_internals.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import qtorch
from benchmarks.support.results import write_results
from benchmarks.support.timing import ROOT, by_turns, clock_for, keep_pages, machine, versions
from qtorch import _torch_internals as internals
from qtorch._rounding import dispatch

F = qtorch.FloatingPoint(5, 2)
SMALL, MIDDLE = 64, 1 << 16  # elements of a call
PARTS = {"_dispatch_modes": "_C._len_torch_dispatch_stack", "_transforms": "_C._functorch.peek_interpreter_stack"}
_IMPORT_RUNS = 3
_IMPORTS = """
from time import perf_counter as now; begin = now()
import torch
if {without}: where, torch.__file__ = torch.__file__, "/nonexistent/torch/__init__.py"
import qtorch
print(now() - begin)
"""


@dataclass(frozen=True)
class Row:
    """A part, what was called, and the seconds that it took with the part and without it."""

    part: str
    call: str
    seconds: float
    without: float

    @property
    def worth(self) -> float:
        return self.without / self.seconds


def without(place: Any, name: str, substitute: Any, call: Callable[[], object]) -> Callable[[], None]:
    """The call, while an attribute is something else."""

    def run() -> None:
        kept = getattr(place, name)
        setattr(place, name, substitute)
        try:
            call()
        finally:
            setattr(place, name, kept)

    return run


def compare(part: str, name: str, call: Callable[[], object], other: Callable[[], object], seconds: float) -> Row:
    ours, theirs = by_turns([call, other], clock_for("cpu"), seconds)
    return Row(part, name, ours.median, theirs.median)


def calls(seconds: float) -> Iterator[Row]:
    """What decides whether a tensor may be read, and what applies a function."""
    small, middle = torch.randn(SMALL), torch.randn(MIDDLE)
    for attribute, part in PARTS.items():
        for x in (small, middle):
            call = partial(qtorch.quantize, x, F)
            other = without(internals, attribute, None, call)
            yield compare(part, f"quantize {x.numel()} elements", call, other, seconds)
    leaf = small.clone().requires_grad_()

    def forward() -> torch.Tensor:
        return qtorch.quantize(leaf, F)

    def backward() -> None:
        forward().backward(small)

    for name, call in (("with a gradient", forward), ("and its backward", backward)):
        other = without(dispatch, "_straight_through", dispatch._WithTangent.apply, call)
        yield compare("_C._FunctionBase.apply", f"quantize {SMALL} elements {name}", call, other, seconds)


def operations(seconds: float) -> Iterator[Row]:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((256, 512), (512, 256)))
    product = partial(internals.int8_product, a, b)
    yield compare("_int_mm", "256 x 512 x 256", product, without(internals, "_int_mm", None, product), seconds)


def imports() -> Row:
    """`import torch, qtorch`; where torch's file is not found, the public function marks constants."""
    times = []
    for flag in (False, True):
        command = [sys.executable, "-c", _IMPORTS.format(without=flag)]
        runs = (subprocess.run(command, cwd=ROOT, check=True, capture_output=True) for _ in range(_IMPORT_RUNS))
        times.append(median(float(run.stdout) for run in runs))
    return Row("_dynamo_marked_constant", "import torch, qtorch", *times)


class _Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def packages(seconds: float) -> Row:
    """A package for the CPU, as there may be no GPU."""
    from torch._inductor import aoti_load_package

    x = torch.randn(384)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "double.pt2"))
        internals.compile_package(torch.export.export(_Double(), (x,)), path, folder, {})
        run, package = internals.open_package(path, -1), aoti_load_package(path)
        return compare("loader.run", "a package, 384 elements", lambda: run([x]), lambda: package(x), seconds)


def table(rows: list[Row]) -> Table:
    found = Table(box=SIMPLE, title="private parts of torch")
    for column in ("part", "call"):
        found.add_column(column, no_wrap=True)
    for column in ("with", "without", "worth"):
        found.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        times = (f"{time * 1e6:,.1f} us" for time in (row.seconds, row.without))
        found.add_row(row.part, row.call, *times, f"{row.worth:.2f}x")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time qtorch with and without each private part of torch.")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    facts = {"versions": versions(), "machine": machine("cpu")}
    rows = [*calls(options.seconds), *operations(options.seconds), imports(), packages(options.seconds)]
    Console(width=110).print(table(rows))
    if options.json:
        records = [asdict(row) | {"worth": row.worth} for row in rows]
        write_results(options.json, facts | {"rows": records})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
