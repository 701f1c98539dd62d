"""Observers of ranges: frozen descriptions, whose states are pytrees that the caller keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax

from qcore.affine import (
    AffineInteger,
    Histogram,
    MinMax,
    MovingAverageMinMax,
    MovingAveragePerChannelMinMax,
    Noop,
    PerChannelMinMax,
    QParams,
    Recording,
)
from qcore.affine.parameters import EPS, check_range
from qcore.arguments import check_choice
from qcore.carrier import CARRIERS
from qjax.dispatch import check_array
from qjax.quantization.names import Names
from qjax.quantization.parameters import Form, form_of, scheme_of


class WithArgs:
    """`with_args`: of a class it makes a description, of a description another one, with some arguments changed."""

    def __init__(self, changed: Callable[..., Any]) -> None:
        self.changed = changed

    def __get__(self, description: Any, owner: Any) -> Any:
        return owner if description is None else partial(self.changed, description)


class ObserverBase(ABC):
    """What all observers have: pure functions that make a state, update it, and turn it into parameters.

    They work inside jit, scan and vmap, where a state's arrays keep their shapes and dtypes, and give the bits of
    `qcore.affine`. Observers are values: hashable, comparable and picklable.

    `with_args(**arguments)` of a class makes an observer, and that of an observer one with some arguments changed.
    """

    with_args = WithArgs(replace)

    @cached_property
    @abstractmethod
    def rule(self) -> Any:
        """The observer of `qcore.affine` that this one runs on JAX arrays."""

    def __post_init__(self) -> None:
        self.rule  # noqa: B018 - wrong arguments raise here

    def init(self, shape: tuple[int, ...] = ()) -> Any:
        """The state before any array was seen.

        Args:
            shape: of the arrays that will be seen; per-channel observers need it, up to the channels at least.
        """
        return self.rule.init(shape, Names)

    def update(self, state: Any, x: jax.Array) -> Any:
        """The state after one more array of float32, float16, bfloat16 or, where x64 is enabled, float64.

        Raises:
            TypeError: if x is no such array.
            ValueError: if x does not fit the state.
        """
        check_array(x)
        return _update(self.rule, state, jax.lax.stop_gradient(x))

    def qparams(self, state: Any) -> QParams:
        """The parameters that follow from what was seen.

        Raises:
            ValueError: if nothing was seen, as far as that is known.
            TypeError: if the observer chooses none.
        """
        return self.rule.qparams(state, Names)


class Ranged(ObserverBase):
    """An observer that chooses parameters for integers."""

    @property
    def form(self) -> AffineInteger:
        """The integers that parameters are chosen for."""
        return self.rule.form

    @property
    def axis(self) -> int | None:
        """The dimension along which the channels lie; None where there are none."""
        return getattr(self.rule, "axis", None)

    def qparams(self, state: Any) -> QParams:
        check_range(state.min_val, state.max_val, Names)
        return _qparams(self.rule, state)

    def _rule(self: Any, kind: type, granularity: str, **arguments: Any) -> Any:
        form = form_of(self.dtype).part(self.quant_min, self.quant_max, self.reduce_range)
        return kind(form, scheme_of(self.qscheme, granularity), self.eps, **arguments)


@partial(jax.jit, static_argnums=0)
def _update(rule: Any, state: Any, x: jax.Array) -> Any:
    return rule.update(state, x, Names)


@partial(jax.jit, static_argnums=0)
def _qparams(rule: Any, state: Any) -> QParams:
    return rule.qparams(state, Names)


@dataclass(frozen=True)
class MinMaxObserver(Ranged):
    """The extremes of all elements; see `qcore.affine.MinMax`.

    Args:
        dtype: the integers: "quint8", "qint8", "qint32" or an `AffineInteger`.
        qscheme: "per_tensor_affine" or "per_tensor_symmetric".
        reduce_range: whether both ends of the range are halved and rounded down.
        quant_min, quant_max: a part of the dtype's range, which has 0 in it; None means all of it.
        eps: the smallest scale.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import jax.numpy as jnp
        >>> observer = MinMaxObserver()
        >>> state = observer.update(observer.init(), jnp.float32([-1, 0.5, 3]))
        >>> state
        Extremes(min_val=Array(-1., dtype=float32), max_val=Array(3., dtype=float32))
        >>> observer.qparams(state).zero_point
        Array(64, dtype=int32)
    """

    dtype: Form = "quint8"
    qscheme: str = "per_tensor_affine"
    reduce_range: bool = False
    quant_min: int | None = None
    quant_max: int | None = None
    eps: float = EPS

    @cached_property
    def rule(self) -> MinMax:
        return self._rule(MinMax, "tensor")


@dataclass(frozen=True)
class MovingAverageMinMaxObserver(Ranged):
    """Moving averages of each array's extremes; see `qcore.affine.MovingAverageMinMax`.

    Args:
        averaging_constant: the share of the newest array, above 0 and at most 1.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.
    """

    averaging_constant: float = 0.01
    dtype: Form = "quint8"
    qscheme: str = "per_tensor_affine"
    reduce_range: bool = False
    quant_min: int | None = None
    quant_max: int | None = None
    eps: float = EPS

    @cached_property
    def rule(self) -> MovingAverageMinMax:
        return self._rule(MovingAverageMinMax, "tensor", averaging_constant=self.averaging_constant)


@dataclass(frozen=True)
class PerChannelMinMaxObserver(Ranged):
    """The extremes of each channel's elements; see `qcore.affine.PerChannelMinMax`.

    Args:
        ch_axis: the dimension of the arrays along which the channels lie.
        dtype, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.
        qscheme: "per_channel_affine" or "per_channel_symmetric".
    """

    ch_axis: int = 0
    dtype: Form = "quint8"
    qscheme: str = "per_channel_affine"
    reduce_range: bool = False
    quant_min: int | None = None
    quant_max: int | None = None
    eps: float = EPS

    @cached_property
    def rule(self) -> PerChannelMinMax:
        return self._rule(PerChannelMinMax, "channel", axis=self.ch_axis)


@dataclass(frozen=True)
class MovingAveragePerChannelMinMaxObserver(Ranged):
    """Moving averages of the extremes of each channel's elements.

    Args:
        averaging_constant: as for `MovingAverageMinMaxObserver`.
        ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `PerChannelMinMaxObserver`.
    """

    averaging_constant: float = 0.01
    ch_axis: int = 0
    dtype: Form = "quint8"
    qscheme: str = "per_channel_affine"
    reduce_range: bool = False
    quant_min: int | None = None
    quant_max: int | None = None
    eps: float = EPS

    @cached_property
    def rule(self) -> MovingAveragePerChannelMinMax:
        arguments = {"averaging_constant": self.averaging_constant, "axis": self.ch_axis}
        return self._rule(MovingAveragePerChannelMinMax, "channel", **arguments)


@dataclass(frozen=True)
class HistogramObserver(Ranged):
    """Counts over the range of all elements, and the part of it that loses least; see `qcore.affine.Histogram`.

    Its 64-bit arithmetic works without x64.

    Args:
        bins: how many.
        upsample_rate: into how many parts a bin is cut when the range grows.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.
    """

    bins: int = 2048
    upsample_rate: int = 16
    dtype: Form = "quint8"
    qscheme: str = "per_tensor_affine"
    reduce_range: bool = False
    quant_min: int | None = None
    quant_max: int | None = None
    eps: float = EPS

    @cached_property
    def rule(self) -> Histogram:
        return self._rule(Histogram, "tensor", bins=self.bins, upsample_rate=self.upsample_rate)


@dataclass(frozen=True)
class RecordingObserver(ObserverBase):
    """All arrays seen so far, as the state, a tuple that grows; for debugging."""

    @cached_property
    def rule(self) -> Recording:
        return Recording()


@dataclass(frozen=True)
class NoopObserver(ObserverBase):
    """Nothing is remembered: for what needs no range.

    Args:
        dtype: what the arrays will be converted to: "float16", "bfloat16", "float32" or "float64".

    Raises:
        TypeError, ValueError: if dtype is none of these.
    """

    dtype: str = "float16"

    @cached_property
    def rule(self) -> Noop:
        check_choice("dtype", self.dtype, list(CARRIERS))
        return Noop()


Observer = ObserverBase
MovingAverageObserver = MovingAverageMinMaxObserver
