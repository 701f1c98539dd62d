"""What the examples of quantized models share: what is measured of them, the closing table, accuracy by bit width."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from rich.box import SIMPLE
from rich.table import Table

from examples.command import console
from examples.pictures import Panel, Picture, save
from examples.report import outcome

WIDTHS = (2, 3, 4, 6, 8)  # bits of the integers that are drawn
SHOWN = (8, 4)  # those with a row in the table
CALIBRATION = 256  # images that observers see

# Layers of the residual network that are one when they are quantized
FUSED = [
    ["conv", "bn", "relu"],
    *(
        [f"blocks.{i}.{name}" for name in names]
        for i in range(2)
        for names in (["conv1", "bn1", "relu"], ["conv2", "bn2"], ["conv3", "bn3"])
    ),
]


class Row(NamedTuple):
    """What was measured of a model: test accuracy in percent, bytes on disk, and seconds for a batch of test images."""

    name: str
    accuracy: float
    size: int
    seconds: float


def time_of(run: Callable[[], Any]) -> float:
    """Seconds that a call takes, the median of five; one more goes before them, which may compile."""
    times = []
    for _ in range(6):
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return statistics.median(times[1:])


def finish(title: str, rows: Sequence[Row], curves: Mapping[str, Mapping[int, float]], plot: str) -> None:
    """Prints the closing table, and what came out in a sentence, and draws accuracy by bit width.

    Args:
        title: of the table and the plot.
        rows: the models; the first one's accuracy is drawn as a line.
        curves: accuracies by bit width, by name.
        plot: the file to save, see `examples.pictures.save`.
    """
    table = Table("", box=SIMPLE, title=title)
    for column in ("test accuracy", "size on disk", "time per batch"):
        table.add_column(column, justify="right")
    for name, accuracy, size, seconds in rows:
        table.add_row(name, f"{accuracy:.2f} %", f"{size / 1000:.1f} kB", f"{seconds * 1000:.2f} ms")
    console.print(table)
    lines = {name: list(curve.items()) for name, curve in curves.items()}
    save(Picture(title, [Panel("bits", "test accuracy (%)", lines, (rows[0].name, rows[0].accuracy))]), plot)
    outcome({row.name: row.accuracy for row in rows}, plot)
