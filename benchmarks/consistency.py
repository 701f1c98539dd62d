"""Whether NumPy, PyTorch and JAX round to the same bits: every format and mode, on hard inputs and real tensors.

    python -m benchmarks.consistency --quick                         one format of each kind, in less than a minute
    python -m benchmarks.consistency                                 all formats, modes and policies, ten minutes
    python -m benchmarks.consistency --all                           with more inputs, and real tensors in all shapes
    python -m benchmarks.consistency --jobs 1                        one after the other, with steadier times
    python -m benchmarks.consistency --formats "float(5" --rounding stochastic --json bits.json
    python -m benchmarks.consistency --part fake-quantization        one of the parts; "formats" is what the above has

Programs for torch.compile follow, one format of each kind forward and backward, then affine fake quantization and
products with accumulators, unless --formats or --rounding chooses. Each part prints its count as it ends. A run that
is stopped (Ctrl-C) reports what it has, and writes it. With QTORCH_KERNELS=inductor eager calls of torch are those of
Inductor's packages, each of which takes half a minute to compile: choose a part, formats or modes.

A result differs where its bits do: the sign of zero and NaN payloads count. The reference is qcore. Times are of
rounding alone, without the first call where that compiles; several jobs disturb each other's. The exit status is 1
where anything differs, 130 where a run was stopped before any did, else 0. `benchmarks.sweep` goes through all 2^32
inputs of a format.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from functools import cache, partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.support import compiled, fake_quantization, products
from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.backends import Backend, all_backends, reference
from benchmarks.support.comparison import Case, Extent, Piece, compare
from benchmarks.support.inputs import BLOCKS, FORMATS, MODES, MORE, hard_inputs
from benchmarks.support.processes import processes, stopped_by_parent
from benchmarks.support.programs import keep_programs
from benchmarks.support.progress import Progress
from benchmarks.support.real_data import training_tensors
from benchmarks.support.report import environment, print_report
from benchmarks.support.results import write_results
from benchmarks.support.timing import usable_cores
from qcore import Number, Rounding, parse
from qcore.formats.block import BlockNumber
from qcore.formats.number import prepare
from qcore.law.carrier import FLOAT32

COUNT = 57_600  # inputs a format: one size for all formats, for which JAX compiles once
BLOCK_COUNT = 28_800  # inputs of a block format
ALL_COUNT = 345_600  # with --all: 24 hard blocks of 120 x 120
FEWER = 12  # with --all: times fewer for the formats beyond FORMATS, of which there are many
QUICK_COUNT = 14_400  # with --quick
PARTS = ("formats", "compiled", "fake-quantization", "products")
STOPPED = 130  # the exit status of a shell's command that Ctrl-C ended

Work = Callable[[Number], list[Case]]
Cases = Iterator[list[Case]]


class Part(NamedTuple):
    """A part of the job: its name, how many things it compares, their plural, and their cases, thing by thing."""

    name: str
    total: int
    unit: str
    compare: Callable[[Progress], Cases]


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    begin = perf_counter()
    extent: Extent = "quick" if arguments.quick else "all" if arguments.all else "usual"
    every = [parse(text) for text in compiled.KINDS] if arguments.quick else FORMATS + MORE + BLOCKS
    formats = [number for number in every if arguments.formats in number.text]
    if not formats:
        names = ", ".join(number.text for number in every)
        parser.error(f"argument --formats: {arguments.formats!r} is in no format's text; the texts are: {names}")
    found: dict[str, list[Case]] = {}
    stopped = False
    try:
        for part in _parts(formats, extent, arguments):
            _compare(part, found.setdefault(part.name, []))
    except KeyboardInterrupt:
        stopped = True
        print("stopped; these were compared:", file=sys.stderr)
    places = {number.text: place for place, number in enumerate(formats)}
    found.get("formats", []).sort(key=lambda case: places[case.format])  # processes bring them in any order
    cases = [case for of in found.values() for case in of]
    seconds = perf_counter() - begin
    if arguments.json:
        record = environment() | {"seconds": round(seconds, 1), "cases": [case.record() for case in cases]}
        write_results(arguments.json, record | ({"stopped": True} if stopped else {}))
    if cases:
        print_report(cases, seconds)
    return int(any(case.differing for case in cases)) or STOPPED * stopped


def _parts(formats: Sequence[Number], extent: Extent, arguments: argparse.Namespace) -> Iterator[Part]:
    """The parts that are asked for."""
    names = arguments.part or (PARTS[:1] if arguments.formats or arguments.rounding else PARTS)
    jobs = arguments.jobs or usable_cores()
    programs, ranges, pairs = compiled.programs(extent), fake_quantization.rows(extent), products.rows(extent)
    parts = (
        Part("formats", len(formats), "formats", partial(_compare_formats, formats, extent, arguments, jobs)),
        Part("compiled", len(programs), "programs", lambda _: compiled.compare_compiled(programs, jobs)),
        Part("fake-quantization", len(ranges), "ranges", lambda _: fake_quantization.compare_fake_quantization(ranges)),
        Part("products", len(pairs), "products", lambda _: products.compare_products(pairs)),
    )
    return (part for part in parts if part.name in names)


def _compare(part: Part, cases: list[Case]) -> None:
    """Adds the cases of a part, as they come, and prints how many results differ."""
    begin = perf_counter()
    with Progress(part.total, part.unit) as progress:
        for done, found in enumerate(part.compare(progress), start=1):
            cases += found
            progress.show(done)
    compared = [case for case in cases if case.backend != cases[0].backend]
    differing, results = (sum(getattr(case, name) for case in compared) for name in ("differing", "inputs"))
    print(f"{part.name}: {differing:,} of {results:,} results differ, {perf_counter() - begin:.0f} s", file=sys.stderr)


def _compare_formats(
    formats: Sequence[Number], extent: Extent, arguments: argparse.Namespace, jobs: int, progress: Progress
) -> Cases:
    """Every format and mode on all backends, in so many processes; formats come as they are done."""
    real = list(training_tensors().values())
    modes = arguments.rounding or (None if extent == "quick" else MODES)
    work = partial(_compare_format, modes=modes, count=arguments.count, extent=extent, real=real)
    ordered = in_compiling_order(formats)
    return _in_processes(work, ordered, jobs, progress) if jobs > 1 else _here(work, ordered, progress)


def in_compiling_order(formats: Sequence[Number]) -> list[Number]:
    """First one format of each kind that compiles programs of its own, so that no two processes compile the same."""
    groups: dict[object, list[Number]] = {}
    for number in formats:
        kind = prepare(number, Rounding.NEAREST, FLOAT32, None, False)[0].kind
        groups.setdefault((kind, number.block_sizes(3)), []).append(number)
    return [number for group in itertools.zip_longest(*groups.values()) for number in group if number is not None]


def _here(work: Work, formats: Sequence[Number], progress: Progress) -> Cases:
    for done, number in enumerate(formats):
        progress.show(done, number.text)
        yield work(number)


def _in_processes(work: Work, formats: Sequence[Number], jobs: int, progress: Progress) -> Cases:
    with processes(jobs, _start_job) as pool:
        with stopped_by_parent():
            left = {pool.submit(work, number): number for number in formats}
        while left:
            running = list(left.values())[:jobs]  # processes take them in order
            progress.show(len(formats) - len(left), ", ".join(number.text for number in running))
            for future in wait(left, return_when=FIRST_COMPLETED).done:
                del left[future]
                yield future.result()


def _start_job() -> None:
    keep_programs(quiet=True)
    torch.set_num_threads(1)  # the other jobs have the other processors


def _compare_format(
    number: Number, modes: Sequence[str] | None, count: int | None, extent: Extent, real: Sequence[np.ndarray]
) -> list[Case]:
    if extent == "all":
        usual = ALL_COUNT if number in FORMATS else ALL_COUNT // FEWER
    elif extent == "quick":
        usual = QUICK_COUNT
    else:
        usual = BLOCK_COUNT if isinstance(number, BlockNumber) else COUNT
    pieces = _pieces(number, count or usual, extent == "all", real)
    return [case for mode in modes or _quick_modes(number) for case in compare(number, mode, pieces, _backends())]


def _quick_modes(number: Number) -> list[str]:
    """To nearest and stochastically, or two others: formats take turns, so that together they have all modes."""
    turn, other = divmod([parse(text) for text in compiled.KINDS].index(number), 2)
    others = [mode for mode in MODES if mode not in ("nearest", "stochastic")]
    return [others[(2 * turn + i) % len(others)] for i in range(2)] if other else ["nearest", "stochastic"]


@cache
def _backends() -> list[Backend]:
    return [reference(), *all_backends()]


def _pieces(number: Number, count: int, everything: bool, real: Sequence[np.ndarray]) -> list[Piece]:
    """Hard and real inputs.

    Elementwise formats get them in one array of `count` elements. Blocks get hard ones in arrays of one shape, and real
    ones in one more of that shape, for which JAX compiles nothing anew; with `everything` all tensors in their own
    shapes.
    """
    flat = np.concatenate([x.ravel() for x in real])
    if not isinstance(number, BlockNumber):
        some = np.random.default_rng(0).choice(flat, count // 8)
        return [Piece(np.concatenate([*hard_inputs(number, count - some.size), some]))]
    hard = hard_inputs(number, count)
    if everything:
        least = getattr(number, "dim", 2) + 1
        return [*map(Piece, hard), *(Piece(x, hard=False) for x in real if x.ndim >= least)]
    return [*map(Piece, hard), Piece(np.resize(flat, hard[0].shape))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.consistency", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="one format of each kind, two modes each: a minute")
    extent.add_argument("--all", action="store_true", help="more inputs, and real tensors in all their shapes: an hour")
    add("--formats", metavar="SUBSTRING", default="", help="only formats whose text contains this")
    add(
        "--count",
        metavar="N",
        type=count_of("inputs", 1000),
        help=f"inputs a format (default {COUNT}, fewer in blocks)",
    )
    add("--rounding", metavar="MODE", action="append", choices=MODES, help="only this mode; repeatable")
    add("--part", action="append", choices=PARTS, help="only this part; repeatable (default: all)")
    add("--jobs", metavar="N", type=count_of("process", 1), help="processes (default: all cores)")
    add("--json", metavar="FILE", type=output_file, help="write versions, machine and all results there")
    return parser


if __name__ == "__main__":
    keep_programs()
    sys.exit(main())
