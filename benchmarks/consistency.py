"""Whether NumPy, PyTorch and JAX round to the same bits: every format and mode, on hard inputs and real tensors.

    python -m benchmarks.consistency                                 all formats, modes and policies, minutes
    python -m benchmarks.consistency --jobs 1                        one after the other, with steadier times
    python -m benchmarks.consistency --formats "float 5" --count 50000
    python -m benchmarks.consistency --exhaustive "float 5 2"        all 2^32 float32 numbers
    python -m benchmarks.consistency --exhaustive "fixed 8 4" --rounding stochastic --json bits.json

A result differs where its bits do: the sign of zero and NaN payloads count. The reference is qcore. Times are of
rounding alone, without the first call where that compiles; several jobs disturb each other's. The exit status is 1
where anything differs, else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.backends import Backend, all_backends, fast_backends, reference, reference_in_pieces
from benchmarks.format_names import elementwise, format_name
from benchmarks.inputs import BLOCKS, FORMATS, MODES, MORE, hard_inputs
from benchmarks.real_data import training_tensors
from benchmarks.timing import versions
from qcore import Number
from qcore.block import BlockNumber

COUNT = 345_600  # 24 hard blocks of 120 x 120
FEWER = 12  # times fewer of them for the formats beyond FORMATS, of which there are many
PATTERNS = 1 << 32  # the bit patterns of float32
CHUNK = 1 << 24  # how many of them at a time


class Piece(NamedTuple):
    """An array to round.

    Attributes:
        x: the array.
        start: the index of its first element.
        hard: whether it is of the hard inputs, with which every backend is compared.
    """

    x: np.ndarray
    start: int = 0
    hard: bool = True


@dataclass
class Case:
    """What was found for a format and a rounding mode on a backend; `example` is the first difference."""

    format: str
    rounding: str
    backend: str
    inputs: int = 0
    differing: int = 0
    seconds: float = 0.0
    example: str = ""

    @property
    def ns_per_element(self) -> float:
        return self.seconds * 1e9 / self.inputs

    def record(self) -> dict[str, str | int | float]:
        """What JSON gets."""
        names = ("format", "rounding", "backend", "inputs", "differing", "ns_per_element")
        return {name: getattr(self, name) for name in names}

    def add(self, piece: Piece, expected: np.ndarray, result: np.ndarray, seconds: float) -> None:
        """Compares bits."""
        self.inputs += piece.x.size
        self.seconds += seconds
        given, wanted, got = (array.view(np.uint32).ravel() for array in (piece.x, expected, result))
        places = np.flatnonzero(got != wanted)
        if places.size and not self.differing:
            first = places[0]
            index = piece.start + first
            self.example = f"{given[first]:08x} at index {index} became {got[first]:08x}, not {wanted[first]:08x}"
        self.differing += places.size


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    begin = perf_counter()
    if arguments.exhaustive:
        if arguments.formats or arguments.count != COUNT or arguments.jobs:
            parser.error(
                "argument --exhaustive: takes no --formats, --count or --jobs: one format, all inputs, one process"
            )
        cases = exhaustive_run(arguments.exhaustive, arguments.rounding or ("nearest", "stochastic"))
    else:
        formats = [number for number in FORMATS + MORE + BLOCKS if arguments.formats in format_name(number)]
        if not formats:
            names = ", ".join(map(format_name, FORMATS + MORE + BLOCKS))
            parser.error(f"argument --formats: {arguments.formats!r} is in no format's name; the names are: {names}")
        cases = grid_run(formats, arguments.rounding or MODES, arguments.count, arguments.jobs or os.cpu_count() or 1)
    _print_report(cases, perf_counter() - begin)
    if arguments.json:
        record = {"versions": _versions(), "cases": [case.record() for case in cases]}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(case.differing for case in cases))


def grid_run(formats: Sequence[Number], modes: Sequence[str], count: int, jobs: int) -> list[Case]:
    """Every format and mode on all backends, in so many processes."""
    real, cases = list(training_tensors().values()), []
    compared = partial(_compare_format, modes=modes, count=count, real=real)
    with _progress() as progress, contextlib.ExitStack() as stack:
        task = progress.add_task("", total=len(formats) * len(modes))
        found: Iterable[list[Case]] = map(compared, formats)
        if jobs > 1:
            pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_job)
            found = stack.enter_context(pool).map(compared, formats)
        for number, result in zip(formats, found, strict=True):
            cases += result
            progress.update(task, advance=len(modes), description=format_name(number))
    return cases


def _start_job() -> None:
    keep_programs()
    torch.set_num_threads(1)  # the other jobs have the other processors


def _compare_format(number: Number, modes: Sequence[str], count: int, real: Sequence[np.ndarray]) -> list[Case]:
    pieces = _pieces(number, count if number in FORMATS else max(count // FEWER, 1000), real)
    return [case for mode in modes for case in compare(number, mode, pieces, _backends())]


@cache
def _backends() -> list[Backend]:
    return [reference(), *all_backends()]


def exhaustive_run(number: Number, modes: Sequence[str]) -> list[Case]:
    """All float32 numbers on the fast backends; an element's index is its bit pattern."""
    backends, cases = [reference_in_pieces(), *fast_backends()], []
    with _progress() as progress:
        for mode in modes:
            pieces = progress.track(_all_patterns(), PATTERNS // CHUNK, description=f"{format_name(number)}, {mode}")
            cases += compare(number, mode, pieces, backends)
    return cases


def compare(number: Number, mode: str, pieces: Iterable[Piece], backends: Sequence[Backend]) -> list[Case]:
    """Rounds the pieces on each backend that takes the format and mode; the first backend is the reference."""
    taking = [backend for backend in backends if backend.pairs is None or (number, mode) in backend.pairs]
    quantizers = [backend.prepare(number, mode) for backend in taking]
    cases = [Case(format_name(number), mode, backend.name) for backend in taking]
    for piece in pieces:
        expected = None
        for backend, quantizer, case in zip(taking, quantizers, cases, strict=True):
            if piece.hard or not backend.hard_only:
                result, seconds = backend.run(quantizer, piece.x, piece.start)
                expected = result if expected is None else expected
                case.add(piece, expected, result, seconds)
    return cases


def _pieces(number: Number, count: int, real: Sequence[np.ndarray]) -> list[Piece]:
    """Hard and real inputs: blocks as they are, and for elementwise formats one array of `count` elements."""
    if isinstance(number, BlockNumber):
        least = getattr(number, "dim", 2) + 1
        shaped = [Piece(x, hard=False) for x in real if x.ndim >= least]
        return [*map(Piece, hard_inputs(number, count)), *shaped]
    flat = np.random.default_rng(0).choice(np.concatenate([x.ravel() for x in real]), count // 8)
    # All formats get one size, for which JAX compiles once.
    return [Piece(np.concatenate([*hard_inputs(number, count - flat.size), flat]))]


def _all_patterns() -> Iterator[Piece]:
    for start in range(0, PATTERNS, CHUNK):
        yield Piece(np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32), start)


def _count(text: str) -> int:
    count = int(text)
    if count < 1000:
        raise argparse.ArgumentTypeError(f"{count}: allowed are 1000 inputs and more")
    return count


def _jobs(text: str) -> int:
    jobs = int(text)
    if jobs < 1:
        raise argparse.ArgumentTypeError(f"{jobs}: allowed are 1 process and more")
    return jobs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.consistency", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--formats", metavar="SUBSTRING", default="", help="only formats whose name contains this")
    parser.add_argument("--count", metavar="N", type=_count, default=COUNT, help=f"inputs a format (default {COUNT})")
    parser.add_argument("--rounding", metavar="MODE", action="append", choices=MODES, help="only this mode; repeatable")
    parser.add_argument("--jobs", metavar="N", type=_jobs, help="processes (default: all cores)")
    parser.add_argument("--exhaustive", metavar="FORMAT", type=elementwise, help="all 2^32 inputs, for one format")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write versions and results there")
    return parser


def _progress() -> Progress:
    columns = TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))


def _print_report(cases: Sequence[Case], seconds: float) -> None:
    """A row for each format and mode, a row of totals, and a line that sums up."""
    backends = list(dict.fromkeys(case.backend for case in cases))
    rows: dict[tuple[str, str], dict[str, Case]] = {}
    for case in cases:
        rows.setdefault((case.format, case.rounding), {})[case.backend] = case
    totals = {backend: _total([case for case in cases if case.backend == backend]) for backend in backends}
    table = Table("format", "rounding", title="differing elements, and nanoseconds an element")
    for name in ("inputs", *backends):
        table.add_column(name, justify="right")
    for (number, mode), found in rows.items():
        table.add_row(number, mode, *_cells(found, backends))
    table.add_section()
    table.add_row("all", "", *_cells(totals, backends))
    console = Console()
    console = Console(width=max(console.width, 60 + 17 * len(backends)))  # a log's lines may be longer than 80
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in _versions().items()), highlight=False)
    for case in cases:
        if case.differing:
            console.print(f"{case.backend}, {case.format}, {case.rounding}: {case.example}", highlight=False)
    comparisons = sum(case.inputs for case in cases if case.backend != backends[0])
    differing = sum(case.differing for case in cases)
    summary = f"{len(rows)} pairs of format and rounding, {len(backends)} backends, {comparisons:,} comparisons"
    console.print(f"{summary}: {differing:,} differ ({seconds:.0f} s)", style="red" if differing else "green")


def _total(cases: Sequence[Case]) -> Case:
    total = Case("", "", cases[0].backend)
    for case in cases:
        total.inputs, total.differing = total.inputs + case.inputs, total.differing + case.differing
        total.seconds += case.seconds
    return total


def _cells(found: dict[str, Case], backends: Sequence[str]) -> Iterator[str]:
    yield f"{next(iter(found.values())).inputs:,}"
    for backend in backends:
        case = found.get(backend)
        style = "red" if case and case.differing else "none"
        yield f"[{style}]{case.differing:,}[/] {case.ns_per_element:7.2f}" if case else ""


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("ml_dtypes", "scikit-learn")}
    return versions() | packages | {"platform": platform.platform(), "processors": str(os.cpu_count())}


def keep_programs() -> None:
    """Keeps what JAX compiles on disk, as PyTorch's kernels are kept: thousands of small programs."""
    import jax

    from qtorch.kernels import cache_root

    jax.config.update("jax_compilation_cache_dir", str(cache_root() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


if __name__ == "__main__":
    keep_programs()
    sys.exit(main())
