"""How fast tables, NVFP4's laws and JAX's blocks are, on each instruction set, in processes of their own.

Usage:
    python -m benchmarks.formats                       minutes
    python -m benchmarks.formats --json benchmarks/results/formats-speed.json
    python -m benchmarks.formats --seconds 0.05        for a look

Rows are those of `benchmarks.speed`, times a copy (in JAX times jitted `abs`); but the rows "te / torchao" have NVFP4
under torchao's law as their baseline, in turns with Transformer Engine's. Misses are red and counted, the exit status
is 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec

import torch
from rich.console import Console

from benchmarks.speed import LARGE, MIDDLE, WIDTH, Case, Row, speed_table, time_jax, time_torch
from benchmarks.support.limits import BOUNDS
from benchmarks.support.results import write_results
from benchmarks.support.timing import Timing, by_turns, clock_for, keep_pages, machine, versions
from benchmarks.support.vectors import instruction_sets, measure_apart
from qcore import BlockScaled, parse
from qtorch import quantize

FEW, MANY = "nf4", "a table of 256 numbers"
TEXTS = {MANY: f"table({[one / 64 for one in range(-128, 128)]})"}
LAWS, FOUR_OVER_SIX = "te / torchao", "nvfp4(four_over_six=mae)"
LAW = 1.1  # Transformer Engine's law takes a reciprocal for each block, which torchao's does not

# Formats by what they may take at 2^20 and at 2^24 elements, in baselines; None has no limit.
TORCH = {
    ("nearest", FEW): {MIDDLE: None, LARGE: 3.0},
    ("nearest", MANY): {MIDDLE: None, LARGE: 6.0},
    (LAWS, "nvfp4"): {MIDDLE: LAW, LARGE: LAW},
    (LAWS, "nvfp4({-2:16,-1:16})"): {MIDDLE: LAW, LARGE: LAW},
    ("nearest", FOUR_OVER_SIX): {MIDDLE: None},  # operation by operation, as the next one: seconds at 2^24
    ("nearest", "mx9"): {MIDDLE: None},
}
_NVFP4, _BLOCKS = ({size: BOUNDS[kind, size].limits["jax"] for size in (MIDDLE, LARGE)} for kind in ("nvfp4", "block"))
JAX = {
    ("nearest", "nvfp4"): _NVFP4,
    ("nearest", "mxfp8_e4m3"): _BLOCKS,
    ("nearest", "mxfp4"): _BLOCKS,
    ("nearest", FEW): {MIDDLE: None, LARGE: None},
    ("nearest", FOUR_OVER_SIX): {MIDDLE: None, LARGE: None},
    ("nearest", "mx9"): {MIDDLE: None, LARGE: None},
}


def limits_of(vectors: str) -> dict[tuple[str, str], dict[int, float | None]]:
    """What rows of an instruction set, or of JAX, may take, by operation and format and by size."""
    return JAX if vectors == "jax" else TORCH


def cases(vectors: str) -> Iterator[tuple[Case, float | None]]:
    """The rows of an instruction set, or of JAX, and what they may take."""
    for (operation, text), limits in limits_of(vectors).items():
        for exponent, limit in limits.items():
            yield Case(operation, text, "float32", exponent), limit


def timings(vectors: str, case: Case, seconds: float) -> list[Timing]:
    """The operation and its baseline."""
    if vectors == "jax":
        return time_jax(case, "cpu", seconds)
    if case.operation != LAWS:
        return time_torch(case, "cpu", seconds)
    x, number = torch.randn(case.shape), parse(case.format, BlockScaled)
    calls = [partial(quantize, x, one, "nearest") for one in (number, replace(number, rule="torchao_0_16"))]
    return by_turns(calls, clock_for("cpu"), seconds)


def measure(vectors: str, seconds: float) -> Iterator[Row]:
    """All rows of this process."""
    for case, limit in cases(vectors):
        ours, baseline = timings(vectors, replace(case, format=TEXTS.get(case.format, case.format)), seconds)
        yield Row(vectors, case, ours.median, baseline.median, limit)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.formats", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each row, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine, rows and limits there")
    parser.add_argument("--vectors", help="measure one instruction set, or jax, in this process; a JSON object a row")
    options = parser.parse_args(argv)
    if options.vectors:
        for row in measure(options.vectors, options.seconds):
            print(json.dumps(asdict(row)), flush=True)
        return 0
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    rows: list[Row] = []
    for vectors in [*instruction_sets(), *(["jax"] if find_spec("jax") else [])]:
        records = measure_apart("benchmarks.formats", vectors, ["--seconds", str(options.seconds)])
        found = [
            Row(one["vectors"], Case(**one["case"]), one["seconds"], one["baseline"], one["limit"]) for one in records
        ]
        console.print(speed_table(vectors, found))
        rows += found
    missed = sum(row.met is False for row in rows)
    limits = {"checked": sum(row.limit is not None for row in rows), "missed": missed}
    if options.json:
        facts = {"versions": versions(), "machine": machine("cpu")}
        write_results(options.json, facts | {"rows": [row.record() for row in rows], "limits": limits})
    console.print(f"{missed} of {limits['checked']} limits missed", style="red" if missed else "green")
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
