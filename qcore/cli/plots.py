"""Pictures of formats: number lines above each other, and below them the errors of rounding to nearest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qcore.arguments import quoted
from qcore.cli.curves import Drawing, drawing
from qcore.files import replaced
from qcore.formats.number import check_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")

_NORMAL, _SUBNORMAL, _ALONE, _LINE = "#0b5fa5", "#d95f02", "#1b9e77", "#444444"
# The same text, and the same file, everywhere: no date, no random ids, nothing that depends on a user's settings.
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.hashsalt": "qbits",
    "path.simplify": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_METADATA: dict[str, dict[str, Any]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}


def draw(names: Sequence[str], path: Path) -> None:
    """Draws the number lines of formats above each other, and below them the rounding errors, on one axis.

    Raises:
        ValueError: if path ends in none of `SUFFIXES`, or a format has numbers that float64 has not.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"plot file {quoted(str(path))}; allowed are names that end in {' or '.join(SUFFIXES)}")
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    drawings = [drawing(check_number(name, "format")) for name in names]
    bottom = -max(one.known.number.span[0] for one in drawings) - 2
    heights = [0.25 + 0.3 * len(names)] + [1.15] * len(names)
    with rc_context():
        rcdefaults()
        rcParams.update(_STYLE)
        figure = Figure((10, sum(heights) + 0.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_numbers(axes[0], names, drawings)
        for name, one, error_axes in zip(names, drawings, axes[1:], strict=True):
            _draw_errors(error_axes, name, one, bottom)
        axes[-1].xaxis.set_major_formatter(_power)
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[-1].set_xlabel("x")
        _fix_layout(figure)
        with replaced(path) as fresh:
            figure.savefig(fresh, dpi=150, metadata=_METADATA[path.suffix.lower()])


def _fix_layout(figure: Figure) -> None:
    """Lays the axes out and rounds their positions, whose last bits differ from one run of the solver to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position().bounds, 6).tolist())


def _power(exponent: float, _: float) -> str:
    return f"$2^{{{exponent:.0f}}}$"


def _draw_numbers(axes: Axes, names: Sequence[str], drawings: Sequence[Drawing]) -> None:
    for row, one in enumerate(drawings):
        for places, colour in (
            (one.numbers[one.numbers >= one.normal], _NORMAL),
            (one.numbers[one.numbers < one.normal], _SUBNORMAL),
        ):
            axes.vlines(places, row - 0.36, row + 0.36, colors=colour, linewidths=0.5)
    beside = "; of blocks those beside a 1" if any(one.alone for one in drawings) else ""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title(f"Positive numbers; subnormal ones in orange{beside}", loc="left", fontsize=9)
    axes.tick_params(left=False)


def _draw_errors(axes: Axes, name: str, one: Drawing, bottom: int) -> None:
    """Where the error is zero, at the numbers themselves, the curve leaves the picture."""
    from matplotlib.ticker import MaxNLocator

    for curve, colour in ((one.alone, _ALONE), (one.curve, _NORMAL)):
        if curve is not None:
            errors = np.where(curve.errors == -np.inf, bottom - 1, curve.errors)
            axes.plot(curve.places, errors, color=colour, linewidth=0.7)
    which = ", beside a 1; in green, of the block's largest number" if one.alone else ""
    axes.axhline(-one.known.number.span[0], color=_LINE, linewidth=0.6, linestyle=":")
    axes.set_ylim(bottom, 0.5)
    axes.yaxis.set_major_formatter(_power)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(f"{name}: relative error of rounding to nearest{which}", loc="left", fontsize=9)
