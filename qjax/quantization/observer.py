"""Observers of ranges: frozen descriptions, whose states are pytrees that the caller keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import jax

from qcore import affine
from qcore.affine import AffineInteger, QParams
from qcore.affine.parameters import EPS, check_range
from qcore.arguments import check_choice, check_type
from qcore.law.carrier import CARRIERS
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike, as_array
from qjax.quantization.affine import Form, form_of, scheme_of

State = affine.Extremes | affine.Counts | tuple[jax.Array, ...]


class WithArgs:
    """`with_args`: makes an instance from a class, or a copy of an instance with some arguments changed."""

    def __init__(self, changed: Callable[..., Any]) -> None:
        self.changed = changed

    def __get__(self, description: Any, owner: Any) -> Any:
        return owner if description is None else partial(self.changed, description)


class ObserverBase(ABC):
    """The base of all observers: pure functions that make a state, update it, and turn it into parameters.

    They work inside jit, scan and vmap, where a state's arrays keep their shapes and dtypes, and give the bits of
    `qcore.affine`. Observers are values: hashable, comparable and picklable.

    `with_args(**arguments)` of a class makes an observer; of an observer it makes a copy with changed arguments.

    Example:
        >>> NoopObserver().with_args(dtype="bfloat16")
        NoopObserver(dtype='bfloat16')
        >>> NoopObserver() == NoopObserver(), isinstance(NoopObserver(), ObserverBase)
        (True, True)
    """

    with_args = WithArgs(replace)

    @cached_property
    @abstractmethod
    def rule(self) -> Any:
        """The observer of `qcore.affine` that this one runs on JAX arrays."""

    def __post_init__(self) -> None:
        self.rule  # noqa: B018 - wrong arguments raise here

    def init(self, shape: tuple[int, ...] = ()) -> State:
        """The state before any array was seen.

        Args:
            shape: the shape of the arrays to observe; per-channel observers need it, at least up to the channels.
        """
        return self.rule.init(shape, Names)

    def update(self, state: State, x: ArrayLike) -> State:
        """The state after one more array of float32, float16, bfloat16 or, where x64 is enabled, float64.

        Raises:
            TypeError: if x is not an array of one of these dtypes.
            ValueError: if x does not fit the state.
        """
        x = as_array(x)
        return _update(self.rule, state, jax.lax.stop_gradient(x))

    def qparams(self, state: State) -> QParams:
        """The parameters that follow from the observed arrays.

        Raises:
            ValueError: if no array was observed and the state is not traced.
            TypeError: if the observer chooses no parameters.
        """
        return self.rule.qparams(state, Names)


@dataclass(frozen=True)
class RangeObserver(ObserverBase):
    """An observer that chooses parameters for integers, by a rule of `qcore.affine`; see `MinMaxObserver`."""

    _rule_class: ClassVar[type]
    dtype: Form = "quint8"
    qscheme: str = "per_tensor_affine"
    reduce_range: bool = False
    quant_min: int | None = None
    quant_max: int | None = None
    eps: float = EPS

    @cached_property
    def rule(self) -> Any:
        form = form_of(self.dtype)._part(self.quant_min, self.quant_max, self.reduce_range)
        granularity = "channel" if issubclass(self._rule_class, affine.PerChannelMinMax) else "tensor"
        names = ("averaging_constant", "ch_axis", "bins", "upsample_rate")
        settings = {name.removeprefix("ch_"): getattr(self, name) for name in names if hasattr(self, name)}
        return self._rule_class(form, scheme_of(self.qscheme, granularity), self.eps, **settings)

    @property
    def form(self) -> AffineInteger:
        """The integers that parameters are chosen for."""
        return self.rule.form

    @property
    def axis(self) -> int | None:
        """The dimension along which the channels lie; None without channels."""
        return getattr(self.rule, "axis", None)

    def qparams(self, state: Any) -> QParams:
        check_range(state.min_val, state.max_val, Names)
        return _qparams(self.rule, state)


# A dataclass has the fields of its last base first.
@dataclass(frozen=True)
class _Averaging:
    averaging_constant: float = 0.01


@dataclass(frozen=True)
class _Channels:
    ch_axis: int = 0


@dataclass(frozen=True)
class _Bins:
    bins: int = 2048
    upsample_rate: int = 16


_update = jax.jit(lambda rule, state, x: rule.update(state, x, Names), static_argnums=0)
_qparams = jax.jit(lambda rule, state: rule.qparams(state, Names), static_argnums=0)


@dataclass(frozen=True)
class MinMaxObserver(RangeObserver):
    """The extremes of all elements; see `qcore.affine.MinMax`.

    Args:
        dtype: the integers: "quint8", "qint8", "qint32" or an `AffineInteger`.
        qscheme: "per_tensor_affine" or "per_tensor_symmetric".
        reduce_range: whether both ends of the range are halved and rounded down.
        quant_min, quant_max: a part of the dtype's range, which has 0 in it; None means all of it.
        eps: the smallest scale.

    Example:
        >>> import jax.numpy as jnp
        >>> observer = MinMaxObserver()
        >>> state = observer.update(observer.init(), jnp.float32([-1, 0.5, 3]))
        >>> state
        Extremes(min_val=Array(-1., dtype=float32), max_val=Array(3., dtype=float32))
        >>> observer.qparams(state).zero_point
        Array(64, dtype=int32)
    """

    _rule_class = affine.MinMax


@dataclass(frozen=True)
class MovingAverageMinMaxObserver(RangeObserver, _Averaging):
    """Moving averages of each array's extremes; see `qcore.affine.MovingAverageMinMax`.

    Args:
        averaging_constant: the share of the newest array, above 0 and at most 1.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.

    Example:
        >>> observer = MovingAverageMinMaxObserver(averaging_constant=0.5)
        >>> state = observer.update(observer.init(), jax.numpy.float32([0, 1]))
        >>> observer.update(state, jax.numpy.float32([0, 3])).max_val
        Array(2., dtype=float32)
    """

    _rule_class = affine.MovingAverageMinMax


@dataclass(frozen=True)
class PerChannelMinMaxObserver(RangeObserver, _Channels):
    """The extremes of each channel's elements; see `qcore.affine.PerChannelMinMax`.

    Args:
        ch_axis: the dimension of the arrays along which the channels lie.
        dtype, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.
        qscheme: "per_channel_affine" or "per_channel_symmetric".

    Example:
        >>> observer = PerChannelMinMaxObserver()
        >>> observer.update(observer.init((2, 2)), jax.numpy.float32([[0, 1], [0, 2]])).max_val
        Array([1., 2.], dtype=float32)
    """

    _rule_class = affine.PerChannelMinMax
    qscheme: str = "per_channel_affine"


@dataclass(frozen=True)
class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver, _Averaging):
    """Moving averages of the extremes of each channel's elements.

    Args:
        averaging_constant: as for `MovingAverageMinMaxObserver`.
        ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `PerChannelMinMaxObserver`.

    Example:
        >>> observer = MovingAveragePerChannelMinMaxObserver(averaging_constant=0.5)
        >>> state = observer.update(observer.init((2, 2)), jax.numpy.float32([[0, 1], [0, 2]]))
        >>> observer.update(state, jax.numpy.float32([[0, 3], [0, 4]])).max_val
        Array([2., 3.], dtype=float32)
    """

    _rule_class = affine.MovingAveragePerChannelMinMax


@dataclass(frozen=True)
class HistogramObserver(RangeObserver, _Bins):
    """Counts over the range of all elements, and the part of it that loses least; see `qcore.affine.Histogram`.

    Its 64-bit arithmetic works without x64.

    Args:
        bins: the number of bins.
        upsample_rate: the number of parts into which a bin is cut when the range grows.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.

    Example:
        >>> observer = HistogramObserver(bins=4)
        >>> observer.update(observer.init(), jax.numpy.float32([0, 1, 1, 4])).histogram
        Array([1., 2., 0., 1.], dtype=float32)
    """

    _rule_class = affine.Histogram


@dataclass(frozen=True, init=False)
class RuleObserver(RangeObserver):
    """Any observer of extremes of `qcore.affine`.

    Args:
        rule: such as `qcore.affine.MinMax(INT8, "symmetric")`.

    Example:
        >>> RuleObserver(affine.MinMax()).qscheme
        'affine'
    """

    rule: affine.MinMax

    def __init__(self, rule: affine.MinMax) -> None:
        check_type("rule", rule, affine.MinMax, "an observer of extremes of qcore.affine")
        settings = {"dtype": rule.form, "qscheme": rule.scheme, "eps": rule.eps, "rule": rule}
        for name, value in settings.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class RecordingObserver(ObserverBase):
    """All arrays seen so far, as the state, a tuple that grows; for debugging.

    Example:
        >>> RecordingObserver().update((), jax.numpy.float32([1, 2]))
        (Array([1., 2.], dtype=float32),)
    """

    rule: ClassVar[Any] = affine.Recording()


@dataclass(frozen=True)
class NoopObserver(ObserverBase):
    """Remembers nothing: for arrays that need no range.

    Args:
        dtype: the dtype to which arrays will be converted: "float16", "bfloat16", "float32" or "float64".

    Raises:
        TypeError, ValueError: if dtype is none of these.

    Example:
        >>> NoopObserver(dtype="bfloat16").init()
        ()
    """

    dtype: str = "float16"

    @cached_property
    def rule(self) -> affine.Noop:
        check_choice("dtype", self.dtype, list(CARRIERS))
        return affine.Noop()


Observer = ObserverBase
MovingAverageObserver = MovingAverageMinMaxObserver
