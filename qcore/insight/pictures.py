"""A record as a page of pictures: maps of sites over steps, and exponents beside the range of the format.

Pictures are the same file everywhere, in light and dark, readable when printed grey, with a text for readers who cannot
see them. A picture is drawn in the colours of a light page. A rule of CSS in the file replaces each of them on a dark
page, so one file serves both; programs without CSS show the light one. Colours of a scale grow darker on a light page
and lighter on a dark one, evenly, so their order can be read without hue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import StringIO
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from qcore.arguments import quoted
from qcore.files import write_text
from qcore.formats.number import check_number
from qcore.insight.advice import Finding, ends_of, findings, percent
from qcore.insight.record import Record, Site
from qcore.insight.statistics import Statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

ROWS, COLUMNS, HISTOGRAMS = 40, 60, 6  # at most: sites of a map, steps of a map, and sites with a histogram
_RATES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
_RATE_NAMES = ("none", "to 0.01 %", "to 0.1 %", "to 1 %", "to 10 %", "more")
_NOT_FINITE = "NaN, infinity"
_SQNR = (50.0, 40.0, 30.0, 20.0, 10.0)
_SQNR_NAMES = ("from 50 dB", "from 40", "from 30", "from 20", "from 10", "less")


class _Map(NamedTuple):
    """A map: a function of statistics with results from 0 (good) to 5, and the names of the results; -1 is blank.

    In all maps the number 6 stands for NaN or infinity among the numbers, or NaN among the results.
    """

    title: str
    level: Callable[[Statistics], int]
    names: Sequence[str]


def _level_of_rate(*names: str) -> Callable[[Statistics], int]:
    return lambda statistics: sum(sum(statistics.rate(name) for name in names) > bound for bound in _RATES)


def _level_of_sqnr(statistics: Statistics) -> int:
    return -1 if isnan(statistics.sqnr) else sum(statistics.sqnr < bound for bound in _SQNR)


_MAPS = (
    _Map("Saturated or overflowed", _level_of_rate("saturated", "overflowed"), _RATE_NAMES),
    _Map("Became zero", _level_of_rate("underflowed"), _RATE_NAMES),
    _Map("Signal to quantization noise", _level_of_sqnr, _SQNR_NAMES),
)


@dataclass(frozen=True)
class Picture:
    """A picture that was drawn into an SVG file. Notebooks show it.

    Args:
        path: the path of the file.

    Example:
        >>> Picture(Path("mlp.svg")).path.suffix
        '.svg'
    """

    path: Path

    def _repr_svg_(self) -> str:
        return self.path.read_text(encoding="utf-8")


def draw(record: Record, path: str | Path) -> Picture:
    """Draws a page with three maps of sites over steps, and the exponents of the worst sites with their format's range.

    Of more than 40 sites the worst are drawn, in the order of the record; of more than 60 steps, neighbours are
    merged. On light pages bad sites are dark, on dark pages light; NaN and infinity have a colour of their own.

    Args:
        record: the record of a run.
        path: the path of the SVG file; matplotlib is needed.

    Returns:
        The picture, which notebooks show. The file is written, and replaces an older one.

    Raises:
        TypeError: if record is not a Record, or path not a path.
        ValueError: if record has no entries, or path does not end in .svg.
        ImportError: if matplotlib is missing.
        OSError: if the file cannot be written.

    Example:
        >>> from qcore.insight import statistics_of
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "output"), statistics_of(np.float32([1.0, 4000.0]), "e4m3fn"))
        >>> picture = draw(record, "mlp.svg")  # doctest: +SKIP
    """
    path = Path(path)
    check_path(path)
    found = findings(record)
    worst = {one.site for one in found[:ROWS]}
    sites = [site for site in record.sites if site in worst]
    shown = [one for one in found if one.statistics.exponents][:HISTOGRAMS]
    heights = 0.9 + 0.16 * len(sites), 1.5 * max(-(-len(shown) // 3), 1)
    with page(path, 11, sum(heights) + 0.6, f"Roundings of {record.model}", _text(record, found)) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=heights)
        _draw_maps(parts[0], record, sites)
        _draw_histograms(parts[1], shown)
    return Picture(path)


def _text(record: Record, found: Sequence[Finding]) -> str:
    """What the page shows, in words."""
    first, last = record.steps[0], record.steps[-1]
    bad = [f"{one.site} in {one.statistics.number} {one.advice}" for one in found[:HISTOGRAMS] if one.problem]
    return (
        f"Three maps of {len(found)} sites over steps {first} to {last}: saturation, underflow and signal to noise. "
        f"Histograms of exponents. {'; '.join(bad) + '.' if bad else 'No site needs another format.'}"
    )


def _draw_maps(figure: FigureBase, record: Record, sites: Sequence[Site]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    groups = np.array_split(np.array(record.steps), min(COLUMNS, len(record.steps)))
    cells = _cells(record, sites, groups)
    for axes, drawn in zip(figure.subplots(1, len(_MAPS), sharey=True), _MAPS, strict=True):
        level = partial(_level, drawn)
        levels = np.array([[max(map(level, cell), default=-1) for cell in row] for row in cells])
        edges = [*(group[0] for group in groups), groups[-1][-1] + 1]
        rows = np.arange(len(sites) + 1) - 0.5
        colours, masked = ListedColormap((*SCALE, MARK)), np.ma.masked_less(levels, 0)
        axes.pcolormesh(edges, rows, masked, cmap=colours, vmin=0, vmax=len(SCALE) + 1, linewidth=0)
        axes.set_yticks(range(len(sites)), [str(site) for site in sites])
        axes.set_ylim(len(sites) - 0.5, -0.5)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(drawn.title)
        _draw_key(axes, drawn.names)


def _level(drawn: _Map, one: Statistics) -> int:
    return len(SCALE) if one.nan_results + one.nan + one.infinite else drawn.level(one)


def _cells(record: Record, sites: Sequence[Site], groups: Sequence[np.ndarray]) -> list[list[list[Statistics]]]:
    """The statistics of each site in each group of steps."""
    group_of = {int(step): index for index, group in enumerate(groups) for step in group}
    cells: dict[Site, list[list[Statistics]]] = {site: [[] for _ in groups] for site in sites}
    for one in record.entries:
        if one.site in cells:
            cells[one.site][group_of[one.step]].append(one.statistics)
    return list(cells.values())


def _draw_key(axes: Axes, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.4) for colour in (*SCALE, MARK)]
    options = {"ncols": 3, "fontsize": 7, "handlelength": 1.2, "columnspacing": 1.0, "borderaxespad": 0.0}
    axes.legend(patches, [*names, _NOT_FINITE], loc="upper left", bbox_to_anchor=(0.0, -0.3), **options)


def _draw_histograms(figure: FigureBase, shown: Sequence[Finding]) -> None:
    grid = figure.subplots(max(-(-len(shown) // 3), 1), 3, squeeze=False).ravel()
    for axes, one in zip(grid, shown, strict=False):
        draw_exponents(axes, one)
    for axes in grid[len(shown) :]:
        axes.set_axis_off()


def draw_exponents(axes: Axes, one: Finding) -> None:
    """Draws the exponents of the numbers at a site before rounding, before a band that is the range of its format."""
    from matplotlib.ticker import MaxNLocator

    exponents, counts = (np.array(list(part)) for part in (one.statistics.exponents, one.statistics.exponents.values()))
    low, top = ends_of(check_number(one.statistics.number), one.statistics)
    high = int(np.floor(top)) + 1
    axes.axvspan(low, high, facecolor=BAND, linewidth=0, zorder=0)
    for end in (low, high):
        axes.axvline(end, color=INK, linewidth=0.8, linestyle="--", zorder=3)
    axes.bar(exponents + 0.5, counts / counts.sum(), width=0.9, color=BAR, zorder=2)
    axes.set_title(f"{one.site}: {one.statistics.number}")
    axes.set_xlabel("exponent of |x|; the band is the format's range")
    axes.yaxis.set_major_formatter(lambda part, _: percent(part) if part else "0")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


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
    """A figure to draw on, with sizes in inches; the SVG file is written when the context ends.

    `title` and `text` describe the picture for readers that read it out.
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
    """The file with the colours of dark pages, and with title and description."""
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
