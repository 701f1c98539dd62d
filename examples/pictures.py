"""Lines that examples draw; their numbers can be kept in a file, which draws the same picture again.

    python -m examples.cifar10_torch --plot examples/results/training-cifar10-torch.json
    python -m examples.pictures                     draws docs/*.svg from all numbers in examples/results
    python -m examples.pictures --results my-results --pictures .

The first keeps the numbers of a program; every one that has --plot can.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from qcore.files import replaced, write_text

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
NAMES = ("training-*.json", "quantized-*.json")


class Panel(NamedTuple):
    """What is drawn into one pair of axes.

    Attributes:
        xlabel, ylabel: of the axes.
        lines: points (x, y) by the name of their line.
        level: a name and the y of a horizontal line, or nothing.
    """

    xlabel: str
    ylabel: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    level: tuple[str, float] | None = None


class Picture(NamedTuple):
    """Panels side by side, under a title."""

    title: str
    panels: Sequence[Panel]


def save(picture: Picture, path: str | Path) -> None:
    """Draws a picture; with an ending of .json its numbers are written instead."""
    path = Path(path)
    if path.suffix == ".json":
        kept = {"title": picture.title, "panels": [panel._asdict() for panel in picture.panels]}
        write_text(path, json.dumps(kept) + "\n")
    else:
        _draw(picture, path)


def read(path: Path) -> Picture:
    """The picture whose numbers `save` has written."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return Picture(found["title"], [Panel(**panel) for panel in found["panels"]])


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure and closes it; the same figure is the same file."""
    with plt.rc_context({"svg.hashsalt": "examples"}), replaced(path) as fresh:
        figure.savefig(fresh, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _draw(picture: Picture, path: Path) -> None:
    panels = picture.panels
    size = (9, 3.4) if len(panels) > 1 else (5, 3.4)
    figure, row = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axes, (xlabel, ylabel, lines, level) in zip(row[0], panels, strict=True):
        if level:
            axes.axhline(level[1], color="gray", linestyle="--", label=level[0])
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker=".", label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(alpha=0.3)
    row[0][0].legend()
    figure.suptitle(picture.title)
    save_figure(figure, path)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder; default: examples/results")
    parser.add_argument("--pictures", type=Path, default=DOCS, help="a folder; default: docs")
    options = parser.parse_args(argv)
    for path in sorted(path for name in NAMES for path in options.results.glob(name)):
        save(read(path), options.pictures / f"{path.stem}.svg")


if __name__ == "__main__":
    main()
