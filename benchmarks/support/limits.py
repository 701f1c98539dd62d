"""What missed limits are made of: the instructions that the kernels take, from `benchmarks.instructions`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qcore import parse

RESULTS = Path(__file__).parents[1] / "results"
SMALL = 6  # calls on 2^6 elements take as long as their Python
Counts = dict[tuple[str, ...], tuple[float, float]]


def counts() -> Counts:
    """Instructions, and nanoseconds of one core at least, an element, by set, format, operation and dtype.

    Nanoseconds are 0 for "jax", whose loops also wait for memory.
    """
    found: Counts = {}
    for row in json.loads((RESULTS / "instructions.json").read_text())["rows"]:
        key = row["vectors"], row["format"], row["operation"], row["dtype"]
        each, nanoseconds = found.get(key, (0.0, 0.0))  # of the passes before
        found[key] = each + row["each"], nanoseconds + row["nanoseconds"]
    for row in json.loads((RESULTS / "xla-instructions.json").read_text())["rows"]:
        found["jax", parse(row["format"]).text, row["operation"], "float32"] = row["each"], 0.0
    return found


def made_of(rows: Iterable[Any], known: Counts, cores: int) -> Iterator[str]:
    """A line for each group of missed rows of `benchmarks.speed`: how many, and what their limits are made of."""
    groups: dict[tuple[str, str, int], list[Any]] = {}
    for row in rows:
        if row.met is False:
            groups.setdefault((row.vectors, row.case.kind, row.case.exponent), []).append(row)
    for (vectors, kind, exponent), missed in groups.items():
        each, copies = [], []
        for row in missed:
            case = row.case
            key = vectors, parse(case.format).text, case.operation, case.dtype
            if exponent > SMALL and key in known:
                instructions, nanoseconds = known[key]
                each.append(instructions)
                copies.append(nanoseconds * 1e-9 / cores * (1 << exponent) / row.baseline)
        line = f"{vectors}, {kind}, 2^{exponent}: {len(missed)} missed"
        if each:
            line += f"; {_span(each)} instructions an element"
        if any(copies):
            line += f", which take {_span(copies)} baselines at least"
        if not each:
            line += "; Python's steps of a call" if exponent == SMALL else "; not counted"
        yield line


def _span(values: list[float]) -> str:
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return least if least == most else f"{least} to {most}"
