"""All 2^32 float32 numbers through the elementary functions and their derivatives in NumPy, PyTorch and JAX.

    python -m benchmarks.functions --json functions.json                        all of them: hours
    python -m benchmarks.functions --functions exp gelu --range 0x3f800000:0x40000000
    python -m benchmarks.functions --speed                                       2^24 elements beside torch's own

Bits are compared: NumPy decides, torch runs eagerly and compiled, JAX under jit. As in `benchmarks.sweep`, a piece is
written to the file when it is done, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import qtorch
from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.cluster import ClusterError
from benchmarks.support.function_piece import KINDS, function_piece
from benchmarks.support.report import environment
from benchmarks.support.sweep_results import ResultsError, Span, open_results
from benchmarks.support.timing import by_turns, clock_for, keep_pages, usable_cores
from benchmarks.sweep import PATTERNS, PIECE, patterns_range, sweep
from qcore.numerics.elementary.laws import ELEMENTARY

SIZE, LIMIT = 1 << 24, 3.0  # elements to time, and how many times torch's own time a function may take
OWN: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sin", "cos")},
    **{name: getattr(torch, name) for name in ("sqrt", "rsqrt", "reciprocal", "relu")},
    **{name: getattr(torch.nn.functional, name) for name in ("softplus", "silu", "gelu")},
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.functions", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--functions", metavar="NAME", choices=list(ELEMENTARY), nargs="+", default=list(ELEMENTARY))
    add("--range", metavar="START:STOP", type=patterns_range, default=(0, PATTERNS), help="bit patterns (default: all)")
    add("--json", metavar="FILE", type=output_file, help="keep results there, and go on from it")
    add("--workers", metavar="N", type=count_of("worker", 1), default=usable_cores(), help="(default: all cores)")
    add("--speed", action="store_true", help="only time the functions of 2^24 elements")
    arguments = parser.parse_args(argv)
    if arguments.speed:
        return time(arguments.functions)
    try:
        known = open_results(arguments.json, environment())
        spans = [Span(name, kind, *arguments.range) for name, kind in itertools.product(arguments.functions, KINDS)]
        pieces = [piece for span in spans for piece in known.missing(span, PIECE)]
        known.save()
        return sweep(known, pieces, None, arguments.workers, 30.0, function_piece)
    except (ClusterError, ResultsError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def time(names: Sequence[str]) -> int:
    """Times compiled functions beside torch's own, compiled as well; 1 if one takes too long."""
    x = torch.randn(SIZE)
    slow = 0
    for name in names:
        torch._dynamo.reset()
        ours = partial(qtorch.reproducible.gelu, approximate="tanh") if name == "gelu_tanh" else None
        ours = ours or getattr(qtorch.reproducible, name)
        calls = [partial(torch.compile(function), x) for function in (ours, OWN[name])]
        mine, own = by_turns(calls, clock_for("cpu"), seconds=1.0)
        ratio = mine.median / own.median
        slow += ratio > LIMIT
        print(f"{name:12} {mine.median * 1e3:7.2f} ms, torch's {own.median * 1e3:7.2f} ms, {ratio:5.2f} times")
    print(f"{slow} of {len(names)} take more than {LIMIT:g} times torch's time")
    return int(slow > 0)


if __name__ == "__main__":
    if "--speed" in sys.argv:
        keep_pages()
    sys.exit(main())
