"""One run of training in a process of its own, which goes on from where it was stopped.

python -m benchmarks.training_models.worker JSON STATES MODEL ARITHMETIC PROGRAM STEPS EVERY
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.training_models.data import batch_of
from benchmarks.training_models.environment import open_record
from benchmarks.training_models.programs import PROGRAMS
from benchmarks.training_models.record import Record, Row
from benchmarks.training_models.state import DATA, digest, key_for
from benchmarks.training_models.trainings import TRAININGS
from qcore.files import replaced


def train(run: Any, model: str, start: int, stop: int, seen: str = "") -> tuple[str, float]:
    """Goes through steps of a run.

    Returns:
        The hash of the losses, logits and gradients of these and the steps before, and the mean of the losses.
    """
    network, losses = TRAININGS[model].network, []
    for step in range(start, stop):
        run.step(step, *batch_of(network, key_for(DATA), step))
        found = run.intermediates()
        losses.append(float(found["loss"]))
        seen = hashlib.sha256((seen + digest(found)).encode()).hexdigest()
    return seen, sum(losses) / len(losses)


def work(record: Record, states: Path, job: tuple[str, str, str], steps: int, every: int, commit: str) -> None:
    """Trains, and writes hashes and the state after every so many steps."""
    model, arithmetic, program = job
    row, run = record.row(job), PROGRAMS[program].make(model, arithmetic)
    file = states / f"{'-'.join(job).replace(' ', '-').replace(',', '')}.npz"
    whole = row is not None and row.every == every and 0 < len(row.weights) == len(row.losses)
    if row is not None and whole and file.exists():
        with np.load(file) as found:
            run.load(row.steps, dict(found))
        if digest(run.weights()) != row.weights[-1]:
            raise SystemExit(f"{file} is not the state of {', '.join(job)} after {row.steps} steps; remove it")
    else:
        row = Row(*job, commit, every)
    while row.steps < steps:
        before = row.intermediates[-1] if row.intermediates else ""
        seen, loss = train(run, model, row.steps, row.steps + every, before)
        row.weights.append(digest(run.weights()))
        row.intermediates.append(seen)
        row.losses.append(loss)
        with replaced(file) as fresh:
            np.savez(fresh, **run.state())
        record.put(row)
        print(f"{', '.join(job)}, step {row.steps}: {row.weights[-1]}", flush=True)


def main() -> None:
    path, states, *job, steps, every = sys.argv[1:]
    record, commit = open_record(Path(path))
    PROGRAMS[job[2]].prepare()
    work(record, Path(states), (job[0], job[1], job[2]), int(steps), int(every), commit)


if __name__ == "__main__":
    main()
