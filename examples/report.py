"""What the examples share besides images: arguments, progress, the closing table and the plot of the curves."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from examples.pictures import Panel, Picture, save

console = Console(highlight=False)


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
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=epochs, help=f"default: {epochs}")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order of images and stochastic rounding")
    parser.add_argument("--limit", type=int, metavar="N", help="how many training images to use; default: all")
    parser.add_argument("--plot", metavar="FILE", help="save the curves there, .svg, .png, or .json; default: NAME.svg")
    return parser.parse_args(argv)


def follow(name: str, epochs: Iterator[Epoch]) -> Curve:
    """Runs a training and prints each epoch when it is over."""
    curve = Curve(name, [])
    for epoch in epochs:
        curve.epochs.append(epoch)
        console.print(
            f"{name}, epoch {len(curve.epochs)}: loss {epoch.loss:.4f}, train {epoch.train:.2f} %, "
            f"test {epoch.test:.2f} %, {epoch.seconds:.1f} s"
        )
    return curve


def finish(title: str, curves: Sequence[Curve], plot: str) -> None:
    """Prints the closing table and saves the curves.

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
    console.print(f"curves saved to {plot}")
