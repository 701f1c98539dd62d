"""A record's numbers for other programs: TensorBoard's SummaryWriter, or a function of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from qcore.arguments import quoted
from qcore.insight.record import Entry, Record

SCALARS = ("saturated", "overflowed", "underflowed", "nan_results", "subnormal")
SAMPLES = 4096  # of a histogram


class Writer(Protocol):
    """What is needed of `torch.utils.tensorboard.SummaryWriter`, tensorboardX's, or one's own."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None) -> Any: ...

    def add_histogram(self, tag: str, values: Any, global_step: Any = None) -> Any: ...


def send(record: Record, to: Writer | Callable[[dict[str, Any]], Any], step: int | None = None) -> None:
    """Sends a record's numbers to a writer of logs, or to a function.

    A writer gets under `site/name` the counts saturated, overflowed, underflowed, nan_results and subnormal as parts
    of all elements, and the SQNR in dB; and under `site/exponents` a histogram of the exponents before rounding:
    floor(log2 |x|) of about 4,096 elements, each exponent as often as the nearest integer to its part of them, at
    least once. A function gets the rows of `Record.rows`, one for each site and step.

    Args:
        record: of a run.
        to: an object with add_scalar and add_histogram, or a function of a dictionary.
        step: sends this step only; None sends all.

    Returns:
        Nothing; the numbers are handed to the writer, or to the function.

    Raises:
        TypeError: if record is no Record, or to is neither.
        ValueError: if record has no such step.

    Example:
        >>> from qcore.insight import Site, statistics_of
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "output"), statistics_of(np.float32([1.0, 4000.0]), "e4m3fn"))
        >>> send(record, lambda row: print(row["path"], row["step"], row["overflowed"]))
        0 0 1
    """
    if not isinstance(record, Record):
        raise TypeError(f"record={record!r:.80} is a {type(record).__name__}; allowed is a Record")
    if step is not None and step not in record.steps:
        raise ValueError(
            f"step={quoted(step)}; allowed are the record's steps: {', '.join(map(str, record.steps)) or 'none'}"
        )
    chosen = [step in (None, one.step) for one in record.entries]
    if hasattr(to, "add_scalar") and hasattr(to, "add_histogram"):
        for entry, is_chosen in zip(record.entries, chosen, strict=True):
            if is_chosen:
                _write(entry, to)
    elif callable(to):
        for row, is_chosen in zip(record.rows(), chosen, strict=True):
            if is_chosen:
                to(row)
    else:
        allowed = "allowed are a function and an object with add_scalar and add_histogram"
        raise TypeError(f"to={to!r:.80} is a {type(to).__name__}; {allowed}")


def _write(entry: Entry, writer: Any) -> None:
    told, site = entry.statistics, str(entry.site)
    for name in SCALARS:
        writer.add_scalar(f"{site}/{name}", told.rate(name), entry.step)
    if np.isfinite(told.sqnr):
        writer.add_scalar(f"{site}/sqnr", told.sqnr, entry.step)
    if told.exponents:
        exponents, counts = (np.array(list(one)) for one in (told.exponents, told.exponents.values()))
        repeated = np.maximum(np.rint(counts * (SAMPLES / counts.sum())).astype(int), 1)
        writer.add_histogram(f"{site}/exponents", np.repeat(exponents, repeated), entry.step)
