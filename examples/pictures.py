"""Draws the lines of examples again from the numbers that they have kept in files.

    python -m examples.cifar10_torch --plot examples/results/training-cifar10-torch.json
    python -m examples.pictures                     draws docs/*.svg from all numbers in examples/results
    python -m examples.pictures --results my-results --pictures .

The first keeps the numbers of a program; every one that has --plot can.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from examples.command import console, folder, parsed, parser_of
from qcore.files import write_text
from qcore.pictures import draw_curves, in_two_widths, picture

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
NAMES = ("training-*.json", "quantized-*.json")


class Panel(NamedTuple):
    """What is drawn into one pair of axes.

    Attributes:
        xlabel, ylabel: of the axes.
        lines: points (x, y) by the name of their line, five lines at most.
        level: a name and the y of a horizontal line, or nothing.
    """

    xlabel: str
    ylabel: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    level: tuple[str, float] | None = None


class Picture(NamedTuple):
    """Panels above each other, under a title."""

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


def _draw(drawn: Picture, path: Path) -> None:
    panels = drawn.panels
    names = ", ".join(dict.fromkeys(name for panel in panels for name in panel.lines))
    text = f"{'; '.join(f'{panel.ylabel} by {panel.xlabel}' for panel in panels)}. Curves: {names}."
    with picture(path, 0.4 + 2.3 * len(panels), drawn.title, text) as figure:
        figure.suptitle(drawn.title)
        for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
            draw_curves(axes, panel.lines, panel.level)


def main(argv: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=folder, metavar="DIR", default=RESULTS, help="with the numbers")
    parser.add_argument("--pictures", type=folder, metavar="DIR", default=DOCS, help="for the pictures")
    options = parsed(parser, argv)
    paths = sorted(path for name in NAMES for path in options.results.glob(name))
    for path in paths:
        in_two_widths(partial(save, read(path)), options.pictures / f"{path.stem}.svg")
    console.print(f"{len(paths)} pictures saved to {options.pictures}")


if __name__ == "__main__":
    main()
