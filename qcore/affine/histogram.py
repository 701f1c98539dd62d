"""The histogram observer: counts in bins over the range seen so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, Generic, NamedTuple

import numpy as np

from qcore.affine.observers import RangeRule
from qcore.affine.parameters import QParams, check_input, check_range, choose_qparams
from qcore.arguments import check_int
from qcore.namespace import A, Array, Names


class Counts(NamedTuple, Generic[A]):
    """A histogram: the number of elements in each of several equal parts of a range; all fields are float32.

    Attributes:
        histogram: of shape (bins,).
        min_val, max_val: the range, of shape (); inf and -inf before any element was seen.

    Example:
        >>> Histogram(bins=4).init().histogram
        array([0., 0., 0., 0.], dtype=float32)
    """

    histogram: A
    min_val: A
    max_val: A


@dataclass(frozen=True)
class Histogram(RangeRule):
    """A histogram over the range of all elements; parameters for the part with the least error, by torch's search.

    An element's bin is the integer part of (x - low) / (high - low) * bins; x = high is in the last bin. If low = high,
    the range is low - 1 to high + 1. Infinities and NaN are left out. Counts are exact up to 2^24 a bin.

    If an array has elements outside of the range so far, the range grows: each bin is cut into `upsample_rate` parts
    with equal shares of its count. Each part goes to the bin of its middle, and the shares of a bin are added in their
    order. Ends of bins are end + step * i, counted from the nearer end: the step is float32, the rest float64, rounded
    to float32. A range of one number goes whole to the bin of this number.

    The parameters cover the part of the range that a search leaves. It drops quantiles of 1e-5 of the counts (sums in
    float64, rounded to float32). Each comes from the end where it takes more bins, until the error would grow. The
    error of a part, in float32, takes the numbers as uniform in each bin. It cuts the part into one interval for each
    integer of the storage (256 for 8 bits), and adds up the squared distances to the intervals' middles. The order of
    this sum is that of torch's kernels on x86: it sometimes decides a choice.

    Args:
        form, scheme, eps: as for `MinMax`.
        bins: the number of bins.
        upsample_rate: the number of parts into which a bin is cut when the range grows.

    Example:
        >>> import numpy as np
        >>> observer = Histogram(bins=4)
        >>> observer.update(observer.init(), np.float32([0, 1, 1, 4])).histogram
        array([1., 2., 0., 1.], dtype=float32)
    """

    bins: int = 2048
    upsample_rate: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("bins", self.bins, 1, 2**16)
        check_int("upsample_rate", self.upsample_rate, 1, 2**10)

    def init(self, shape: tuple[int, ...] = (), xp: type[Names] = Names) -> Counts:
        """The state before any array was seen."""
        ends = (xp.full((), end, "float32") for end in (float("inf"), float("-inf")))
        return Counts(xp.full((self.bins,), 0, "float32"), *ends)

    def update(self, state: Counts, x: Array, xp: type[Names] = Names) -> Counts:
        """The state after one more array of float32, float64, float16 or bfloat16.

        Raises:
            TypeError: if x has another dtype.
            ValueError: if the state has another number of bins.
        """
        check_input(x, xp)
        if tuple(state.histogram.shape) != (self.bins,):
            raise ValueError(f"state has bins of shape {tuple(state.histogram.shape)}; allowed is ({self.bins},)")
        if 0 in x.shape:
            return state
        with xp.arithmetic():
            numbers: Any = x
            return self._update(state, xp.astype(numbers.reshape(-1), "float32"), xp)

    def _update(self, state: Counts, x: Any, xp: Any) -> Counts:
        finite = x - x == 0  # not so for infinities and NaN
        infinity = float("inf")
        low = xp.minimum(state.min_val, xp.unsigned(xp.extremes(xp.where(finite, x, infinity), (0,))[0]))
        high = xp.maximum(state.max_val, xp.unsigned(xp.extremes(xp.where(finite, x, -infinity), (0,))[1]))
        counts = self._count(xp, xp.where(finite, x, low), xp.astype(finite, "float32"), low, high)
        return self._merge(xp, state, low, high, counts)

    def _merge(self, xp: Any, state: Counts, low: Any, high: Any, counts: Any) -> Counts:
        """The state with more counts, in a range that contains the state's range."""
        same = (state.min_val == low) & (state.max_val == high) | (state.min_val > state.max_val)
        old = xp.cond(same, _unmoved, partial(self._moved, xp), state, low, high)
        return Counts(old + counts, low, high)

    def _count(self, xp: Any, x: Any, weight: Any, low: Any, high: Any) -> Any:
        """The number of elements in each bin; if all are one number, they lie in the middle."""
        single = low == high
        start, end = xp.where(single, low - 1, low), xp.where(single, high + 1, high)
        index = xp.astype(xp.divide(x - start, end - start) * self.bins, "int32")
        return xp.bincount(xp.clip(index, 0, self.bins - 1), weight, self.bins)

    def _moved(self, xp: Any, state: Counts, low: Any, high: Any) -> Any:
        """The counts of a state in a larger range."""
        single = state.min_val == state.max_val
        return xp.cond(single, partial(self._moved_whole, xp), partial(self._moved_in_parts, xp), state, low, high)

    def _moved_whole(self, xp: Any, state: Counts, low: Any, high: Any) -> Any:
        number = state.min_val.reshape(1)
        return self._count(xp, number, xp.full_like(number, 1, "float32"), low, high) * total(xp, state.histogram)

    def _moved_in_parts(self, xp: Any, state: Counts, low: Any, high: Any) -> Any:
        parts = self.bins * self.upsample_rate
        width = xp.divide(state.max_val - state.min_val, float(parts))
        middles = edges(xp, state.min_val, state.max_val, parts)[:-1] + width * 0.5
        index = xp.searchsorted(edges(xp, low, high, self.bins), middles, True) - 1
        weight = xp.divide(xp.repeat(state.histogram, self.upsample_rate), float(self.upsample_rate))
        return xp.bincount(xp.clip(index, 0, self.bins - 1), weight, self.bins)

    def qparams(self, state: Counts, xp: type[Names] = Names) -> QParams:
        """The parameters that cover the part of the range with the least error.

        Raises:
            ValueError: if no array was seen (in traced programs this is not known).
        """
        check_range(state.min_val, state.max_val, xp)
        with xp.arithmetic():
            low, high = best_range(xp, *state, self.form._levels)
        return choose_qparams(low, high, self.form, self.scheme, eps=self.eps, xp=xp)


def _unmoved(state: Counts, low: Any, high: Any) -> Any:
    return state.histogram


def edges(xp: Any, low: Any, high: Any, parts: int) -> Any:
    """The ends of equal parts of a range: a step in float32, its multiples in float64, counted from the nearer end."""
    step = xp.astype(xp.divide(high - low, float(parts)), "float64")
    index = xp.arange(parts + 1, low)
    up = xp.astype(low, "float64") + step * xp.astype(index, "float64")
    down = xp.astype(high, "float64") + step * xp.astype(index - parts, "float64")
    return xp.astype(xp.where(index < (parts + 1) // 2, up, down), "float32")


_QUANTILE = np.full(100_001, 1e-5)  # added up in float64, so that the last may lie beyond the other end
_BELOW = np.add.accumulate(np.concatenate([[0.0], _QUANTILE]))
_ABOVE = np.subtract.accumulate(np.concatenate([[1.0], _QUANTILE]))


class _Part(NamedTuple):
    """A state of the search: the numbers of quantiles cut below and above, the remaining bins, and their error."""

    below: Any
    above: Any
    first: Any
    last: Any
    error: Any
    done: Any


def best_range(xp: Any, histogram: Any, low: Any, high: Any, levels: int) -> tuple[Any, Any]:
    """The float32 ends of the part with the least error, for this number of levels; needs 64-bit types."""
    part = _best_part(xp, histogram, low, high, levels)
    width = xp.divide(high - low, float(histogram.shape[0]))
    first, last = (xp.astype(index, "float32") for index in (part.first, part.last + 1))
    return low + xp.rounded(width * first), low + xp.rounded(width * last)


def saved_by_cutting(state: Counts[np.ndarray], levels: int) -> float:
    """By which share the part with the least error has less error than the whole range; 0 if it has more."""
    first, last = np.int32(0), np.int32(state.histogram.size - 1)
    with Names.arithmetic():
        part = _best_part(Names, *state, levels).error
        whole = error_of_part(Names, state.histogram, _width(Names, *state), first, last, levels)
    return max(0.0, 1 - float(part) / float(whole)) if whole > 0 else 0.0


def _width(xp: Any, histogram: Any, low: Any, high: Any) -> Any:
    return xp.divide(xp.astype(high, "float64") - xp.astype(low, "float64"), float(histogram.shape[0]))


def _best_part(xp: Any, histogram: Any, low: Any, high: Any, levels: int) -> _Part:
    """Where torch's search ends."""
    lowest, highest = _quantiles(xp, histogram)
    below, above = xp.asarray(_BELOW), xp.asarray(_ABOVE)
    error_of = partial(error_of_part, xp, histogram, _width(xp, histogram, low, high), levels=levels)

    def step(part: _Part) -> _Part:
        first = xp.clip(lowest[part.below + 1], part.first, part.last)
        last = xp.clip(highest[part.above + 1], part.first, part.last)
        forward = first - part.first > part.last - last  # the end that loses more bins goes first, as in torch
        moved = forward | (last < part.last)
        first, last = xp.where(forward, first, part.first), xp.where(forward, part.last, last)
        error = xp.cond(moved, error_of, lambda first, last: part.error, first, last)
        worse = error > part.error  # ends the search: the part before it is the result
        # where nothing moves, only `above` grows, until the last bin goes
        above = xp.where(moved, part.above + 1, xp.searchsorted(-highest, -part.last, True) - 1)
        return _Part(
            xp.where(forward, part.below + 1, part.below),
            xp.where(forward, part.above, above),
            xp.where(worse, part.first, first),
            xp.where(worse, part.last, last),
            xp.where(worse, part.error, error),
            worse | (first == last),  # errors of numbers near 1e-18 are 0 in float32, and never worse
        )

    zero = xp.full_like(low, 0, "int32")
    last = zero + (histogram.shape[0] - 1)
    start = _Part(zero, zero, zero, last, xp.full_like(low, float("inf"), "float32"), zero > 0)
    return xp.while_loop(lambda part: ~part.done & (below[part.below] < above[part.above]), step, start)


def _quantiles(xp: Any, histogram: Any) -> tuple[Any, Any]:
    """The first bin left for each count of quantiles cut below, and the last bin left for each count cut above."""
    sums = xp.astype(xp.cumsum(xp.astype(histogram, "float64")), "float32")
    whole = xp.astype(total(xp, histogram), "float64")
    below, above = (xp.astype(xp.asarray(share) * whole, "float32") for share in (_BELOW, _ABOVE))
    return xp.searchsorted(sums, below, False), xp.searchsorted(sums, above, True) - 1


def error_of_part(xp: Any, histogram: Any, width: Any, first: Any, last: Any, levels: int) -> Any:
    """The float32 error if the bins from `first` to `last` are cut into one interval for each level."""
    # A bin covers intervals from that of its begin to that of its end: two in part, those between as a whole.
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
    """The interval of an edge; the quotient is in float64, where rounding cannot carry it over an integer."""
    quotient = xp.floor(xp.divide(xp.astype(edge, "float64"), xp.astype(interval, "float64")))
    return xp.astype(xp.clip(quotient, 0, levels - 1), "float32")


def _moment(xp: Any, start: Any, stop: Any, density: Any) -> Any:
    """The integral of density * x^2 from start to stop."""
    cubes = xp.rounded(stop * stop * stop) - xp.rounded(start * start * start)
    return xp.rounded(density * xp.divide(cubes, 3.0))


def total(xp: Any, x: Any) -> Any:
    """The float32 sum of one dimension, in the order in which torch adds up to 8,192 numbers on x86.

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
