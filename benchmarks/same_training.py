"""Trains the same models in NumPy, PyTorch and JAX, and prints a hash of all weights every 100 steps: one for all.

    python -m benchmarks.same_training                            1,000 steps of everything: many hours
    python -m benchmarks.same_training --models mlp --steps 200 --json same.json
    python -m benchmarks.same_training --models gpt --arithmetic hopper blackwell    on machines
    python -m benchmarks.same_training --time --json time.json    steps beside the ordinary float32 step

An MLP, PreResNet20 with batch norm and a GPT of two blocks with AdamW, on handwritten digits and on Python's help
texts, each in float32, in an FP8 recipe and in MXFP4 with stochastic rounding; and the GPT in float32 with further
optimizers. Each run has a process of its own. With
--json the same command goes on from what is there, a run in the middle from its weights in --states, or from the start
where these are gone; the exit status is 1 if hashes differ.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.support.arguments import count_of, output_file, refuse_record
from benchmarks.support.results import write_results
from benchmarks.support.timing import keep_pages, machine, versions
from benchmarks.training_models.environment import open_record
from benchmarks.training_models.programs import PROGRAMS
from benchmarks.training_models.recipes import ARITHMETIC, MACHINES
from benchmarks.training_models.record import Record, RecordError, Row, disagreements
from benchmarks.training_models.trainings import TRAININGS

ROOT = Path(__file__).resolve().parent.parent
STATES = ROOT / "build" / "same_training"
WIDTH = 100  # of tables where the output is a file


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.same_training", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--models", metavar="NAME", choices=list(TRAININGS), nargs="+", help="(default: all; to --time, three)")
    text = f"(default: {', '.join(ARITHMETIC)}; to --time, two)"
    add("--arithmetic", metavar="NAME", choices=[*ARITHMETIC, *MACHINES], nargs="+", help=text)
    add("--programs", metavar="NAME", choices=list(PROGRAMS), nargs="+", default=list(PROGRAMS))
    add("--steps", metavar="N", type=count_of("step", 1), default=1000, help="(default: 1000)")
    add("--every", metavar="N", type=count_of("step", 1), default=100, help="a hash after so many (default: 100)")
    add("--json", metavar="FILE", type=output_file, help="keep results there, and go on from it")
    add("--states", metavar="FOLDER", type=Path, default=STATES, help="keep weights there (default: build)")
    add("--time", action="store_true", help="only time steps; float32 and fp8 have limits")
    add("--seconds", type=float, default=10.0, help="for the steps of a model in a framework (default: 10)")
    arguments = parser.parse_args(argv)
    if arguments.time:
        refuse_record(parser, arguments.json)
        return time(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path, states = arguments.json or Path(folder) / "same_training.json", arguments.states
        record = open_record(path)[0]
        try:
            record.rows()
            states = states if arguments.json else Path(folder)
            states.mkdir(parents=True, exist_ok=True)
            failed = run_all(record, states, arguments)
            return report(record, failed)
        except (RecordError, OSError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 2


def run_all(record: Record, states: Path, arguments: argparse.Namespace) -> list[str]:
    """Runs everything that is asked for, one process after the other; the runs that failed."""
    failed = []
    jobs = [
        (model, arithmetic, name)
        for model in arguments.models or TRAININGS
        for arithmetic in arguments.arithmetic or TRAININGS[model].arithmetic
        for name in arguments.programs
        if TRAININGS[model].network in PROGRAMS[name].networks
    ]
    for model, arithmetic, name in jobs:
        program, every = PROGRAMS[name], arguments.every
        steps = max(int(arguments.steps * program.share) // every, 1) * every
        row = record.row((model, arithmetic, name))
        if row is not None and row.steps >= steps:
            continue
        command = [
            sys.executable,
            "-m",
            "benchmarks.training_models.worker",
            str(record.path.resolve()),
            str(states.resolve()),
        ]
        command += [model, arithmetic, name, str(steps), str(every)]
        if subprocess.run(command, cwd=ROOT, env=program.environment()).returncode:
            failed.append(f"{model}, {arithmetic}, {name}: failed")
    return failed


def time(arguments: argparse.Namespace) -> int:
    """Times steps; the exit status is 0 also where limits are missed: a benchmark reports, it does not judge."""
    from benchmarks.training_models import timing  # both frameworks

    kinds = arguments.arithmetic or timing.LIMITED
    rows = list(timing.measure(arguments.models or list(timing.LIMITS), kinds, arguments.seconds))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(timing.table(rows))
    missed = [f"{row.model} in {row.arithmetic}, {row.framework}" for row in rows if row.missed]
    limited = sum(row.limit is not None for row in rows)
    print(f"{len(missed)} of {limited} limits missed{': ' if missed else ''}{', '.join(missed)}")
    if arguments.json is not None:
        timed = [asdict(row) | {"ratio": row.ratio, "limit": row.limit} for row in rows]
        write_results(arguments.json, {"versions": versions(), "machine": machine("cpu"), "rows": timed})
    return 0


def report(record: Record, failed: list[str]) -> int:
    """Says which runs there are, and whether their hashes are the same; the exit status."""
    rows = record.rows()
    for job, group in itertools.groupby(rows, lambda row: row.job[:2]):
        runs = list(group)
        longest: Row = max(runs, key=lambda row: row.steps)
        print(f"\n{', '.join(job)}: {longest.weights[-1]} after {longest.steps} steps")
        for row in runs:
            print(f"  {row.steps:5} steps  {row.program}")
    wrong = failed + disagreements(rows)
    print("\n" + "\n".join(wrong or [f"{len(rows)} runs: one hash for each model and arithmetic"]))
    return int(bool(wrong))


if __name__ == "__main__":
    if "--time" in sys.argv:
        keep_pages()
    sys.exit(main())
