"""How pictures look: the same file everywhere, in light and dark, readable when printed grey, with a text for who
cannot see.

A picture is drawn in the colours of a light page. A rule of CSS in the file replaces each of them on a dark page, so
one file serves both; programs that know no CSS show the light one. Colours of a scale grow darker on a light page and
lighter on a dark one, evenly, so their order can be read without hue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np

from qcore.arguments import quoted
from qcore.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIX = ".svg"
INK, FAINT, BAND, BAR, MARK = "#1f2328", "#6e7781", "#e3e6ea", "#0b5fa5", "#b35900"
SCALE = ("#f4f6f8", "#c9dcec", "#94bcdb", "#5a93c2", "#2a649c", "#0c2f5a")  # from good to bad
PAPER = "#ffffff"
_DARK = {
    INK: "#e6edf3",
    FAINT: "#8b949e",
    BAND: "#30363d",
    BAR: "#58a6e8",
    MARK: "#f0a040",
    PAPER: "#16191d",
    **dict(zip(SCALE, ("#22272e", "#24425e", "#2f6593", "#4a8dc4", "#85b8e0", "#e4f1fb"), strict=True)),
}
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "svg.hashsalt": "qbits",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "figure.facecolor": PAPER,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def check_path(path: Path) -> None:
    if path.suffix.lower() != SUFFIX:
        raise ValueError(f"plot file {quoted(str(path))}; allowed are names that end in {SUFFIX}")


@contextmanager
def page(path: Path, width: float, height: float, title: str, text: str) -> Iterator[Figure]:
    """A figure to draw on; it is written when the context ends.

    Args:
        path: of the SVG file.
        width, height: in inches.
        title, text: what is read out instead of the picture: a line, and what can be seen.
    """
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    check_path(path)
    with rc_context():
        rcdefaults()
        rcParams.update(_STYLE)
        figure = Figure((width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes in figure.axes:  # the last bits of positions differ from one run of the solver to the next
            axes.set_position(np.round(axes.get_position().bounds, 6).tolist())
        found = StringIO()
        figure.savefig(found, format="svg", metadata={"Date": None, "Creator": None})
    write_text(path, _finished(found.getvalue(), title, text))


def _finished(svg: str, title: str, text: str) -> str:
    """The file with the colours of dark pages and what is read out."""
    rules = "".join(
        f"[style*='{kind}: {light}']{{{kind}:{dark}!important}}"
        for light, dark in _DARK.items()
        for kind in ("fill", "stroke")
    )
    head = (
        f"<title>{escape(title)}</title>\n<desc>{escape(text)}</desc>\n"
        f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>\n"
    )
    start = re.search(r"<svg [^>]*>\n", svg)
    assert start is not None, "matplotlib writes an svg element"
    opening = start[0].replace("<svg ", '<svg role="img" ', 1)
    return svg[: start.start()] + opening + head + svg[start.end() :]
