"""Where rounding falls off a cliff: every kind of format, dtype, dimension and size against a copy, in one table.

Usage:
    python -m benchmarks.cliffs                        all rows; red is more than eight times a copy
    python -m benchmarks.cliffs --json cliffs.json

Each call takes turns with a copy of the same bytes, as in `benchmarks.speed`. The fastest of each are compared: other
programs disturb these least. Each row is a format, an operation and a dtype, each column a size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.speed import Case, has, time_torch
from benchmarks.support.results import write_results
from benchmarks.support.timing import keep_pages, machine, versions

CLIFF = 8.0  # times a copy
_LONGEST = 40  # characters of a format's text that are shown
EXPONENTS = 20, 24  # of two, in elements
DTYPES = "float32", "bfloat16", "float16", "float64"
FORMATS = (
    "float(5,2)",
    "e4m3fn",
    "posit16",
    "block(8,dim=-1)",
    "block(8,dim=0)",
    "block(8,dim=1)",
    "scaled(e4m3fn,{0:32})",
    "scaled(e4m3fn,{1:32})",
    "scaled(e4m3fn,{0:16,1:16})",
    "scaled(e2m1fn,{1:32})",
    "scaled(e4m3fn,{1:None})",
    "nvfp4({0:16})",
    "nvfp4({1:16})",
    "nvfp4({0:16,1:16})",
    "nf4",
    f"table({[one / 64 for one in range(-128, 128)]})",
)


def cases() -> Iterator[Case]:
    """Rounding of all dtypes, and codes of float32."""
    for exponent in EXPONENTS:
        for text in FORMATS:
            yield from (Case("nearest", text, dtype, exponent) for dtype in DTYPES)
            yield from (Case(what, text, "float32", exponent) for what in ("encode", "decode") if has(what, text))


def measure(seconds: float) -> Iterator[dict[str, Any]]:
    log = Console(stderr=True, highlight=False)
    for case in cases():
        ours, copy = time_torch(case, "cpu", seconds)
        text = case.format if len(case.format) < _LONGEST else f"{case.format[:_LONGEST]}..."
        row = {"format": text, "operation": case.operation, "dtype": case.dtype, "exponent": case.exponent}
        times = {"seconds": ours.fastest, "copy": copy.fastest, "ratio": ours.fastest / copy.fastest}
        log.print(f"{text}, {case.operation}, {case.dtype}, 2^{case.exponent}: {times['ratio']:.2f}x")
        yield row | times


def table(rows: list[dict[str, Any]]) -> Table:
    found = Table(box=SIMPLE, title=f"times a copy; more than {CLIFF:g} is red")
    for column in ("format", "operation", "dtype"):
        found.add_column(column, no_wrap=True)
    for exponent in EXPONENTS:
        found.add_column(f"2^{exponent}", justify="right")
    ratios: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in rows:
        ratios.setdefault((row["format"], row["operation"], row["dtype"]), {})[row["exponent"]] = row["ratio"]
    for what, sizes in ratios.items():
        marks = (f"[red]{ratio:.2f}[/]" if (ratio := sizes[size]) > CLIFF else f"{ratio:.2f}" for size in EXPONENTS)
        found.add_row(*what, *marks)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time every kind of format, dtype, dimension and size against a copy.")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each row, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    rows = list(measure(options.seconds))
    console = Console(highlight=False)
    console.width = max(console.width, 100)
    console.print(table(rows))
    beyond = sum(row["ratio"] > CLIFF for row in rows)
    console.print(f"{beyond} of {len(rows)} rows take more than {CLIFF:g} copies", style="red" if beyond else "green")
    if options.json:
        facts = {"versions": versions(), "machine": machine("cpu")}
        write_results(options.json, facts | {"cliff": CLIFF, "rows": rows})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
