"""All 2^32 float32 numbers through the elementary functions and their derivatives in NumPy, PyTorch and JAX.

    python -m benchmarks.functions --json functions.json                        all of them: a day of one processor
    python -m benchmarks.functions --functions exp gelu --pieces 3 4 --json functions.json
    python -m benchmarks.functions --speed --json functions-speed.json           2^24 elements beside torch's own

Each backend runs by itself, torch eagerly and compiled, JAX eagerly and under jit, and leaves a digest of the bits of
each sixteenth of all numbers, a piece: equal digests are equal bits. Digests are written to the file when they are
made: the same command goes on from there, and several may run at once, for other functions or backends. The exit status
is 1 if digests differ; then the inputs are searched that make the difference.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import qtorch
from benchmarks.support.arguments import output_file, refuse_record
from benchmarks.support.digest_results import PIECE, PIECES, Digests, DigestsError, Row, disagreements
from benchmarks.support.function_digests import BACKENDS, KINDS, difference, digest
from benchmarks.support.results import write_results
from benchmarks.support.timing import by_turns, clock_for, keep_pages, machine, versions
from qcore.reproducible.elementary import ELEMENTARY

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
    add("--kinds", metavar="KIND", choices=KINDS, nargs="+", default=KINDS, help="function or derivative")
    add("--backends", metavar="NAME", choices=BACKENDS, nargs="+", default=BACKENDS)
    add("--pieces", metavar="N", type=int, choices=range(PIECES), nargs="+", default=range(PIECES))
    add("--json", metavar="FILE", type=output_file, help="keep results there, and go on from it")
    add("--speed", action="store_true", help="only time the functions of 2^24 elements")
    arguments = parser.parse_args(argv)
    if arguments.speed:
        refuse_record(parser, arguments.json)
        return time(arguments.functions, arguments.json)
    with tempfile.TemporaryDirectory() as folder:
        environment: dict[str, Any] = {"versions": versions(), "machine": machine("cpu")}
        commit = environment["versions"].pop("commit")
        known = Digests(arguments.json or Path(folder) / "functions.json", environment)
        try:
            known.rows()
            for job in itertools.product(arguments.functions, arguments.kinds, arguments.backends):
                sweep(known, job, arguments.pieces, commit)
            return report([*known.rows().values()])
        except (DigestsError, OSError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 2


def sweep(known: Digests, job: tuple[str, str, str], pieces: Sequence[int], commit: str) -> None:
    """Makes the digests of a function that are missing."""
    for piece in sorted({*pieces} & {*known.rows().get(job, Row(*job)).missing}):
        known.put(job, piece, digest(*job, piece * PIECE, (piece + 1) * PIECE), commit)
        print(f"{', '.join(job)}: piece {piece}", flush=True)


def report(rows: list[Row]) -> int:
    """Says how much there is, and what differs; the exit status."""
    wrong = disagreements(rows)
    for first, second, piece in wrong:
        backends = first.backend, second.backend
        print(difference(first.function, first.kind, backends, piece * PIECE, (piece + 1) * PIECE), file=sys.stderr)
    done = sum(PIECES - len(row.missing) for row in rows)
    print(f"{done:,} digests of {PIECE:,} results each, {len(wrong)} pairs of them differ")
    return int(bool(wrong))


def time(names: Sequence[str], path: Path | None) -> int:
    """Times compiled functions beside torch's own, compiled as well; 0 also where a limit is missed."""
    x, rows = torch.randn(SIZE), []
    for name in names:
        torch._dynamo.reset()
        ours = partial(qtorch.reproducible.gelu, approximate="tanh") if name == "gelu_tanh" else None
        ours = ours or getattr(qtorch.reproducible, name)
        calls = [partial(torch.compile(function), x) for function in (ours, OWN[name])]
        mine, own = by_turns(calls, clock_for("cpu"), seconds=1.0)
        ratio = mine.median / own.median
        rows.append({"function": name, "seconds": mine.median, "own": own.median, "ratio": ratio})
        print(f"{name:12} {mine.median * 1e3:7.2f} ms, torch's {own.median * 1e3:7.2f} ms, {ratio:5.2f} times")
    slow = sum(row["ratio"] > LIMIT for row in rows)
    print(f"{slow} of {len(names)} take more than {LIMIT:g} times torch's time")
    if path is not None:
        write_results(path, {"versions": versions(), "machine": machine("cpu"), "limit": LIMIT, "rows": rows})
    return 0


if __name__ == "__main__":
    if "--speed" in sys.argv:
        keep_pages()
    sys.exit(main())
