"""The results of a sweep in one file, which grows piece by piece and from which a stopped sweep goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.support.comparison import Case
from benchmarks.support.results import write_results

LAYOUT = "qbits sweep 1"


class Span(NamedTuple):
    """The bit patterns from `start` to below `stop`, for one format and rounding mode."""

    format: str
    rounding: str
    start: int
    stop: int


class ResultsError(Exception):
    """A file holds no results that others can be added to; the message says why."""


@dataclass
class Results:
    """What is known of each format and rounding mode.

    Attributes:
        environment: versions and machine.
        done: the ranges of bit patterns that were compared, in order and apart from each other.
        cases: what was found in them, by backend.
        path: the file; None keeps none.
    """

    environment: dict[str, Any]
    path: Path | None = None
    done: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)
    cases: dict[tuple[str, str], dict[str, Case]] = field(default_factory=dict)

    def add(self, span: Span, cases: Sequence[Case], versions: dict[str, str]) -> None:
        """Adds what was found in a span, and writes the file.

        Raises:
            ResultsError: if a worker has other versions than this file.
            OSError: if the file cannot be written.
        """
        _check_versions("a worker's results", versions, self.environment["versions"])
        pair = span.format, span.rounding
        self.done[pair] = _joined([*self.done.get(pair, []), [span.start, span.stop]])
        found = self.cases.setdefault(pair, {})
        for case in cases:
            found.setdefault(case.backend, Case(case.format, case.rounding, case.backend)).merge(case)
        self.save()

    def missing(self, span: Span, size: int) -> Iterator[Span]:
        """What is not done of a span, in pieces that end at multiples of `size`."""
        start = span.start
        for begin, end in [*self.done.get((span.format, span.rounding), []), [span.stop, span.stop]]:
            while start < min(begin, span.stop):
                stop = min(begin, span.stop, (start // size + 1) * size)
                yield Span(span.format, span.rounding, start, stop)
                start = stop
            start = max(start, end)

    def all_cases(self) -> list[Case]:
        """The cases of all formats and modes."""
        return [case for found in self.cases.values() for case in found.values()]

    def save(self) -> None:
        """Writes the file, of which at any moment there is a whole one."""
        if self.path is None:
            return
        rows = [
            {"format": pair[0], "rounding": pair[1], "done": done}
            | {"backends": [case.record() for case in self.cases[pair].values()]}
            for pair, done in self.done.items()
        ]
        write_results(self.path, {"layout": LAYOUT, **self.environment, "cases": rows})


def open_results(path: Path | None, environment: dict[str, Any]) -> Results:
    """The results in a file, or none yet where there is no file.

    Raises:
        ResultsError: if the file holds something else, or comes from other versions.
    """
    results = Results(environment, path)
    if path is None or not path.exists():
        return results
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        layout = record.get("layout", "none")
    except (ValueError, AttributeError) as error:
        raise ResultsError(f"{path} is no sweep's results ({error}); give another --json") from error
    if layout != LAYOUT:
        raise ResultsError(f"{path} has layout {layout!r}, this program writes {LAYOUT!r}; give another --json")
    try:
        _check_versions(str(path), record["versions"], environment["versions"])
        for row in record["cases"]:
            pair = row["format"], row["rounding"]
            results.done[pair] = _joined(row["done"])
            results.cases[pair] = {case["backend"]: _case(case) for case in row["backends"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} is damaged ({type(error).__name__}: {error}); give another --json") from error
    return results


def _check_versions(what: str, theirs: dict[str, str], ours: dict[str, str]) -> None:
    """Results of different versions are not one claim. A results file that git knows makes a commit dirty by itself."""

    def clean(versions: dict[str, str]) -> dict[str, str]:
        return {name: value.removesuffix("-dirty") for name, value in versions.items()}

    theirs, ours = clean(theirs), clean(ours)
    other = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    if other:
        differ = ", ".join(f"{name} {theirs.get(name)} there and {ours.get(name)} here" for name in other)
        raise ResultsError(f"{what}: {differ}; use the same versions, or give another --json")


def _case(record: dict[str, Any]) -> Case:
    return Case(**{name: value for name, value in record.items() if name != "ns_per_element"})


def _joined(ranges: Sequence[list[int]]) -> list[list[int]]:
    """Ranges in order; those that touch become one."""
    joined: list[list[int]] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    return joined
