"""Whether NumPy, PyTorch and JAX round to the same bits: every format and mode, on hard inputs and real tensors.

    python -m benchmarks.consistency                                 all formats, modes and policies, minutes
    python -m benchmarks.consistency --all                           with more inputs, and real tensors in all shapes
    python -m benchmarks.consistency --jobs 1                        one after the other, with steadier times
    python -m benchmarks.consistency --formats "float(5" --rounding stochastic --json bits.json
    python -m benchmarks.consistency --part fake-quantization        one of the parts; "formats" is what the above has

Programs for torch.compile follow, one format of each kind forward and backward, then affine fake quantization and
products with accumulators, unless --formats or --rounding chooses. With QTORCH_KERNELS=inductor eager calls of torch
are those of Inductor's packages, each of which takes half a minute to compile: choose a part, formats or modes.

A result differs where its bits do: the sign of zero and NaN payloads count. The reference is qcore. Times are of
rounding alone, without the first call where that compiles; several jobs disturb each other's. The exit status is 1
where anything differs, else 0. `benchmarks.sweep` goes through all 2^32 inputs of a format.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import cache, partial
from time import perf_counter

import numpy as np
import torch

from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.backends import Backend, all_backends, reference
from benchmarks.support.comparison import Case, Piece, compare
from benchmarks.support.compiled import compare_compiled
from benchmarks.support.fake_quantization import compare_fake_quantization
from benchmarks.support.inputs import BLOCKS, FORMATS, MODES, MORE, hard_inputs
from benchmarks.support.products import compare_products
from benchmarks.support.programs import keep_programs
from benchmarks.support.progress import Progress
from benchmarks.support.real_data import training_tensors
from benchmarks.support.report import environment, print_report
from benchmarks.support.results import write_results
from benchmarks.support.timing import usable_cores
from qcore import Number, Rounding
from qcore.formats.block import BlockNumber
from qcore.formats.number import prepare
from qcore.law.carrier import FLOAT32

COUNT = 57_600  # inputs a format: one size for all formats, for which JAX compiles once
BLOCK_COUNT = 28_800  # inputs of a block format
ALL_COUNT = 345_600  # with --all: 24 hard blocks of 120 x 120
FEWER = 12  # with --all: times fewer for the formats beyond FORMATS, of which there are many
PARTS = ("formats", "compiled", "fake-quantization", "products")

Work = Callable[[Number], list[Case]]
Found = Iterator[tuple[Number, list[Case]]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    begin = perf_counter()
    formats = [number for number in FORMATS + MORE + BLOCKS if arguments.formats in number.text]
    if not formats:
        names = ", ".join(number.text for number in FORMATS + MORE + BLOCKS)
        parser.error(f"argument --formats: {arguments.formats!r} is in no format's text; the texts are: {names}")
    jobs = arguments.jobs or usable_cores()
    parts = arguments.part or (PARTS[:1] if arguments.formats or arguments.rounding else PARTS)
    cases: list[Case] = []
    if "formats" in parts:
        cases += run(formats, arguments.rounding or MODES, arguments.count, arguments.all, jobs)
    if "compiled" in parts:
        cases += compare_compiled(arguments.all, jobs)
    if "fake-quantization" in parts:
        cases += compare_fake_quantization(arguments.all)
    if "products" in parts:
        cases += compare_products()
    seconds = perf_counter() - begin
    if arguments.json:
        record = environment() | {"seconds": round(seconds, 1), "cases": [case.record() for case in cases]}
        write_results(arguments.json, record)
    print_report(cases, seconds)
    return int(any(case.differing for case in cases))


def run(formats: Sequence[Number], modes: Sequence[str], count: int | None, everything: bool, jobs: int) -> list[Case]:
    """Compares every format and mode on all backends, in so many processes."""
    real = list(training_tensors().values())
    work = partial(_compare_format, modes=modes, count=count, everything=everything, real=real)
    found: dict[Number, list[Case]] = {}
    with Progress(len(formats), "formats") as progress:
        ordered = in_compiling_order(formats)
        results = _in_processes(work, ordered, jobs, progress) if jobs > 1 else _here(work, ordered, progress)
        for number, cases in results:
            found[number] = cases
    return [case for number in formats for case in found[number]]


def in_compiling_order(formats: Sequence[Number]) -> list[Number]:
    """First one format of each kind that compiles programs of its own, so that no two processes compile the same."""
    groups: dict[object, list[Number]] = {}
    for number in formats:
        kind = prepare(number, Rounding.NEAREST, FLOAT32, None, False)[0].kind
        groups.setdefault((kind, number.block_sizes(3)), []).append(number)
    return [number for group in itertools.zip_longest(*groups.values()) for number in group if number is not None]


def _here(work: Work, formats: Sequence[Number], progress: Progress) -> Found:
    for done, number in enumerate(formats):
        progress.show(done, number.text)
        yield number, work(number)
        progress.show(done + 1)


def _in_processes(work: Work, formats: Sequence[Number], jobs: int, progress: Progress) -> Found:
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_job) as pool:
        left = {pool.submit(work, number): number for number in formats}
        try:
            while left:
                running = list(left.values())[:jobs]  # processes take them in order
                progress.show(len(formats) - len(left), ", ".join(number.text for number in running))
                for future in wait(left, return_when=FIRST_COMPLETED).done:
                    yield left.pop(future), future.result()
            progress.show(len(formats))
        finally:
            pool.shutdown(cancel_futures=True)  # nobody waits for the others after an error


def _start_job() -> None:
    keep_programs(quiet=True)
    torch.set_num_threads(1)  # the other jobs have the other processors


def _compare_format(
    number: Number, modes: Sequence[str], count: int | None, everything: bool, real: Sequence[np.ndarray]
) -> list[Case]:
    if everything:
        usual = ALL_COUNT if number in FORMATS else ALL_COUNT // FEWER
    else:
        usual = BLOCK_COUNT if isinstance(number, BlockNumber) else COUNT
    pieces = _pieces(number, count or usual, everything, real)
    return [case for mode in modes for case in compare(number, mode, pieces, _backends())]


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
    add("--all", action="store_true", help="more inputs, and real tensors in all their shapes: several times as long")
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
