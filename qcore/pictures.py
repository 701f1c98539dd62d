"""One style for all pictures: those of the library, of the examples and of the pages.

A picture is an SVG file for light and dark pages, or a PNG file for light ones. An SVG file is transparent and drawn in
the colours of a light page; a rule of CSS in the file replaces each of them on a dark page. Programs without CSS show
the light one. The same drawing gives the same file on every machine.

A picture is little wider than a phone, so panels stand above each other, and words of `SMALL` points can be read. A
panel has five curves at most. Their colours differ for colour-blind readers too, and each curve's name is at its end:

    with picture(path, 2.6, "Loss", "Loss by step: the two curves are equal.") as figure:
        axes = figure.subplots()
        axes.set(xlabel="step", ylabel="loss")
        draw_curves(axes, {"fp32": points, "e4m3fn": more_points})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np

from qcore.arguments import quoted
from qcore.files import replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
WIDTH, NARROW = 5.2, 3.45  # inches, on a desk and on a phone
NORMAL, SMALL = 10, 9  # points

# Blue agrees and orange differs; ink is the subject; teal and purple are further curves.
INK, FAINT, BAND = "#15202b", "#596571", "#d9dfe4"
BLUE, ORANGE, TEAL, PURPLE = "#0b5cad", "#b8450b", "#0c8a72", "#6a1b7a"
CURVES = (BLUE, ORANGE, TEAL, PURPLE, INK)
SCALE = ("#f4f6f8", "#c9dcec", "#94bcdb", "#5a93c2", "#2a649c", "#0c2f5a")  # from good to bad, readable without hue
DARK = {
    INK: "#e6edf3",
    FAINT: "#98a5b1",
    BAND: "#2c3741",
    BLUE: "#6db3f7",
    ORANGE: "#ff9c5f",
    TEAL: "#8fe3b0",
    PURPLE: "#d06ab0",
    **dict(zip(SCALE, ("#22272e", "#24425e", "#2f6593", "#4a8dc4", "#85b8e0", "#e4f1fb"), strict=True)),
}

_width: ContextVar[float] = ContextVar("width", default=WIDTH)
_PAPER = "#ffffff"  # behind PNG files
_DOTTED = 40  # points of a curve up to which each has a dot
_WRAP = 16  # characters of a line of a curve's name
_TITLE = 34  # of a title's line on a phone
_SPACE = 1.25  # from line to line of text, in units of its size
_AT_THE_END = ("axes fraction", "data")  # where names of curves are
# Everything that a user's settings could change.
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": NORMAL,
    "svg.hashsalt": "qbits",
    "path.simplify": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.labelsize": SMALL,
    "axes.titlesize": NORMAL,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "figure.titlesize": NORMAL,
    "grid.color": BAND,
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": SMALL,
    "ytick.color": INK,
    "ytick.labelsize": SMALL,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
}
_METADATA: dict[str, dict[str, Any]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}


def in_two_widths(draw: Callable[[Path], object], path: Path) -> None:
    """Draws a picture into a file, and for phones once more into the file with `-narrow` behind its name."""
    draw(path)
    token = _width.set(NARROW)
    try:
        draw(path.with_stem(f"{path.stem}-narrow"))
    finally:
        _width.reset(token)


def check_path(path: Path) -> None:
    """Raises ValueError if the name of a plot file has another ending than `SUFFIXES`."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"plot file {quoted(str(path))}; allowed are names that end in {' or '.join(SUFFIXES)}")


@contextmanager
def picture(path: Path, height: float, title: str, text: str) -> Iterator[Figure]:
    """A figure to draw on; the file is written when the context ends.

    Args:
        path: the file, which ends in .svg or .png.
        height: of the figure in inches; it is `WIDTH` wide, or `NARROW` within `in_two_widths`.
        title: a name for readers that read the picture out.
        text: what the picture shows, for the same readers.
    """
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_path(path)
    suffix = path.suffix.lower()
    with rc_context():
        rcdefaults()
        rcParams.update(_STYLE)
        figure = Figure((_width.get(), height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        if _width.get() == NARROW:
            _wrap_titles(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes in figure.axes:
            # The last bits of positions differ from one run of the solver to the next.
            axes.set_position(np.round(axes.get_position().bounds, 6).tolist())
            _move_names_apart(axes, 72 / figure.dpi)
        found = BytesIO()
        paper = _PAPER if suffix == ".png" else "none"
        figure.savefig(found, format=suffix[1:], dpi=150, facecolor=paper, metadata=_METADATA[suffix])
    content = found.getvalue()
    with replaced(path) as fresh:
        fresh.write_bytes(_finished(content.decode(), title, text).encode() if suffix == ".svg" else content)


def _wrap_titles(figure: Figure) -> None:
    """Makes titles as narrow as a phone's picture."""
    for axes in figure.axes:
        axes.set_title(fill(axes.get_title("left"), _TITLE))
    if words := figure.get_suptitle():
        figure.suptitle(fill(words, _TITLE))


def draw_curves(
    axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]], level: tuple[str, float] | None = None
) -> None:
    """Draws curves with their names at their ends.

    Args:
        axes: where they are drawn; a logarithmic scale is set before.
        curves: the points (x, y) of each by its name, five curves at most.
        level: the name and the y of a dashed horizontal line.

    Raises:
        ValueError: if there are more curves than colours.
    """
    if len(curves) > len(CURVES):
        raise ValueError(f"{len(curves)} curves in one panel; allowed are {len(CURVES)}: draw more panels")
    axes.grid(linewidth=0.8)
    axes.set_axisbelow(True)
    if level:
        axes.axhline(level[1], color=FAINT, linestyle="--", linewidth=1)
        _write_name(axes, *level, FAINT)
    for colour, (name, points) in zip(CURVES, curves.items(), strict=False):
        marker = "." if len(points) <= _DOTTED else ""
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, linewidth=1.3)
        _write_name(axes, name, points[-1][1], colour)


def _write_name(axes: Axes, name: str, y: float, colour: str) -> None:
    text = fill(name, _WRAP, break_long_words=False)
    options: Any = {"xycoords": _AT_THE_END, "textcoords": "offset points", "annotation_clip": False, "va": "center"}
    axes.annotate(text, (1, y), (5, 0), color=colour, fontsize=SMALL, linespacing=1.1, **options)


def _move_names_apart(axes: Axes, points: float) -> None:
    """Names of curves whose ends are near each other move up and down until none is on another.

    `points` is the size of a pixel.
    """
    names: list[Any] = [text for text in axes.texts if getattr(text, "xycoords", None) == _AT_THE_END]
    if not names:
        return
    ends = [axes.transData.transform((0, name.xy[1]))[1] * points for name in names]
    order = np.argsort(ends, kind="stable")
    halves = [_SPACE * SMALL * (names[i].get_text().count("\n") + 1) / 2 for i in order]
    places = [ends[i] for i in order]
    top = axes.bbox.y1 * points
    for i in range(1, len(places)):  # from the lowest up, each above the one before
        places[i] = max(places[i], places[i - 1] + halves[i - 1] + halves[i])
    for i in reversed(range(len(places))):  # and down again where they have left the panel
        highest = top if i == len(places) - 1 else places[i + 1] - halves[i + 1]
        places[i] = min(places[i], highest - halves[i])
    for i, place in zip(order, places, strict=True):
        names[i].xyann = (5, round(float(place - ends[i]), 3))


def _finished(svg: str, title: str, text: str) -> str:
    """The file with the colours of dark pages, and with title and description."""
    rules = "".join(
        f"[style*='{kind}: {light}']{{{kind}:{dark}!important}}"
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    head = (
        f"<title>{escape(title)}</title>\n<desc>{escape(text)}</desc>\n"
        # A browser that shows the file alone takes dark paper where it takes light ink.
        f"<style>:root{{color-scheme:light dark}}@media (prefers-color-scheme:dark){{{rules}}}</style>\n"
    )
    start = re.search(r"<svg [^>]*>\n", svg)
    assert start is not None, "matplotlib writes an svg element"
    opening = start[0].replace("<svg ", '<svg role="img" ', 1)
    return svg[: start.start()] + opening + head + svg[start.end() :]
