"""The search of torch's histogram observer for the part of a range whose rounding to integers loses least.

It cuts quantiles of 1e-5 from both ends, first from the end where a quantile spans more bins, as long as the error
decreases. The error is the sum of squared distances from the numbers, taken as uniform within a bin, to the middles of
the integers' intervals.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

_QUANTILE = np.full(100_001, 1e-5)  # added up in float64, so that the last may lie beyond the other end
_BELOW = np.add.accumulate(np.concatenate([[0.0], _QUANTILE]))
_ABOVE = np.subtract.accumulate(np.concatenate([[1.0], _QUANTILE]))


class _Part(NamedTuple):
    """Where the search is: how many quantiles it has cut below and above, which bins are left, and their error."""

    below: Any
    above: Any
    first: Any
    last: Any
    error: Any
    done: Any


def best_range(xp: Any, histogram: Any, low: Any, high: Any, levels: int) -> tuple[Any, Any]:
    """The ends of the part that loses least, float32, for integers of so many levels; needs 64-bit types."""
    bins = histogram.shape[0]
    lowest, highest = _quantiles(xp, histogram)
    below, above = xp.asarray(_BELOW), xp.asarray(_ABOVE)
    width = xp.divide(xp.astype(high, "float64") - xp.astype(low, "float64"), float(bins))

    error_of = partial(error_of_part, xp, histogram, width, levels=levels)

    def step(part: _Part) -> _Part:
        first = xp.clip(lowest[part.below + 1], part.first, part.last)
        last = xp.clip(highest[part.above + 1], part.first, part.last)
        forward = first - part.first > part.last - last
        moved = forward | (last < part.last)
        first, last = xp.where(forward, first, part.first), xp.where(forward, part.last, last)
        error = xp.cond(moved, error_of, lambda first, last: part.error, first, last)
        worse = error > part.error
        # where nothing moves, only `above` grows, until the last bin goes
        above = xp.where(moved, part.above + 1, xp.searchsorted(-highest, -part.last, True) - 1)
        return _Part(
            xp.where(forward, part.below + 1, part.below),
            xp.where(forward, part.above, above),
            xp.where(worse, part.first, first),
            xp.where(worse, part.last, last),
            xp.where(worse, part.error, error),
            worse,
        )

    zero = xp.full_like(low, 0, "int32")
    start = _Part(zero, zero, zero, zero + (bins - 1), xp.full_like(low, float("inf"), "float32"), zero > 0)
    part = xp.while_loop(lambda part: ~part.done & (below[part.below] < above[part.above]), step, start)
    width = xp.divide(high - low, float(bins))
    first, last = (xp.astype(index, "float32") for index in (part.first, part.last + 1))
    return low + xp.rounded(width * first), low + xp.rounded(width * last)


def _quantiles(xp: Any, histogram: Any) -> tuple[Any, Any]:
    """The first bin left for each count of quantiles cut below, and the last bin left for each count cut above."""
    sums = xp.astype(xp.cumsum(xp.astype(histogram, "float64")), "float32")
    whole = xp.astype(total(xp, histogram), "float64")
    below, above = (xp.astype(xp.asarray(share) * whole, "float32") for share in (_BELOW, _ABOVE))
    return xp.searchsorted(sums, below, False), xp.searchsorted(sums, above, True) - 1


def error_of_part(xp: Any, histogram: Any, width: Any, first: Any, last: Any, levels: int) -> Any:
    """The error if the bins from `first` to `last` are cut into as many intervals as there are levels; float32."""
    interval = xp.divide(width * xp.astype(last - first + 1, "float64"), float(levels))
    width, interval = xp.astype(width, "float32"), xp.astype(interval, "float32")
    half = interval / 2
    begin = xp.rounded(xp.astype(xp.arange(histogram.shape[0], first) - first, "float32") * width)
    end = begin + width
    of_begin, of_end = (_interval_of(xp, edge, interval, levels) for edge in (begin, end))
    density = xp.divide(histogram, width)
    start = begin - xp.rounded((of_begin + 0.5) * interval)
    stop = end - (xp.rounded(of_end * interval) + half)
    error = _moment(xp, start, half, density)
    error = error + xp.rounded((of_end - of_begin - 1) * _moment(xp, -half, half, density))
    error = error + _moment(xp, -half, stop, density)
    return xp.where(interval == 0, 0.0, total(xp, error))


def _interval_of(xp: Any, edge: Any, interval: Any, levels: int) -> Any:
    """The interval in which an edge lies; the quotient is in float64, where no rounding takes it over an integer."""
    quotient = xp.floor(xp.divide(xp.astype(edge, "float64"), xp.astype(interval, "float64")))
    return xp.astype(xp.clip(quotient, 0, levels - 1), "float32")


def _moment(xp: Any, start: Any, stop: Any, density: Any) -> Any:
    """The integral of density * x^2 from start to stop."""
    cubes = xp.rounded(stop * stop * stop) - xp.rounded(start * start * start)
    return xp.rounded(density * xp.divide(cubes, 3.0))


def total(xp: Any, x: Any) -> Any:
    """The sum of one dimension, in float32 and the order in which torch adds up to 8,192 numbers on x86.

    Numbers lie in rows of 4 vectors of 8, and zeros fill the last block of 16 rows. The rows of a block are added, then
    blocks, vectors, and lanes, each from the first to the last.
    """
    missing = -x.shape[0] % 512
    x = xp.concatenate((x, xp.repeat(xp.full_like(x[:1], 0, "float32"), missing)))
    blocks = x.reshape(-1, 16, 32)
    row = _in_order(_in_order(blocks[:, i] for i in range(16)))
    return _in_order(_in_order(row.reshape(4, 8)))


def _in_order(terms: Iterable[Any]) -> Any:
    return reduce(add, terms)
