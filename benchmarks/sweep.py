"""All 2^32 float32 numbers through NumPy, PyTorch's kernels and JAX, bits compared: on this machine or on a cluster.

    python -m benchmarks.sweep --formats e5m2 "fixed(8,4)" --modes nearest stochastic --json sweep.json
    python -m benchmarks.sweep --all-named --json sweep.json        every named format of 16 bits and less, hours
    python -m benchmarks.sweep --all-named --plan                   what that would be, in pieces
    python -m benchmarks.sweep --new --json benchmarks/results/exhaustive-new.json   named ones that no such file has
    python -m benchmarks.sweep --formats e5m2 --range 0x37000000:0x3b000000
    python -m benchmarks.sweep --all-named --scheduler tcp://node1:8786 --json sweep.json

A sweep consists of pieces, each a range of bit patterns of one format and mode. Each is written to the --json file when
it is done: the same command goes on where an earlier one stopped. If a worker dies, another does its piece again. The
exit status is 0 where all is done and nothing differs, 1 where something differs, 3 where pieces are missing, 2 where
nothing was begun.

On a cluster, run `dask scheduler` on one machine, and `dask worker tcp://... --nthreads 1 --nworkers N` on each in this
repository's folder, with the same versions of all packages.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.support.arguments import count_of, elementwise, output_file
from benchmarks.support.cluster import ClusterError, connected, processes, results
from benchmarks.support.inputs import MODES
from benchmarks.support.limits import RESULTS
from benchmarks.support.programs import keep_programs
from benchmarks.support.progress import Progress
from benchmarks.support.report import environment, print_report
from benchmarks.support.sweep_piece import sweep_piece
from benchmarks.support.sweep_results import Results, ResultsError, Span, open_results
from benchmarks.support.timing import usable_cores
from qcore import NAMED, Number, parse
from qcore.formats.block import BlockNumber

PATTERNS = 1 << 32  # the bit patterns of float32
PIECE = 1 << 26  # how many of them a worker gets at a time: seconds of work, which is what its death costs
ALL_MODES = ("e4m3fn", "e5m2", "bfloat16")  # in the modes below with --all-named, the others to nearest only
# "stochastic_b" and "stochastic_c" are the law of "stochastic" on other words, which tests compare with their formulas.
SWEPT_MODES = [mode for mode in MODES if mode not in ("stochastic_b", "stochastic_c")]
WIDEST = 16  # bits of the formats that --all-named takes
NARROW = 8  # and --new
P3109 = ("Binary8p4se", "Binary8p3se", "Binary4p2sf")  # of its many names those that the report demands


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if [arguments.all_named, arguments.new, bool(arguments.formats)].count(True) != 1:
        parser.error("one of --formats, --all-named and --new is needed, and only one")
    pairs = all_named() if arguments.all_named else new_formats(arguments.json) if arguments.new else None
    pairs = [*itertools.product(arguments.formats, arguments.modes or ["nearest"])] if pairs is None else pairs
    spans = [Span(number.text, mode, *arguments.range) for number, mode in pairs]
    try:
        known = open_results(arguments.json, environment())
        pieces = [piece for span in spans for piece in known.missing(span, PIECE)]
        if arguments.plan:
            patterns = sum(piece.stop - piece.start for piece in pieces)
            print(f"{len(pairs)} pairs of format and mode, {len(pieces):,} pieces missing, {patterns:,} bit patterns")
            return 0
        known.save()
        return sweep(known, pieces, arguments.scheduler, arguments.workers or usable_cores(), arguments.timeout)
    except (ClusterError, ResultsError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def all_named() -> list[tuple[Number, str]]:
    """Every named elementwise format of at most 16 bits to nearest, and some in the other modes as well."""
    numbers = {name: number for name, (number, _) in NAMED.items() if not isinstance(number, BlockNumber)}
    narrow = {name: number for name, number in numbers.items() if number.bits <= WIDEST}
    modes = {name: SWEPT_MODES if name in ALL_MODES else SWEPT_MODES[:1] for name in narrow}
    return [(number, mode) for name, number in narrow.items() for mode in modes[name]]


def new_formats(own: Path | None, folder: Path = RESULTS) -> list[tuple[Number, str]]:
    """Every named elementwise format of at most 8 bits to nearest that no result file but our own has whole."""
    swept = {
        row["format"]
        for path in folder.glob("exhaustive-*.json")
        if own is None or path.resolve() != own.resolve()
        for row in json.loads(path.read_text(encoding="utf-8"))["cases"]
        if row["rounding"] == "nearest" and row.get("done") == [[0, PATTERNS]]
    }
    numbers = [number for number, _ in NAMED.values() if not isinstance(number, BlockNumber)] + [*map(parse, P3109)]
    return [(number, "nearest") for number in numbers if number.bits <= NARROW and number.text not in swept]


def sweep(
    known: Results,
    pieces: Sequence[Span],
    scheduler: str | None,
    workers: int,
    timeout: float,
    work: Callable[..., Any] = sweep_piece,
) -> int:
    """Does the pieces, adds what they find to what is known, and reports all of it; returns the exit status."""
    begin, left, problem = perf_counter(), list(pieces), ""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers may share a GPU
    keep_programs()  # says so where that fails; workers do not
    try:
        if pieces:
            with Progress(len(pieces), "pieces") as progress, connected(scheduler, workers, timeout) as client:
                threads = processes(client)
                progress.show(0, _running(left, threads))
                for piece, found in results(client, work, pieces):
                    if isinstance(found, BaseException):
                        problem = problem or f"{' '.join(map(str, piece))}: {type(found).__name__}: {found}"
                        continue
                    known.add(piece, *found)
                    left.remove(piece)
                    progress.show(len(pieces) - len(left), _running(left, threads))
    except KeyboardInterrupt:
        problem = "interrupted"
    except (ClusterError, ResultsError, OSError) as error:
        if not known.cases:
            raise
        problem = str(error)
    return _report(known, len(left), len(pieces), problem, perf_counter() - begin)


def _running(left: Sequence[Span], threads: int) -> str:
    """The pieces that workers have by now, since they take them in order."""
    return ", ".join(f"{piece.format} {piece.rounding} {piece.start:#x}" for piece in left[:threads])


def _report(known: Results, missing: int, total: int, problem: str, seconds: float) -> int:
    cases = known.all_cases()
    if cases:
        print_report(cases, seconds, columns="case")
    if problem:
        print(f"stopped or failed: {problem}", file=sys.stderr)
    if missing:
        again = (
            f"the same command goes on from {known.path}" if known.path else "--json FILE would have kept the others"
        )
        print(f"{missing:,} of {total:,} pieces are missing; {again}", file=sys.stderr)
    return 1 if any(case.differing for case in cases) else 3 if missing else 0


def patterns_range(text: str) -> tuple[int, int]:
    """The bit patterns that START:STOP names."""
    try:
        start, stop = (int(part, 0) for part in text.split(":"))
    except ValueError:
        start = stop = -1
    if not 0 <= start < stop <= PATTERNS:
        raise argparse.ArgumentTypeError(f"{text}: allowed is START:STOP with 0 <= START < STOP <= {PATTERNS:#x}")
    return start, stop


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: allowed are seconds above 0")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.sweep", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--formats", metavar="FORMAT", type=elementwise, nargs="+", help="names or texts, such as e5m2 'fixed(8,4)'")
    add("--modes", metavar="MODE", choices=MODES, nargs="+", help="rounding modes (default: nearest)")
    add(
        "--all-named",
        action="store_true",
        help=f"named formats to nearest, {', '.join(ALL_MODES)} in {len(SWEPT_MODES)} modes",
    )
    add("--new", action="store_true", help=f"named formats of up to {NARROW} bits to nearest that no result file has")
    add("--range", metavar="START:STOP", type=patterns_range, default=(0, PATTERNS), help="bit patterns (default: all)")
    add("--json", metavar="FILE", type=output_file, help="keep results there, and go on from it")
    add("--plan", action="store_true", help="only say how many pieces there are to do")
    add("--scheduler", metavar="ADDRESS", help="of dask, such as tcp://node1:8786 (default: workers on this machine)")
    add("--workers", metavar="N", type=count_of("worker", 1), help="on this machine (default: all cores)")
    add("--timeout", metavar="SECONDS", type=_seconds, default=30.0, help="for a scheduler to answer (default 30)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
