"""The histogram observer: counts in bins over the range seen so far."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from qcore.affine.observers import RangeRule
from qcore.affine.parameters import QParams, check_input, check_range, choose_qparams
from qcore.affine.search import best_range, total
from qcore.arguments import check_int
from qcore.namespace import Names


class Counts(NamedTuple):
    """How many elements there were in each of some equal parts of a range; all fields are float32.

    Attributes:
        histogram: of shape (bins,).
        min_val, max_val: the range, of shape (); inf and -inf before any element was seen.

    Example:
        >>> Histogram(bins=4).init().histogram
        array([0., 0., 0., 0.], dtype=float32)
    """

    histogram: Any
    min_val: Any
    max_val: Any


@dataclass(frozen=True)
class Histogram(RangeRule):
    """Counts over the range of all elements; parameters for the part of it that loses least, by torch's search.

    Where an array has elements outside of the range so far, the range grows, and the old counts move: each bin is cut
    into `upsample_rate` parts, which go where their middles lie. Infinities and NaN are left out. Counts are exact up
    to 2^24 a bin. Its arithmetic is float32, save where `docs/affine.md` says float64.

    Args:
        form, scheme, eps: as for `MinMax`.
        bins: how many.
        upsample_rate: into how many parts a bin is cut.

    Raises:
        TypeError, ValueError: if an argument is not as above.

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

    def init(self, shape: tuple[int, ...] = (), xp: Any = Names) -> Counts:
        """The state before any array was seen."""
        ends = (xp.full((), end, "float32") for end in (float("inf"), float("-inf")))
        return Counts(xp.full((self.bins,), 0, "float32"), *ends)

    def update(self, state: Counts, x: Any, xp: Any = Names) -> Counts:
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
            return self._update(state, xp.astype(x.reshape(-1), "float32"), xp)

    def _update(self, state: Counts, x: Any, xp: Any) -> Counts:
        finite = x - x == 0
        infinity = float("inf")
        low = xp.minimum(state.min_val, xp.unsigned(xp.extremes(xp.where(finite, x, infinity), (0,))[0]))
        high = xp.maximum(state.max_val, xp.unsigned(xp.extremes(xp.where(finite, x, -infinity), (0,))[1]))
        counts = self._count(xp, xp.where(finite, x, low), xp.astype(finite, "float32"), low, high)
        return self._merge(xp, state, low, high, counts)

    def _merge(self, xp: Any, state: Counts, low: Any, high: Any, counts: Any) -> Counts:
        """The state with more counts, in a range that has its own in it."""
        same = (state.min_val == low) & (state.max_val == high) | (state.min_val > state.max_val)
        old = xp.cond(same, _unmoved, partial(self._moved, xp), state, low, high)
        return Counts(old + counts, low, high)

    def _count(self, xp: Any, x: Any, weight: Any, low: Any, high: Any) -> Any:
        """How many elements lie in each bin; all in the middle where there is but one number."""
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

    def qparams(self, state: Counts, xp: Any = Names) -> QParams:
        """The parameters that cover the part of the range that loses least.

        Raises:
            ValueError: if nothing was seen, as far as that is known.
        """
        check_range(state.min_val, state.max_val, xp)
        with xp.arithmetic():
            low, high = best_range(xp, *state, self.form.levels)
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
