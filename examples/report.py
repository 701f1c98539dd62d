"""What the examples share besides images: options, progress, the closing table and the curves."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.box import SIMPLE
from rich.table import Table

from examples.command import at_least, console, file_of, parsed, parser_of
from examples.pictures import Panel, Picture, save

PLOTS = ".svg", ".png", ".json"  # endings of files that `examples.pictures.save` writes


class Epoch(NamedTuple):
    """What an epoch came to: the mean training loss, accuracies in percent, and the seconds that training took."""

    loss: float
    train: float
    test: float
    seconds: float


class Curve(NamedTuple):
    """A training run's name and its epochs."""

    name: str
    epochs: list[Epoch]


def arguments(description: str | None, epochs: int, argv: list[str] | None) -> argparse.Namespace:
    """Reads the options that every example has; `epochs` is the default."""
    parser = parser_of(description)
    parser.add_argument("--epochs", type=at_least(1), default=epochs, metavar="N", help="of training")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of weights, order of images, stochastic rounding")
    parser.add_argument("--limit", type=at_least(1), metavar="N", help="training images to use (default: all)")
    parser.add_argument(
        "--plot", type=file_of(*PLOTS), metavar="FILE", help="save curves, .svg, .png or .json (default: NAME.svg)"
    )
    return parsed(parser, argv)


def follow(name: str, epochs: Iterator[Epoch]) -> Curve:
    """Runs a training and prints each epoch when it is over; on a terminal, also which one runs."""
    curve = Curve(name, [])
    with console.status(f"{name}, epoch 1") as status:
        for number, epoch in enumerate(epochs, start=1):
            curve.epochs.append(epoch)
            console.print(
                f"{name}, epoch {number}: loss {epoch.loss:.4f}, train {epoch.train:.2f} %, "
                f"test {epoch.test:.2f} %, {epoch.seconds:.1f} s"
            )
            status.update(f"{name}, epoch {number + 1}")
    return curve


def finish(title: str, curves: Sequence[Curve], plot: str) -> None:
    """Prints the closing table, and what came out in a sentence, and saves the curves.

    Args:
        title: of the table and the plot.
        curves: the runs, each with an epoch at least.
        plot: the file to save, see `examples.pictures.save`.
    """
    table = Table("", box=SIMPLE, title=title)
    for column in ("test accuracy", "train accuracy", "time per epoch"):
        table.add_column(column, justify="right")
    for name, epochs in curves:
        last, seconds = epochs[-1], statistics.median_low(epoch.seconds for epoch in epochs)
        table.add_row(name, f"{last.test:.2f} %", f"{last.train:.2f} %", f"{seconds:.2f} s")
    console.print(table)
    panels = []
    for what, field in (("training loss", "loss"), ("test accuracy (%)", "test")):
        lines = {name: [(i, getattr(epoch, field)) for i, epoch in enumerate(epochs, 1)] for name, epochs in curves}
        panels.append(Panel("epoch", what, lines))
    save(Picture(title, panels), plot)
    outcome({name: epochs[-1].test for name, epochs in curves}, plot)


def outcome(accuracies: Mapping[str, float], plot: str) -> None:
    """Prints in a sentence what came out: test accuracies in percent by name, and the file of the curves."""
    first, *others = accuracies
    rest = ", ".join(f"{name} has {accuracies[name]:.2f} %" for name in others)
    console.print(
        f"Of the test images {first} has {accuracies[first]:.2f} % right, {rest}; curves saved to {plot}.",
        style="bold",
    )
