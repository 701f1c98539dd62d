"""The digests of a sweep of functions in one file, which grows while processes go on: a line for each backend."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.results import locked, write_results

LAYOUT = "qbits digests 1"
PATTERNS, PIECE = 1 << 32, 1 << 28  # the bit patterns of float32, and of a digest
PIECES = PATTERNS // PIECE

Job = tuple[str, str, str]


class DigestsError(Exception):
    """A file holds no digests that others can be added to; the message says why."""


@dataclass
class Row:
    """What a backend made of a function.

    Attributes:
        function, kind, backend: see `benchmarks.support.function_digests`.
        commit: of this repository when the last digest was made.
        digests: one for each piece of all bit patterns, in order; an empty text where it is missing.
    """

    function: str
    kind: str
    backend: str
    commit: str = ""
    digests: list[str] = field(default_factory=lambda: [""] * PIECES)

    @property
    def job(self) -> Job:
        return self.function, self.kind, self.backend

    @property
    def missing(self) -> list[int]:
        """The pieces to do."""
        return [piece for piece, digest in enumerate(self.digests) if not digest]


@dataclass
class Digests:
    """The rows of a file.

    Attributes:
        path: the file.
        environment: versions without the commit, and the machine.
    """

    path: Path
    environment: dict[str, Any]

    def rows(self) -> dict[Job, Row]:
        """All of them.

        Raises:
            DigestsError: if the file holds something else, or comes from other versions.
        """
        if not self.path.exists():
            return {}
        found = json.loads(self.path.read_text(encoding="utf-8"))
        if found.get("layout") != LAYOUT:
            raise DigestsError(f"{self.path} is no file of layout {LAYOUT!r}; give another --json")
        if found["versions"] != self.environment["versions"]:
            raise DigestsError(f"{self.path} has versions {found['versions']}; give another --json")
        return {row.job: row for row in (Row(**one) for one in found["rows"])}

    def put(self, job: Job, piece: int, digest: str, commit: str) -> None:
        """Writes a digest; other processes may do the same meanwhile."""
        with locked(self.path):
            rows = self.rows()
            row = rows.setdefault(job, Row(*job))
            row.commit, row.digests[piece] = commit, digest
            results = {"layout": LAYOUT, **self.environment, "rows": [asdict(rows[one]) for one in sorted(rows)]}
            write_results(self.path, results)


def disagreements(rows: Sequence[Row]) -> list[tuple[Row, Row, int]]:
    """Two rows of a function and a piece where they have different digests, for each that there are."""
    pairs = [pair for pair in itertools.combinations(rows, 2) if pair[0].job[:2] == pair[1].job[:2]]
    return [
        (*pair, piece)
        for pair in pairs
        for piece, found in enumerate(zip(pair[0].digests, pair[1].digests, strict=True))
        if all(found) and found[0] != found[1]
    ]
