"""The curves of a format: where its numbers lie, and how far rounding to nearest moves other numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.arrays import quantize
from qcore.cli.properties import Properties, properties
from qcore.formats.block import BlockFloatingPoint, BlockNumber
from qcore.formats.number import Number
from qcore.law.carrier import FLOAT64

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
    """What is drawn of a format.

    Attributes:
        known: the properties of it; of blocks, of their elements.
        numbers: its positive numbers, as base-2 logarithms; for blocks, those up to 1 in a block that has a 1.
        curve: the rounding errors between these numbers.
        normal: the logarithm of the smallest normal number.
        alone: for blocks, the errors of their largest numbers, which the scales follow, in an array whose largest is 1.
    """

    known: Properties
    numbers: np.ndarray
    curve: Curve
    normal: float
    alone: Curve | None


def drawing(number: Number) -> Drawing:
    """From two binades below a format's range to two above it, of blocks to 1.

    Raises:
        ValueError: if it has no positive numbers, or some that float64 has not.
    """
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


def _beside_one(number: BlockNumber, x: np.ndarray, rounding: str) -> np.ndarray:
    return quantize(np.stack([np.ones_like(x), x], 1), number, rounding)[:, 1]


def _alone(number: BlockNumber, x: np.ndarray, rounding: str) -> np.ndarray:
    return quantize(np.append(1.0, x)[:, None], number, rounding)[1:, 0]


def _curve(rounded: _Rounded, low: int, high: int) -> tuple[np.ndarray, Curve]:
    """The numbers that numbers from 2^low to 2^high are rounded to, and the errors."""
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
