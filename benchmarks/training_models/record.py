"""What runs of training left, in one JSON file that grows while they go on: a line for each run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.results import locked, write_results

LAYOUT = "qbits same training 1"


class RecordError(Exception):
    """A file holds no results that others can be added to; the message says why."""


@dataclass
class Row:
    """A run of training.

    Attributes:
        model, arithmetic, program: what was trained, how products were rounded, and what computed it.
        commit: of this repository when it began.
        every: after how many steps hashes are taken.
        weights: SHA-256 of all weights and statistics.
        intermediates: SHA-256 of the losses, logits and gradients of all steps so far, before they are rounded.
        losses: means of the losses of so many steps; older files have none.
    """

    model: str
    arithmetic: str
    program: str
    commit: str
    every: int
    weights: list[str] = field(default_factory=list)
    intermediates: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return self.every * len(self.weights)

    @property
    def job(self) -> tuple[str, str, str]:
        return self.model, self.arithmetic, self.program


@dataclass
class Record:
    """The rows of a file.

    Attributes:
        path: the file.
        environment: versions without the commit, the machine, and hashes of the data.
    """

    path: Path
    environment: dict[str, Any]

    def rows(self) -> list[Row]:
        """All of them.

        Raises:
            RecordError: if the file holds something else, or comes from other versions.
        """
        if not self.path.exists():
            return []
        found = json.loads(self.path.read_text(encoding="utf-8"))
        if found.get("layout") != LAYOUT:
            raise RecordError(f"{self.path} is no file of layout {LAYOUT!r}; give another --json")
        for name in ("versions", "data"):
            if found[name] != self.environment[name]:
                raise RecordError(f"{self.path} has {name} {found[name]}, here are {self.environment[name]}")
        return [Row(**{name: value for name, value in row.items() if name != "steps"}) for row in found["runs"]]

    def row(self, job: tuple[str, str, str]) -> Row | None:
        return next((row for row in self.rows() if row.job == job), None)

    def put(self, row: Row) -> None:
        """Writes a row in the place of the one of the same run; other processes may do the same meanwhile."""
        with locked(self.path):
            rows = {one.job: one for one in self.rows()} | {row.job: row}
            runs = [asdict(rows[job]) | {"steps": rows[job].steps} for job in sorted(rows)]
            write_results(self.path, {"layout": LAYOUT, **self.environment, "runs": runs})


def disagreements(rows: list[Row]) -> list[str]:
    """Where runs of the same training have different hashes, as sentences."""
    found = []
    for row in rows:
        others = [one for one in rows if one.job[:2] == row.job[:2] and one.every == row.every]
        for what in ("weights", "intermediates"):
            first = max((getattr(one, what) for one in others), key=len)
            own = getattr(row, what)
            step = next((i for i, pair in enumerate(zip(own, first, strict=False), 1) if len(set(pair)) > 1), None)
            if step is not None:
                found.append(f"{', '.join(row.job)}: other {what} after {step * row.every} steps")
    return found
