"""Pictures of formats: number lines above each other, and below them the errors of rounding to nearest.

python -m website.plots formats.svg e4m3fn 'fixed(8,4)'
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.arrays import quantize
from qcore.cli.properties import Properties, properties
from qcore.formats.block import BlockFloatingPoint, BlockNumber
from qcore.formats.number import Number, check_number
from qcore.law.carrier import FLOAT64
from qcore.law.rounding import RoundingName
from qcore.pictures import BLUE, FAINT, ORANGE, TEAL, check_path, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Pictures of docs, and their formats.
PICTURES = {
    "formats-8-bits.svg": ("e5m2", "e4m3fn", "e3m4", "uint8"),
    "formats-posits.svg": ("posit8", "posit(8,0)", "e4m3fn"),
    "formats-few-bits.svg": ("e2m1fn", "e3m2fn", "e2m3fn", "int4"),
    "formats-blocks.svg": ("mxfp4", "nvfp4", "mxfp6_e2m3", "mxfp8_e4m3"),
}
_THIN = 0.7  # points: the curves have many strokes


def draw(names: Sequence[str], path: Path) -> None:
    """Draws the number lines of formats above each other, and below them the rounding errors, on one axis.

    Raises:
        ValueError: if path ends in neither .svg nor .png, or a format has numbers that float64 does not have.
    """
    from matplotlib.ticker import MaxNLocator

    check_path(path)
    drawings = [drawing(check_number(name, "format")) for name in names]
    bottom = -max(one.known.number.span[0] for one in drawings) - 2
    heights = [0.25 + 0.3 * len(names)] + [0.95] * len(names)
    text = f"The positive numbers of {', '.join(names)}, and the relative errors of rounding to nearest between them."
    with picture(path, sum(heights) + 0.3 * len(heights) + 0.5, f"Formats: {', '.join(names)}", text) as figure:
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_numbers(axes[0], names, drawings)
        for name, one, error_axes in zip(names, drawings, axes[1:], strict=True):
            _draw_errors(error_axes, name, one, bottom)
        axes[-1].xaxis.set_major_formatter(_power)
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[-1].set_xlabel("x")


def _power(exponent: float, _: float) -> str:
    return f"$2^{{{exponent:.0f}}}$"


def _draw_numbers(axes: Axes, names: Sequence[str], drawings: Sequence[Drawing]) -> None:
    for row, one in enumerate(drawings):
        for places, colour in (
            (one.numbers[one.numbers >= one.normal], BLUE),
            (one.numbers[one.numbers < one.normal], ORANGE),
        ):
            axes.vlines(places, row - 0.36, row + 0.36, colors=colour, linewidths=0.5)
    beside = ", beside a 1" if any(one.alone for one in drawings) else ""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title(f"Positive numbers{beside}; subnormal ones in orange")
    axes.tick_params(left=False)


def _draw_errors(axes: Axes, name: str, one: Drawing, bottom: int) -> None:
    """Where the error is zero, at the numbers themselves, the curve leaves the picture."""
    from matplotlib.ticker import MaxNLocator

    for curve, colour in ((one.alone, TEAL), (one.curve, BLUE)):
        if curve is not None:
            errors = np.where(curve.errors == -np.inf, bottom - 1, curve.errors)
            axes.plot(curve.places, errors, color=colour, linewidth=_THIN)
    which = " beside a 1; green: largest" if one.alone else " of rounding to nearest"
    axes.axhline(-one.known.number.span[0], color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom, 0.5)
    axes.yaxis.set_major_formatter(_power)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.set_title(f"{name}, relative error{which}")


_POINTS = 1536  # how many places of a format's range are sampled, about
_WIDE = 1.1  # the ratio of neighbours from which on a straight line between them is visibly not the curve
_LOWEST = -18  # blocks are drawn from at least 2^_LOWEST on, a little below the end of NVFP4's scales
_DIGITS = 4  # of logarithms, whose last bits differ between processors

_Rounded = Callable[..., np.ndarray]  # of an array, and `rounding`


class Curve(NamedTuple):
    """Relative errors at places, as base-2 logarithms."""

    places: np.ndarray
    errors: np.ndarray


class Drawing(NamedTuple):
    """The numbers and curves that are drawn for a format.

    Attributes:
        known: the properties of the format; for blocks the properties of their elements.
        numbers: its positive numbers, as base-2 logarithms; for blocks the numbers up to 1 in a block with a 1.
        curve: the rounding errors between these numbers.
        normal: the logarithm of the smallest normal number.
        alone: for blocks, the errors of their largest numbers, which decide the scales, in an array whose largest is 1.
    """

    known: Properties
    numbers: np.ndarray
    curve: Curve
    normal: float
    alone: Curve | None


def drawing(number: Number) -> Drawing:
    """From two binades below a format's range to two above it, of blocks to 1."""
    known = properties(number)
    known.number.check_exact(FLOAT64)
    if known.smallest is None:
        raise ValueError(f"{quoted(number)} has no positive numbers to plot; allowed are formats that have some")
    normal = known.min_normal.log2 if known.min_normal else np.inf if known.min_subnormal else -np.inf
    if not isinstance(number, BlockNumber):
        low, high = known.smallest.log2 - 2, known.largest.log2 + 3
        return Drawing(known, *_curve(partial(quantize, number=number), low, high), normal, None)
    rows = _in_rows(number)
    beside, alone = partial(_beside_one, rows), partial(_alone, rows)
    smallest = np.log2(beside(np.array([2.0**FLOAT64.step_exponent]), rounding="up")[0])
    low = min(int(np.floor(smallest)) - 2, _LOWEST)
    return Drawing(known, *_curve(beside, low, 0), normal + smallest - known.smallest.log2, _curve(alone, low, 0)[1])


def _in_rows(number: Any) -> BlockNumber:
    """The format with rows of any length for blocks."""
    return replace(number, dim=0) if isinstance(number, BlockFloatingPoint) else replace(number, block={-1: None})


def _beside_one(number: BlockNumber, x: np.ndarray, rounding: RoundingName) -> np.ndarray:
    return quantize(np.stack([np.ones_like(x), x], 1), number, rounding)[:, 1]


def _alone(number: BlockNumber, x: np.ndarray, rounding: RoundingName) -> np.ndarray:
    return quantize(np.append(1.0, x)[:, None], number, rounding)[1:, 0]


def _curve(rounded: _Rounded, low: int, high: int) -> tuple[np.ndarray, Curve]:
    """The relative errors of rounding numbers from 2^low to 2^high."""
    places = _places(low, high)
    down, up = (_finite(rounded(places, rounding=mode)) for mode in ("down", "up"))
    numbers = np.unique(np.concatenate([down, up]))
    numbers = numbers[numbers > 0]
    corners = (numbers, (down / 2 + up / 2)[up > down])
    wide = (up > _WIDE * down) | (up < places)
    places = np.unique(np.concatenate([*corners, places[wide]]))
    places = places[places >= 2.0**low]
    with np.errstate(all="ignore"):
        errors = np.log2(np.abs(rounded(places, rounding="nearest") - places) / places)
    return np.log2(numbers).round(_DIGITS), Curve(np.log2(places).round(_DIGITS), errors.round(_DIGITS))


def _places(low: int, high: int) -> np.ndarray:
    """Numbers in each binade from 2^low to 2^high, an odd count of them so that not all lie on a format's grid."""
    low, high = max(low, FLOAT64.step_exponent), min(high, FLOAT64.max_exponent)
    count = max(_POINTS // max(high - low, 1), 8) // 2 * 2 + 1
    steps = 1 + np.arange(count) / count
    return np.ldexp(steps, np.arange(low, high)[:, None]).ravel()


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, 0)


if __name__ == "__main__":
    draw(sys.argv[2:], Path(sys.argv[1]))
