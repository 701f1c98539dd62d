"""A record as a page of pictures: maps of sites over steps, and exponents beside the range of the format.

Colours of a map grow darker on a light page and lighter on a dark one, evenly, so their order can be read without hue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qcore.arguments import printable
from qcore.formats.number import check_number
from qcore.insight.advice import Finding, ends_of, findings, percent
from qcore.insight.record import Record, Site
from qcore.insight.statistics import Statistics
from qcore.pictures import BAND, BLUE, FAINT, INK, ORANGE, SCALE, SMALL, check_path, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

ROWS, COLUMNS, HISTOGRAMS = 40, 60, 6  # at most: sites of a map, steps of a map, and sites with a histogram
_RATES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
_RATE_NAMES = ("none", "to 0.01 %", "to 0.1 %", "to 1 %", "to 10 %", "more")
_NOT_FINITE = "NaN, infinity"
_SQNR = (50.0, 40.0, 30.0, 20.0, 10.0)
_SQNR_NAMES = ("50 dB", "40", "30", "20", "10", "less")


class _Map(NamedTuple):
    """A map: a function of statistics with results from 0 (good) to 5; -1 is blank.

    In all maps the number 6 stands for NaN or infinity among the numbers, or NaN among the results.
    """

    title: str
    level: Callable[[Statistics], int]


def _level_of_rate(*names: str) -> Callable[[Statistics], int]:
    return lambda statistics: sum(sum(statistics.rate(name) for name in names) > bound for bound in _RATES)


def _level_of_sqnr(statistics: Statistics) -> int:
    return -1 if isnan(statistics.sqnr) else sum(statistics.sqnr < bound for bound in _SQNR)


_MAPS = (
    _Map("Saturated or\noverflowed", _level_of_rate("saturated", "overflowed")),
    _Map("Became\nzero", _level_of_rate("underflowed")),
    _Map("Signal to\nnoise", _level_of_sqnr),
)


@dataclass(frozen=True)
class Picture:
    """A picture that was drawn into a file. Notebooks show it.

    Args:
        path: the path of the file.

    Example:
        >>> Picture(Path("mlp.svg")).path.suffix
        '.svg'
    """

    path: Path

    def _repr_svg_(self) -> str | None:
        return self.path.read_text(encoding="utf-8") if self.path.suffix.lower() == ".svg" else None

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix.lower() == ".png" else None


def draw(record: Record, path: str | Path) -> Picture:
    """Draws a page with three maps of sites over steps, and the exponents of the worst sites with their format's range.

    Of more than 40 sites the worst are drawn, in the order of the record; of more than 60 steps, neighbours are
    merged. On light pages bad sites are dark, on dark pages light; NaN and infinity have a colour of their own.

    Args:
        record: the record of a run.
        path: the path of the file, .svg or .png; matplotlib is needed.

    Returns:
        The picture, which notebooks show. The file is written, and replaces an older one.

    Raises:
        TypeError: if record is not a Record, or path not a path.
        ValueError: if record has no entries, or path does not end in .svg or .png.
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
    heights = 2.2 + 0.17 * len(sites), 0.4 + 1.7 * max(-(-len(shown) // 2), 1)
    with picture(path, sum(heights), f"Roundings of {printable(record.model)}", _text(record, found)) as figure:
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
        colours, masked = ListedColormap((*SCALE, ORANGE)), np.ma.masked_less(levels, 0)
        axes.pcolormesh(edges, rows, masked, cmap=colours, vmin=0, vmax=len(SCALE) + 1, edgecolor="face", linewidth=0.5)
        axes.set_yticks(range(len(sites)), [str(site) for site in sites])
        axes.set_ylim(len(sites) - 0.5, -0.5)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        axes.set_title(drawn.title)
    _draw_key(figure)


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


def _draw_key(figure: FigureBase) -> None:
    """The names of the colours: above those of rates, below those of signal to noise."""
    from matplotlib.patches import Patch

    def patches(*colours: str) -> list[Patch]:
        return [Patch(facecolor=colour, edgecolor=FAINT, linewidth=0.4) for colour in colours]

    options: Any = {"ncols": 7, "handlelength": 1, "handletextpad": 0.3, "columnspacing": 0.8, "alignment": "left"}
    noise = [*_SQNR_NAMES, _NOT_FINITE]
    figure.legend(patches(*SCALE), _RATE_NAMES, title="Parts of the numbers", loc="outside upper left", **options)
    figure.legend(patches(*SCALE, ORANGE), noise, title="Signal to noise, from", loc="outside lower left", **options)


def _draw_histograms(figure: FigureBase, shown: Sequence[Finding]) -> None:
    figure.suptitle("Exponents of |x|; the band is the format's range", x=0.01, ha="left")
    grid = figure.subplots(max(-(-len(shown) // 2), 1), 2, squeeze=False).ravel()
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
    axes.bar(exponents + 0.5, counts / counts.sum(), width=0.9, color=BLUE, zorder=2)
    axes.set_title(f"{one.site}\n{one.statistics.number}", fontsize=SMALL)
    axes.yaxis.set_major_formatter(lambda part, _: percent(part) if part else "0")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
