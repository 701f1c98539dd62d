"""How fast kernels on a GPU are, against copying the same array on it, and whether they have the CPU's bits.

Usage:
    python -m benchmarks.gpu                           all rows of benchmarks.speed for torch, codes, affine integers
    python -m benchmarks.gpu --max-exponent 20 --json gpu.json

A copy is the limit: it reads and writes each element once. The share of its bandwidth is its time over the call's, for
calls that read and write as many bytes. Where there is no GPU, the program says so and its exit status is 2; else it is
0, or 1 where bits differ from the CPU's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks import speed
from benchmarks.support.results import write_results
from benchmarks.support.timing import ROOT, by_turns, clock_for, keep_pages, machine, versions
from qtorch.quantization import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine

RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
NO_GPU = 2
CHECKED = 1 << 20  # elements at most, whose bits are compared
CHANNELS = 64


@dataclass(frozen=True)
class Row:
    """One measurement: medians in seconds a call, and what the first call took, which compiles or loads a kernel."""

    what: str
    operation: str
    exponent: int
    seconds: float
    copy: float
    first: float
    same_bits: bool | None

    @property
    def share(self) -> float:
        """Of the copy's bandwidth."""
        return self.copy / self.seconds

    def record(self) -> dict[str, Any]:
        elements = 1 << self.exponent
        rates = {"ps_per_element": self.seconds * 1e12 / elements, "copy_gb_per_second": 8 * elements / self.copy / 1e9}
        return asdict(self) | {"share_of_copy": self.share} | rates


Call = Callable[[torch.Tensor], Callable[[], Any]]


def calls(max_exponent: int) -> Iterator[tuple[str, str, int, Call, tuple[int, ...]]]:
    """Every row: what it is, the operation, the exponent, the call on a tensor, and the tensor's shape."""
    for case in speed.cases("torch", max_exponent):
        if case.dtype == "float32" and case.operation != speed.PACKAGE:  # which all calls are on a GPU
            yield case.format, case.operation, case.exponent, partial(speed.torch_call, case), case.shape
    for exponent in (exponent for exponent in (speed.MIDDLE, speed.LARGE) if exponent <= max_exponent):
        for name, function in (("per tensor", _per_tensor), ("per channel", _per_channel)):
            shape = (CHANNELS, (1 << exponent) // CHANNELS)
            yield f"affine, {name}", "fake_quantize", exponent, partial(partial, function), shape


def _per_tensor(x: torch.Tensor) -> torch.Tensor:
    return fake_quantize_per_tensor_affine(x, 0.05, 128, 0, 255)


def _per_channel(x: torch.Tensor) -> torch.Tensor:
    scale = torch.linspace(0.01, 0.1, CHANNELS, device=x.device)
    return fake_quantize_per_channel_affine(
        x, scale, torch.zeros(CHANNELS, dtype=torch.int32, device=x.device), 0, -8, 7
    )


def measure(max_exponent: int, seconds: float, log: Console) -> Iterator[Row]:
    for what, operation, exponent, call, shape in calls(max_exponent):
        generator = torch.Generator("cuda").manual_seed(exponent)
        x = torch.randn(1 << exponent, generator=generator, device="cuda").view(shape)
        begin = perf_counter()
        call(x)()
        torch.cuda.synchronize()
        first = perf_counter() - begin
        checked = x.numel() <= CHECKED and not operation.endswith("no key")
        same = _same_bits(call(x)(), call(x.cpu())()) if checked else None
        ours, copy = by_turns([call(x), partial(torch.empty_like(x).copy_, x)], clock_for("cuda"), seconds)
        row = Row(what, operation, exponent, ours.median, copy.median, first, same)
        log.print(f"{what}, {operation}, 2^{exponent}: {row.seconds * 1e6:.1f} us, {row.share:.0%}", soft_wrap=True)
        yield row


def _same_bits(found: Any, expected: Any) -> bool:
    if isinstance(found, tuple):
        return all(map(_same_bits, found, expected))
    return torch.equal(found.cpu().contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def table(rows: list[Row]) -> Table:
    result = Table(box=SIMPLE, title="kernels on the GPU, float32, against copy_ of the same array")
    for column in ("what", "operation"):
        result.add_column(column, no_wrap=True)
    for column in ("elements", "a call", "copy_", "of its bandwidth", "first call", "the CPU's bits"):
        result.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        times = f"{row.seconds * 1e6:.1f} us", f"{row.copy * 1e6:.1f} us", f"{row.share:.0%}", f"{row.first:.2f} s"
        bits = {None: "", True: "yes", False: "NO"}[row.same_bits]
        result.add_row(
            row.what, row.operation, f"2^{row.exponent}", *times, bits, style="red" if bits == "NO" else None
        )
    return result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time kernels on a GPU against copying.")
    parser.add_argument(
        "--max-exponent", type=int, choices=speed.EXPONENTS, default=speed.LARGE, help="2^this elements at most"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each row, five turns at least")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, default=RESULTS, help="write versions, machine, rows there"
    )
    options = parser.parse_args(argv)
    console, log = (Console(stderr=stderr, highlight=False) for stderr in (False, True))
    if not torch.cuda.is_available():
        log.print("there is no GPU that torch can use")
        return NO_GPU
    console.width = max(console.width, speed.WIDTH)
    facts = {"versions": versions(), "machine": machine("cuda")}
    rows = list(measure(options.max_exponent, options.seconds, log))
    console.print(table(rows))
    write_results(options.json, facts | {"rows": [row.record() for row in rows]})
    wrong = sum(row.same_bits is False for row in rows)
    console.print(f"{wrong} rows with other bits than the CPU's", style="red" if wrong else "green")
    return 1 if wrong else 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
