"""Observers: states that follow from the arrays seen so far, and parameters that follow from a state.

An observer is an immutable description. Its state is a tuple of arrays that the caller keeps: `init` makes it, `update`
returns the next one, and `qparams` turns it into parameters. All three can be traced: only an array's shape decides
which operations run, never its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple

from qcore.affine.integers import UINT8, AffineInteger
from qcore.affine.parameters import (
    EPS,
    QParams,
    check_axis,
    check_form,
    check_fraction,
    check_input,
    check_scheme,
    choose_qparams,
)
from qcore.arguments import check_int
from qcore.namespace import A, Array, Names


class Extremes(NamedTuple, Generic[A]):
    """The least and the greatest element.

    Attributes:
        min_val, max_val: float32 of shape (), or (channels,); inf and -inf before any element was seen.

    Example:
        >>> MinMax().init()
        Extremes(min_val=array(inf, dtype=float32), max_val=array(-inf, dtype=float32))
    """

    min_val: A
    max_val: A


def widened(xp: Any, state: Extremes, low: Any, high: Any) -> Extremes:
    """The extremes of all arrays, after one more array with these extremes."""
    return Extremes(xp.minimum(state.min_val, low), xp.maximum(state.max_val, high))


def lies_in(state: Any, other: Any) -> bool:
    """True if the numbers that an observer saw, and 0, lie in the range of another; both are of whole arrays."""
    if tuple(state.min_val.shape) != () or tuple(other.min_val.shape) != ():
        return False
    (low, high), (least, most) = ((min(float(one.min_val), 0), max(float(one.max_val), 0)) for one in (state, other))
    return least <= low and high <= most


def averaged(xp: Any, state: Extremes, low: Any, high: Any, share: Any) -> Extremes:
    """The moving averages after an array with these extremes, which get a share; the first array's own at first."""
    first = state.min_val > state.max_val
    pairs = ((state.min_val, low), (state.max_val, high))
    steps = ((old, new, xp.rounded(share * (new - old))) for old, new in pairs)
    least, most = (xp.where(first, new, old + step) for old, new, step in steps)
    # A large old end cancels: 1e8 + 1.0 * (0.3 - 1e8) is 0, below a least of 0.3. Ends that have crossed change places,
    # since such a range would count as one that has seen nothing.
    crossed = least > most
    return Extremes(xp.where(crossed, most, least), xp.where(crossed, least, most))


@dataclass(frozen=True)
class RangeRule:
    """A rule that chooses parameters for integers from a range; see `MinMax` for its arguments."""

    form: AffineInteger = UINT8
    scheme: str = "affine"
    eps: float = EPS

    def __post_init__(self) -> None:
        check_scheme(self.scheme, check_form(self.form))
        check_fraction("eps", self.eps)


@dataclass(frozen=True)
class MinMax(RangeRule):
    """The extremes of all elements.

    An infinity or a NaN is kept. Arrays without elements change nothing. An extreme of zero is +0.

    Args:
        form: the range of the integers.
        scheme: "affine" or "symmetric", see `choose_qparams`.
        eps: the smallest scale.

    Example:
        >>> import numpy as np
        >>> observer = MinMax()
        >>> state = observer.update(observer.init(), np.float32([-1, 0.5, 3]))
        >>> state
        Extremes(min_val=np.float32(-1.0), max_val=np.float32(3.0))
        >>> observer.qparams(state).zero_point
        array(64, dtype=int32)
    """

    axis: ClassVar[int | None] = None

    def init(self, shape: tuple[int, ...] = (), xp: type[Names] = Names) -> Extremes:
        """The state before any array was seen.

        Args:
            shape: the shape of later arrays, at least up to the channels; only per-channel observers read it.
            xp: the array namespace.
        """
        channels = () if self.axis is None else (shape[check_axis(self.axis, len(shape))],)
        infinity = float("inf")
        return Extremes(xp.full(channels, infinity, "float32"), xp.full(channels, -infinity, "float32"))

    def update(self, state: Extremes, x: Array, xp: type[Names] = Names) -> Extremes:
        """The state after one more array of float32, float64, float16 or bfloat16.

        Raises:
            TypeError: if x has another dtype.
            ValueError: if x has other channels than the state.
        """
        check_input(x, xp)
        channels = () if self.axis is None else (x.shape[check_axis(self.axis, x.ndim)],)
        if (expected := tuple(state.min_val.shape)) != channels:
            raise ValueError(f"x has channels of shape {channels} for axis={self.axis}; allowed is {expected}")
        if 0 in x.shape:
            return state
        others = tuple(axis for axis in range(x.ndim) if axis != self.axis)
        with xp.arithmetic():
            low, high = (xp.unsigned(xp.astype(end, "float32")) for end in xp.extremes(x, others))
            return self._merge(state, low, high, xp)

    def _merge(self, state: Extremes, low: Any, high: Any, xp: Any) -> Extremes:
        return widened(xp, state, low, high)

    def qparams(self, state: Extremes, xp: type[Names] = Names) -> QParams:
        """The parameters that cover the range that was seen.

        Raises:
            ValueError: if no array was seen (in traced programs this is not known).
        """
        return choose_qparams(*state, self.form, self.scheme, axis=self.axis, eps=self.eps, xp=xp)


@dataclass(frozen=True)
class MovingAverageMinMax(MinMax):
    """Moving averages of each array's extremes: m + averaging_constant * (extreme - m), the first array's at first.

    Sums are float32's, as in torch.ao: after an end that is larger by many powers of ten they may cross. Then the ends
    change places; in torch.ao such an observer raises.

    Args:
        form, scheme, eps: as for `MinMax`.
        averaging_constant: the share of the newest array, above 0 and at most 1.

    Example:
        >>> import numpy as np
        >>> observer = MovingAverageMinMax(averaging_constant=0.5)
        >>> state = observer.init(())
        >>> for x in (np.float32([0, 1]), np.float32([0, 3])):
        ...     state = observer.update(state, x)
        >>> state.max_val
        array(2., dtype=float32)
    """

    averaging_constant: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("averaging_constant", self.averaging_constant)

    def _merge(self, state: Extremes, low: Any, high: Any, xp: Any) -> Extremes:
        return averaged(xp, state, low, high, self.averaging_constant)


@dataclass(frozen=True)
class PerChannelMinMax(MinMax):
    """The extremes of each channel's elements.

    Args:
        form, scheme, eps: as for `MinMax`.
        axis: the dimension of the arrays along which the channels lie.

    Example:
        >>> import numpy as np
        >>> observer = PerChannelMinMax()
        >>> state = observer.init((2, 2))
        >>> for x in (np.float32([[0, 1], [0, 2]]), np.float32([[0, 3], [0, 1]])):
        ...     state = observer.update(state, x)
        >>> state.max_val
        array([3., 2.], dtype=float32)
    """

    axis: int = 0  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("axis", self.axis, 0, 63)  # NumPy's arrays have at most 64 dimensions


@dataclass(frozen=True)
class MovingAveragePerChannelMinMax(PerChannelMinMax, MovingAverageMinMax):
    """Moving averages of the extremes of each channel's elements.

    Args:
        form, scheme, eps: as for `MinMax`.
        axis: as for `PerChannelMinMax`.
        averaging_constant: as for `MovingAverageMinMax`.

    Example:
        >>> import numpy as np
        >>> observer = MovingAveragePerChannelMinMax(averaging_constant=0.5)
        >>> state = observer.init((2, 2))
        >>> for x in (np.float32([[0, 1], [0, 2]]), np.float32([[0, 3], [0, 4]])):
        ...     state = observer.update(state, x)
        >>> state.max_val
        array([2., 3.], dtype=float32)
    """


class _WithoutParameters:
    def qparams(self, state: tuple[Array, ...], xp: type[Names] = Names) -> QParams:
        """Raises TypeError: this observer has no parameters."""
        raise TypeError(f"{self} chooses no parameters; allowed are observers of ranges, such as MinMax")


@dataclass(frozen=True)
class Recording(_WithoutParameters):
    """All arrays seen so far, as the state, a tuple of copies; for debugging.

    Example:
        >>> import numpy as np
        >>> observer = Recording()
        >>> observer.update(observer.init(), np.float32([1, 2]))
        (array([1., 2.], dtype=float32),)
    """

    def init(self, shape: tuple[int, ...] = (), xp: type[Names] = Names) -> tuple[()]:
        """The state before any array was seen."""
        return ()

    def update(self, state: tuple[A, ...], x: A, xp: type[Names] = Names) -> tuple[A, ...]:
        """The state after one more array."""
        return *state, xp.copy(x)


@dataclass(frozen=True)
class Noop(_WithoutParameters):
    """An observer without a state, for arrays that need no range, such as float16 ones.

    Example:
        >>> import numpy as np
        >>> Noop().update((), np.float32([1, 2]))
        ()
    """

    def init(self, shape: tuple[int, ...] = (), xp: type[Names] = Names) -> tuple[()]:
        """The empty state."""
        return ()

    def update(self, state: tuple[()], x: Array, xp: type[Names] = Names) -> tuple[()]:
        """The empty state."""
        return state
