"""What missed limits of `benchmarks.speed` are made of: the instructions that the kernels take for each element."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qcore import parse
from qcore.formats.block import BlockNumber

RESULTS = Path(__file__).parents[1] / "results"
SMALL = 6  # calls on 2^6 elements take as long as their Python
Counts = dict[tuple[str, ...], float]
Record = dict[str, Any]


def kind_of(operation: str, text: str) -> str:
    """Of an operation on a format: what has limits in common."""
    number = parse(text)
    if operation.startswith("stochastic"):
        return "stochastic"
    if isinstance(number, BlockNumber):
        return "nvfp4" if number.tensor_scale else "block"
    return "element" if operation == "nearest" else "codes"


def counts() -> Counts:
    """Instructions an element, of all passes over memory, by set ("jax": XLA's), format, operation and dtype."""
    found: Counts = {}
    for row in json.loads((RESULTS / "instructions.json").read_text(encoding="utf-8"))["rows"]:
        key = row["vectors"], row["format"], row["operation"], row["dtype"]
        found[key] = found.get(key, 0.0) + row["each"]
    for row in json.loads((RESULTS / "xla-instructions.json").read_text(encoding="utf-8"))["rows"]:
        found["jax", parse(row["format"]).text, row["operation"], "float32"] = row["each"]
    return found


@dataclass(frozen=True)
class Group:
    """Rows of a set, a kind and a size that miss their limits; without counts if `each` is empty.

    Attributes:
        missed, rows: how many rows do, of how many that have a limit.
        worst: the longest time, in limits.
        each: instructions an element.
        taken, needed: instructions a nanosecond and core: those that were, and those that would meet the limits.
        fastest: the most of any row of this set.
    """

    vectors: str
    kind: str
    exponent: int
    missed: int
    rows: int
    worst: float
    each: list[float]
    taken: list[float]
    needed: list[float]
    fastest: float

    @property
    def beyond(self) -> int:
        """How many of the rows would need more instructions a nanosecond than any row of the set has."""
        return sum(rate > self.fastest for rate in self.needed)

    @property
    def line(self) -> str:
        what = f"{self.vectors}, {self.kind}, 2^{self.exponent}: {self.missed} of {self.rows} missed"
        if self.exponent == SMALL:
            return f"{what}; Python's steps of a call"
        if not self.each:
            return f"{what}; not counted"
        return (
            f"{what}; {_span(self.each)} instructions an element, {_span(self.taken)} a nanosecond and core; the "
            f"limits need {_span(self.needed)}, and the fastest row has {self.fastest:.1f}"
        )


def groups(rows: Iterable[Record], known: Counts, cores: int) -> Iterator[Group]:
    """What `benchmarks.speed` found as its result file has it, where limits are missed."""
    found: dict[tuple[str, str, int], list[Record]] = {}
    fastest: dict[str, float] = {}
    for row in rows:
        found.setdefault((row["vectors"], kind_of(row["operation"], row["format"]), row["exponent"]), []).append(row)
        if count := _count(row, known):
            rate = _rate(row, count, cores, row["seconds"])
            fastest[row["vectors"]] = max(rate, fastest.get(row["vectors"], 0.0))
    for (vectors, kind, exponent), each in found.items():
        limited = [row for row in each if row["limit"] is not None]
        missed = [row for row in limited if not row["met"]]
        if missed:
            counted = [(row, count) for row in missed if (count := _count(row, known))]
            yield Group(
                *(vectors, kind, exponent, len(missed), len(limited)),
                max(row["seconds"] / row["baseline"] / row["limit"] for row in missed),
                [count for _, count in counted],
                [_rate(row, count, cores, row["seconds"]) for row, count in counted],
                [_rate(row, count, cores, row["baseline"] * row["limit"]) for row, count in counted],
                fastest.get(vectors, 0.0),
            )


def _count(row: Record, known: Counts) -> float:
    """The instructions an element of a row; 0 where Python takes longer, or nobody counted."""
    key = row["vectors"], parse(row["format"]).text, row["operation"], row["dtype"]
    return known.get(key, 0.0) if row["exponent"] > SMALL else 0.0


def _rate(row: Record, count: float, cores: int, seconds: float) -> float:
    return count * (1 << row["exponent"]) / (seconds * 1e9 * cores)


def _span(values: list[float]) -> str:
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return least if least == most else f"{least} to {most}"
