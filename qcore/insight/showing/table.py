"""The worst sites of a record as a table in a terminal."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from qcore.arguments import check_int
from qcore.insight.record import Record
from qcore.insight.showing.advice import findings, percent

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("site", "format", "overflowed", "saturated", "became zero", "SQNR", "advice")


def print_worst(record: Record, count: int = 10, console: Console | None = None) -> None:
    """Prints the worst sites, worst first, each with a sentence of advice; rich is needed.

    Args:
        record: of a run.
        count: how many sites to print at most.
        console: rich's; standard output if None, where lines are as long as they need to be if it is no terminal.

    Returns:
        Nothing; the table is printed.

    Raises:
        TypeError: if record is no Record, or count no int.
        ValueError: if record has no entries, or count is less than 1.
        ImportError: if rich is missing.

    Example:
        >>> from qcore.insight import Site, statistics_of
        >>> import numpy as np
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "output"), statistics_of(np.float32([1.0, 4000.0]), "e4m3fn"))
        >>> print_worst(record)  # doctest: +SKIP
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    found, count = findings(record), check_int("count", count, 1)
    steps = record.steps
    span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    title = f"{record.model}, {span}: {min(count, len(found))} of {len(found)} sites, the worst first"
    table = Table(box=SIMPLE, title=title, title_justify="left", padding=(0, 1, 0, 0), show_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("site", "format", "advice") else "right")
    for one in found[:count]:
        parts = (_part(part) for part in (one.overflowed, one.saturated, one.underflowed))
        table.add_row(str(one.site), one.statistics.number, *parts, _ratio(one.statistics.sqnr), one.advice)
    console = console or Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.print(table, markup=False)


def _ratio(sqnr: float) -> str:
    return "-" if isnan(sqnr) else f"{sqnr:.1f} dB"


def _part(part: float) -> str:
    return percent(part) if part else "-"
