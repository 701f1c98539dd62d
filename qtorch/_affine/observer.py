"""Observers as modules: they return tensors unchanged, and compute parameters from them.

The rules are those of `qcore.affine`; `docs/affine.md` explains them. Buffers have the names and shapes of torch.ao's
observers, so that torch.ao's state_dicts load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
import torch

from qcore import affine
from qcore.affine import AffineInteger, Counts, Extremes, Histogram, PerChannelMinMax, QParams
from qcore.affine.histogram import saved_by_cutting
from qcore.affine.parameters import EPS, check_input
from qcore.arguments import check_int, check_type
from qtorch._affine.dtypes import FixedDtypes, integers, scheme
from qtorch._affine.namespace import Names, SmallNames
from qtorch._affine.tensor import QTensor
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import Unscripted


@dataclass(frozen=True, repr=False)
class Factory:
    """A class or function with some of its arguments; each call makes a new module.

    Example:
        >>> from qtorch.quantization import MinMaxObserver
        >>> signed = MinMaxObserver.with_args(dtype=torch.qint8).with_args(qscheme="symmetric")
        >>> signed().quant_min, signed() is signed()
        (-128, False)
    """

    make: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={name_of(value)}" for name, value in self.settings.items())
        return f"{name_of(self.make)}.with_args({settings})"

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.make(*arguments, **self.settings | settings)

    def with_args(self, **settings: Any) -> Factory:
        """A factory with further arguments, or other values of them."""
        return Factory(self.make, self.settings | settings)


def name_of(value: Any) -> str:
    """The name of a class or function, the `repr` of anything else, for the `repr` of what holds it."""
    name = getattr(value, "__name__", "")
    return name if name.isidentifier() else repr(value)


class ObserverBase(Unscripted, ABC, torch.nn.Module):
    """The base of all observers: `forward` observes a tensor and returns it, `calculate_qparams` returns parameters.

    Args:
        dtype: the type that values will be quantized to.

    Example:
        >>> from qtorch.quantization import NoopObserver
        >>> observer = NoopObserver()
        >>> isinstance(observer, ObserverBase), observer(torch.tensor([1.0]))
        (True, tensor([1.]))
    """

    def __init__(self, dtype: torch.dtype | AffineInteger) -> None:
        super().__init__()
        self.dtype = dtype

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Observes x and returns it."""

    @abstractmethod
    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale, float32, and the zero point, int32, each of shape (1,), or (channels,)."""

    @classmethod
    def with_args(cls, **settings: object) -> Factory:
        """A factory of these observers, with these arguments as defaults."""
        return Factory(cls, settings)


Observer = ObserverBase


def store(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Writes a value into a buffer, or replaces the buffer if the shapes differ."""
    buffer = getattr(module, name)
    if buffer.shape == value.shape:
        buffer.copy_(value)
    else:
        setattr(module, name, value)


def shows_nothing(x: torch.Tensor, state: torch.Tensor) -> bool:
    """True for a tensor on the device meta beside an observer with memory: it has no numbers to observe."""
    return x.is_meta and not state.is_meta


def fit(module: torch.nn.Module, name: str, shape: torch.Size) -> None:
    """Gives a buffer the shape of a checkpoint's entry, which may be the buffer itself: its numbers stay."""
    buffer = getattr(module, name)
    if buffer.shape != shape:
        setattr(module, name, buffer.new_empty(shape))


class RangeObserver(ObserverBase, FixedDtypes):
    """An observer with the state of a `qcore.affine` observer, in buffers of the same names."""

    _version = 3  # of torch.ao's state_dicts
    _rule_class: Any
    _state_class: Any = Extremes
    _steps_by_numpy = True  # faster than torch for small states
    eps: torch.Tensor
    min_val: torch.Tensor
    max_val: torch.Tensor

    def __init__(
        self,
        dtype: torch.dtype | AffineInteger = torch.quint8,
        qscheme: torch.qscheme | str = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        super().__init__(dtype)
        form = integers(dtype, quant_min, quant_max, reduce_range)
        per_channel = issubclass(self._rule_class, PerChannelMinMax)
        self.rule = self._rule_class(form, scheme(qscheme, per_channel), eps)
        self.qscheme = qscheme
        self.reduce_range = reduce_range
        self.quant_min, self.quant_max = form.qmin, form.qmax
        self.register_buffer("eps", torch.tensor([eps]))
        for name, value in self._empty_state()._asdict().items():
            self.register_buffer(name, value)

    def _set(self, **settings: Any) -> None:
        """Changes settings of the rule before a tensor was observed; ch_axis is the rule's axis."""
        self.rule = replace(self.rule, **{name.removeprefix("ch_"): value for name, value in settings.items()})
        for name, value in settings.items():
            setattr(self, name, value)
        self.reset_min_max_vals()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Observes x, a tensor of floats, and returns it; an empty tensor changes nothing.

        Raises:
            TypeError: if x has another type.
            ValueError: if x has another number of channels than earlier tensors.
        """
        check_input(x, Names)
        if x.numel() and not shows_nothing(x, self.eps):
            self._update(x.detach())
        return x

    def _update(self, x: torch.Tensor) -> None:
        low, high = self.min_val, self.max_val
        if self._steps_by_numpy and is_plain_tensor(x) and x.is_cpu and low.is_cpu and low.numel():
            memory = low.numpy(), high.numpy()
            state: Any = self.rule.update(Extremes(*memory), x, SmallNames)  # type: ignore[arg-type]
            for old, new in zip(memory, state, strict=True):
                old[...] = new
            return
        state = self.rule.update(self._state(x.shape), x, Names)
        for name, value in state._asdict().items():
            store(self, name, value)

    @property
    def _has_seen(self) -> bool:
        """Whether it has observed a number in each channel."""
        return self.min_val.numel() > 0 and not bool((self.min_val > self.max_val).any())

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale, float32, and the zero point, int32, each of shape (1,), or (channels,).

        Raises:
            ValueError: if no number was observed. On a GPU, and under `torch.compile`, observers of whole tensors do
                not check this, since the check would wait for the GPU.
        """
        if self.min_val.numel() == 0:
            raise ValueError("no channels were observed; observe something before asking for parameters")
        qparams = self._qparams()
        return qparams.scale.reshape(-1), qparams.zero_point.reshape(-1)

    def reset_min_max_vals(self) -> None:
        """Resets the state: nothing was observed."""
        for name, value in self._empty_state()._asdict().items():
            store(self, name, value.to(self.min_val.device))

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"

    def _empty_state(self) -> Any:
        """The state before the first tensor: the number of channels is not known."""
        axis = getattr(self.rule, "axis", None)
        return self.rule.init(() if axis is None else (0,) * (axis + 1), Names)

    def _state(self, shape: torch.Size) -> Any:
        """The state that a tensor of a shape updates."""
        seen = (getattr(self, name) for name in self._state_class._fields)
        if self.min_val.numel() == 0:
            seen = (value.to(self.min_val.device) for value in self.rule.init(tuple(shape), Names))
        return self._state_class(*seen)

    def _qparams(self) -> QParams:
        low, high = self.min_val, self.max_val
        if self._steps_by_numpy and low.is_cpu and is_plain_tensor(low):
            found = self.rule.qparams(Extremes(low.numpy(), high.numpy()), SmallNames)
            scale, zero_point = (torch.from_numpy(np.asarray(one)) for one in (found.scale, found.zero_point))
            return QParams(scale, zero_point, found.axis)
        return self.rule.qparams(self._state(low.shape), Names)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in ("min_val", "max_val"):  # their size is the number of channels
            if (value := state_dict.get(prefix + name)) is not None:
                fit(self, name, value.shape)
        state_dict.setdefault(prefix + "eps", self.eps)  # states of JAX have no eps
        super()._load_from_state_dict(state_dict, prefix, *others)
        self.rule = replace(self.rule, eps=float(self.eps))


@dataclass(frozen=True)
class TensorHistogram(Histogram):
    """qcore's rule for tensors; counts are exact up to 2^24 a bin."""

    def update(self, state: Counts, x: torch.Tensor, xp: Any = Names) -> Counts:
        if torch.compiler.is_dynamo_compiling():
            return Counts(*torch.ops.qtorch.histogram_update(*state, x, self.upsample_rate))
        return super().update(state, x, xp)

    def qparams(self, state: Counts, xp: Any = Names) -> QParams:
        """Runs in NumPy, which is faster than torch in the search's thousands of small steps."""
        if torch.compiler.is_dynamo_compiling():
            form = self.form
            arguments = form.qmin, form.qmax, form.signed, form.middle, self.scheme, self.eps
            return QParams(*torch.ops.qtorch.histogram_qparams(*state, *arguments))
        found = super().qparams(Counts(*(value.numpy(force=True) for value in state)))
        scale, zero_point = (torch.from_numpy(np.asarray(part)) for part in (found.scale, found.zero_point))
        return QParams(scale.to(state.min_val.device), zero_point.to(state.min_val.device))

    def _update(self, state: Counts, x: torch.Tensor, xp: Any) -> Counts:
        """Skips selection and weights if all elements are finite."""
        low, high = xp.extremes(x, (0,))
        if not isfinite(low) or not isfinite(high):
            x = x[torch.isfinite(x)]
            if x.numel() == 0:
                return state
            low, high = xp.extremes(x, (0,))
        low = xp.minimum(state.min_val, xp.unsigned(low))
        high = xp.maximum(state.max_val, xp.unsigned(high))
        return self._merge(xp, state, low, high, self._count(xp, x, None, low, high))

    def _count(self, xp: Any, x: torch.Tensor, weight: Any, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Counts by torch's own function, since all weights are 1; on the CPU it has the same bits."""
        if x.is_cpu:
            return torch.histc(x, self.bins, float(low), float(high))
        return super()._count(xp, x, torch.ones_like(x), low, high)


def run_histogram_update(
    histogram: torch.Tensor, low: torch.Tensor, high: torch.Tensor, x: torch.Tensor, upsample_rate: int
) -> tuple[torch.Tensor, ...]:
    rule = TensorHistogram(bins=len(histogram), upsample_rate=upsample_rate)
    return tuple(value.clone() for value in rule.update(Counts(histogram, low, high), x))


def run_histogram_qparams(
    histogram: torch.Tensor, low: torch.Tensor, high: torch.Tensor, *form: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    if low > high:  # nothing was observed; a traced program does not raise
        return torch.ones_like(low), torch.zeros_like(low, dtype=torch.int32)
    *integers, scheme, eps = form
    found = TensorHistogram(AffineInteger(*integers), scheme, eps, len(histogram)).qparams(Counts(histogram, low, high))
    return found.scale, found.zero_point


def histogram_update_shapes(*state_and_x: Any) -> tuple[torch.Tensor, ...]:
    """Tensors of the shapes and dtypes of a state."""
    return tuple(map(torch.empty_like, state_and_x[:3]))


def histogram_qparams_shapes(histogram: torch.Tensor, low: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Tensors of the shapes and dtypes of a scale and a zero point."""
    return torch.empty_like(low), torch.empty_like(low, dtype=torch.int32)


class MinMaxObserver(RangeObserver):
    """The least and the greatest element of all tensors seen; see `qcore.affine.MinMax`.

    Args:
        dtype: of the integers: torch.quint8, qint8, qint32, a plain integer type, or an `AffineInteger`.
        qscheme: torch.per_tensor_affine or torch.per_tensor_symmetric, or "affine" or "symmetric".
        reduce_range: True halves both ends of the range, so that sums of products fit into 16 bits.
        quant_min, quant_max: a part of dtype's range.
        eps: the smallest scale.

    Example:
        >>> observer = MinMaxObserver()
        >>> x = observer(torch.tensor([-1.0, 0.5, 3.0]))
        >>> observer.calculate_qparams()
        (tensor([0.0157]), tensor([64], dtype=torch.int32))
    """

    _rule_class = affine.MinMax


class MovingAverageMinMaxObserver(MinMaxObserver):
    """Moving averages of the least and the greatest element of each tensor; see `qcore.affine.MovingAverageMinMax`.

    Args:
        averaging_constant: the share of the newest tensor, above 0 and at most 1.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.

    Example:
        >>> observer = MovingAverageMinMaxObserver(averaging_constant=0.5)
        >>> for x in (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0])):
        ...     x = observer(x)
        >>> observer.max_val
        tensor(2.)
    """

    _rule_class = affine.MovingAverageMinMax

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: torch.dtype | AffineInteger = torch.quint8,
        qscheme: torch.qscheme | str = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps)
        self._set(averaging_constant=averaging_constant)


MovingAverageObserver = MovingAverageMinMaxObserver


class PerChannelMinMaxObserver(RangeObserver):
    """The least and the greatest element of each channel; see `qcore.affine.PerChannelMinMax`.

    Args:
        ch_axis: the dimension of the tensors along which the channels lie.
        dtype, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.
        qscheme: torch.per_channel_affine or torch.per_channel_symmetric, or "affine" or "symmetric".

    Example:
        >>> observer = PerChannelMinMaxObserver(dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
        >>> x = observer(torch.tensor([[-1.0, 0.5], [2.0, 5.1]]))
        >>> observer.calculate_qparams()
        (tensor([0.0078, 0.0400]), tensor([0, 0], dtype=torch.int32))
    """

    _rule_class = affine.PerChannelMinMax

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: torch.dtype | AffineInteger = torch.quint8,
        qscheme: torch.qscheme | str = torch.per_channel_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        check_int("ch_axis", ch_axis, 0, 63)
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps)
        self._set(ch_axis=ch_axis)


class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver):
    """Moving averages of each channel's extremes; see `qcore.affine.MovingAveragePerChannelMinMax`.

    Args:
        averaging_constant: the share of the newest tensor, above 0 and at most 1.
        ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `PerChannelMinMaxObserver`.

    Example:
        >>> observer = MovingAveragePerChannelMinMaxObserver(averaging_constant=0.5)
        >>> for x in (torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([[0.0, 3.0], [0.0, 4.0]])):
        ...     x = observer(x)
        >>> observer.max_val
        tensor([2., 3.])
    """

    _rule_class = affine.MovingAveragePerChannelMinMax

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: torch.dtype | AffineInteger = torch.quint8,
        qscheme: torch.qscheme | str = torch.per_channel_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        super().__init__(ch_axis, dtype, qscheme, reduce_range, quant_min, quant_max, eps)
        self._set(averaging_constant=averaging_constant)


class HistogramObserver(RangeObserver):
    """Counts in equal bins, and parameters of the part of the range with least error; see `qcore.affine.Histogram`.

    Args:
        bins: the number of bins.
        upsample_rate: the number of parts of a bin when the range grows; torch's default was 128 and is 16 now.
        dtype, qscheme, reduce_range, quant_min, quant_max, eps: as for `MinMaxObserver`.

    Example:
        >>> observer = HistogramObserver(bins=4)
        >>> x = observer(torch.tensor([0.0, 1, 1, 4]))
        >>> observer.histogram
        tensor([1., 2., 0., 1.])
    """

    _rule_class = TensorHistogram
    _state_class = affine.Counts
    _steps_by_numpy = False
    histogram: torch.Tensor

    def __init__(
        self,
        bins: int = 2048,
        upsample_rate: int = 16,
        dtype: torch.dtype | AffineInteger = torch.quint8,
        qscheme: torch.qscheme | str = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = EPS,
    ) -> None:
        super().__init__(dtype, qscheme, reduce_range, quant_min, quant_max, eps)
        self._set(bins=bins, upsample_rate=upsample_rate)

    def saves(self) -> float:
        """By which share the observer's parameters have less error than those of the whole range; 0 without data."""
        if self.min_val.is_meta or not self._has_seen:
            return 0.0
        state = self.histogram, self.min_val, self.max_val
        return saved_by_cutting(affine.Counts(*(one.cpu().numpy() for one in state)), self.rule.form._levels)

    def without_counts(self) -> MinMaxObserver:
        """An observer of the same integers that has seen the same range, of which it cuts nothing off."""
        made = MinMaxObserver(self.rule.form, self.rule.scheme, eps=self.rule.eps)
        made.min_val, made.max_val = self.min_val, self.max_val
        return made


class RuleObserver(RangeObserver):
    """Any rule for extremes of `qcore.affine`, as a module.

    Args:
        rule: such as `qcore.affine.MinMax(INT8, "symmetric")`.

    Raises:
        TypeError: if rule is not such a rule.

    Example:
        >>> x = RuleObserver(affine.MinMax())(torch.tensor([-1.0, 0.5, 3.0]))
    """

    _rule_class = affine.MinMax

    def __init__(self, rule: affine.MinMax) -> None:
        check_type("rule", rule, affine.MinMax, "an observer of extremes of qcore.affine, such as MinMax()")
        super().__init__(rule.form, rule.scheme, eps=rule.eps)
        self.rule = rule
        self.reset_min_max_vals()


class RecordingObserver(ObserverBase):
    """Keeps a copy of every tensor; for debugging.

    Args:
        dtype: the type that values will be quantized to.

    Example:
        >>> observer = RecordingObserver()
        >>> x = observer(torch.tensor([1.0, 2.0]))
        >>> observer.get_tensor_value()
        [tensor([1., 2.])]
    """

    rule = affine.Recording()

    def __init__(self, dtype: torch.dtype | AffineInteger = torch.quint8) -> None:
        super().__init__(dtype)
        self.tensor_val: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_type("x", x, (torch.Tensor, QTensor), "a torch.Tensor")
        self.tensor_val = list(self.rule.update(tuple(self.tensor_val), x.detach(), Names))
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises TypeError: there are no parameters."""
        return self.rule.qparams((), Names)  # type: ignore[return-value]

    def get_tensor_value(self) -> list[torch.Tensor]:
        """The tensors seen so far."""
        return self.tensor_val


class NoopObserver(ObserverBase):
    """Records nothing: for tensors that need no range, such as float16 tensors.

    Args:
        dtype: the type that values will be converted to.

    Example:
        >>> observer = NoopObserver()
        >>> observer(torch.tensor([1.0])), observer.dtype
        (tensor([1.]), torch.float16)
    """

    rule = affine.Noop()

    def __init__(self, dtype: torch.dtype | AffineInteger = torch.float16) -> None:
        super().__init__(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises TypeError: there are no parameters."""
        return self.rule.qparams((), Names)  # type: ignore[return-value]
