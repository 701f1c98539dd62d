"""Whether NumPy, PyTorch and JAX round to the same bits: every format and mode, on hard inputs and real tensors.

    python -m benchmarks.consistency                                 all formats and modes, minutes
    python -m benchmarks.consistency --formats "float 5" --count 50000
    python -m benchmarks.consistency --exhaustive "float 5 2"        all 2^32 float32 numbers
    python -m benchmarks.consistency --exhaustive "fixed 8 4" --rounding stochastic --json bits.json

A result differs where its bits do: the sign of zero and NaN payloads count. The reference is qcore. Times are of
rounding alone, without the first call where that compiles. The exit status is 1 where anything differs, else 0.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.backends import Backend, all_backends, fast_backends, reference, reference_in_pieces
from benchmarks.inputs import FORMATS, MODES, hard_inputs
from benchmarks.real_data import training_tensors
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Number
from qcore.carrier import FLOAT32

COUNT = 960_000  # 24 hard blocks of 200 x 200
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
    """What was found for a format and a rounding mode on a backend."""

    format: str
    rounding: str
    backend: str
    inputs: int = 0
    differing: int = 0
    seconds: float = 0.0

    @property
    def ns_per_element(self) -> float:
        return self.seconds * 1e9 / max(self.inputs, 1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    begin = perf_counter()
    if arguments.exhaustive:
        cases = exhaustive_run(arguments.exhaustive, arguments.rounding or ("nearest", "stochastic"))
    else:
        formats = [number for number in FORMATS if arguments.formats in format_name(number)]
        if not formats:
            names = ", ".join(map(format_name, FORMATS))
            parser.error(f"argument --formats: {arguments.formats!r} is in no format's name; the names are: {names}")
        cases = grid_run(formats, arguments.rounding or MODES, arguments.count)
    _print_report(cases, perf_counter() - begin)
    if arguments.json:
        records = [{**asdict(case), "ns_per_element": case.ns_per_element} for case in cases]
        arguments.json.write_text(json.dumps({"versions": _versions(), "cases": records}, indent=1) + "\n")
    return int(any(case.differing for case in cases))


def grid_run(formats: Sequence[Number], modes: Sequence[str], count: int) -> list[Case]:
    """Every format and mode on all backends."""
    real, backends, cases = training_tensors(), [reference(), *all_backends()], []
    with _progress() as progress:
        task = progress.add_task("", total=len(formats) * len(modes) * len(backends))
        for number in formats:
            pieces = _pieces(number, count, list(real.values()))
            for mode in modes:
                progress.update(task, description=f"{format_name(number)}, {mode}")
                cases += compare(number, mode, pieces, backends, lambda: progress.advance(task))
    return cases


def exhaustive_run(number: Number, modes: Sequence[str]) -> list[Case]:
    """All float32 numbers on the fast backends; an element's index is its bit pattern."""
    backends, cases = [reference_in_pieces(), *fast_backends()], []
    with _progress() as progress:
        task = progress.add_task("", total=len(modes) * (PATTERNS // CHUNK))
        for mode in modes:
            progress.update(task, description=f"{format_name(number)}, {mode}")
            cases += compare(number, mode, _all_patterns(), backends, lambda: progress.advance(task))
    return cases
