"""Formats drawn: where their numbers lie, and how far rounding to nearest moves what lies between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qcore.carrier import FLOAT64
from qcore.cli.facts import Facts, facts
from qcore.cli.names import parse_format
from qcore.reference import quantize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")

_POINTS = 1536  # about so many places of a format's range are looked at
_WIDE = 1.1  # from so large a ratio of neighbours on it is seen that the curve between them is none of straight lines
_NORMAL, _SUBNORMAL, _LINE = "#0b5fa5", "#d95f02", "#444444"
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


class Curve(NamedTuple):
    """What is drawn of a format: positive numbers, and relative errors at places between them, as base-2 logarithms.

    They are rounded to four decimals, because the last bits of logarithms differ between processors.
    """

    known: Facts
    numbers: np.ndarray
    places: np.ndarray
    errors: np.ndarray


def draw(names: Sequence[str], path: Path) -> None:
    """Draws the number lines of formats above each other, and below them the rounding errors, on one axis.

    Raises:
        ValueError: if path ends in none of `SUFFIXES`, or a format has numbers that float64 has not.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"plot file {str(path)!r}; allowed are names that end in {' or '.join(SUFFIXES)}")
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    known = [facts(parse_format(name)) for name in names]
    for name, one in zip(names, known, strict=True):
        one.number.check_exact(FLOAT64)
        if one.smallest is None:
            raise ValueError(f"format {name!r} has no positive numbers to plot; allowed are formats that have some")
    curves = [_curve(one) for one in known]
    bottom = -max(one.number.span[0] for one in known) - 2
    heights = [0.25 + 0.3 * len(names)] + [1.15] * len(names)
    with rc_context():
        rcdefaults()
        rcParams.update(_STYLE)
        figure = Figure((10, sum(heights) + 0.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_numbers(axes[0], names, curves)
        for name, curve, error_axes in zip(names, curves, axes[1:], strict=True):
            _draw_errors(error_axes, name, curve, bottom)
        axes[-1].xaxis.set_major_formatter(_power)
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[-1].set_xlabel("x")
        _settle_layout(figure)
        figure.savefig(path, dpi=150, metadata=_METADATA[path.suffix.lower()])


def _settle_layout(figure: Figure) -> None:
    """Lays the axes out, and takes the last bits of their places away: the solver's differ from one run to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position().bounds, 6).tolist())


def _power(exponent: float, _: float) -> str:
    return f"$2^{{{exponent:.0f}}}$"


def _curve(known: Facts) -> Curve:
    """The curve from two binades below a format's range to two above it."""
    assert known.smallest is not None
    places = _places(known.smallest.log2 - 2, known.largest.log2 + 3)
    down, up = (_finite(quantize(places, known.number, mode)) for mode in ("down", "up"))
    numbers = np.unique(np.concatenate([down, up]))
    numbers = numbers[numbers > 0]
    corners = (numbers, (down / 2 + up / 2)[up > down])
    wide = (up > _WIDE * down) | (down >= numbers[-1])
    places = np.unique(np.concatenate([*corners, places[wide]]))
    with np.errstate(all="ignore"):
        errors = np.log2(np.abs(quantize(places, known.number, "nearest") - places) / places)
    return Curve(known, *(np.round(values, 4) for values in (np.log2(numbers), np.log2(places), errors)))


def _places(low: int, high: int) -> np.ndarray:
    """Numbers in each binade from 2^low to 2^high, an odd number of them lest all lie on a format's grid."""
    low, high = max(low, FLOAT64.step_exponent), min(high, FLOAT64.max_exponent)
    count = max(_POINTS // max(high - low, 1), 8) // 2 * 2 + 1
    steps = 1 + np.arange(count) / count
    return np.ldexp(steps, np.arange(low, high)[:, None]).ravel()


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, 0)


def _draw_numbers(axes: Axes, names: Sequence[str], curves: Sequence[Curve]) -> None:
    for row, curve in enumerate(curves):
        normal = curve.known.min_normal
        split = normal.log2 if normal else (np.inf if curve.known.min_subnormal else -np.inf)
        for places, colour in (
            (curve.numbers[curve.numbers >= split], _NORMAL),
            (curve.numbers[curve.numbers < split], _SUBNORMAL),
        ):
            axes.vlines(places, row - 0.36, row + 0.36, colors=colour, linewidths=0.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title("Positive numbers; subnormal ones in orange", loc="left", fontsize=9)
    axes.tick_params(left=False)


def _draw_errors(axes: Axes, name: str, curve: Curve, bottom: int) -> None:
    """Where the error is zero, at the numbers themselves, the curve leaves the picture."""
    from matplotlib.ticker import MaxNLocator

    errors = np.where(curve.errors == -np.inf, bottom - 1, curve.errors)
    axes.plot(curve.places, errors, color=_NORMAL, linewidth=0.7)
    axes.axhline(-curve.known.number.span[0], color=_LINE, linewidth=0.6, linestyle=":")
    axes.set_ylim(bottom, 0.5)
    axes.yaxis.set_major_formatter(_power)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(f"{name}: relative error of rounding to nearest", loc="left", fontsize=9)
