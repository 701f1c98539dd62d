"""What observers have in common: buffers with the names and shapes of torch.ao's, so that their state_dicts load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from qcore.affine import Extremes, PerChannelMinMax, QParams
from qcore.affine.parameters import EPS, check_input
from qtorch._affine.dtypes import FixedDtypes, integers, scheme
from qtorch._affine.namespace import Names, SmallNames
from qtorch._rounding.paths.choice import is_plain_tensor


@dataclass(frozen=True)
class Factory:
    """A class or function with some of its arguments, which makes another module at each call.

    Example:
        >>> from qtorch.quantization import MinMaxObserver
        >>> signed = MinMaxObserver.with_args(dtype=torch.qint8).with_args(qscheme="symmetric")
        >>> signed().quant_min, signed() is signed()
        (-128, False)
    """

    make: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.make(*arguments, **self.settings | settings)

    def with_args(self, **settings: Any) -> Factory:
        """The same with more arguments, or others."""
        return Factory(self.make, self.settings | settings)


class ObserverBase(ABC, torch.nn.Module):
    """What all observers are: `forward` looks at a tensor and returns it, `calculate_qparams` says what follows.

    Args:
        dtype: the type that values will be quantized to.

    Example:
        >>> from qtorch.quantization import NoopObserver
        >>> observer = NoopObserver()
        >>> isinstance(observer, ObserverBase), observer(torch.tensor([1.0]))
        (True, tensor([1.]))
    """

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype = dtype

    @abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x itself, after a look at it."""

    @abstractmethod
    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale, float32, and the zero point, int32, each of shape (1,), or (channels,)."""

    @classmethod
    def with_args(cls, **settings: Any) -> Factory:
        """A function that makes such observers, with these arguments unless told others."""
        return Factory(cls, settings)


Observer = ObserverBase


def store(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Writes a value into a buffer, or puts it in the buffer's place where the shapes differ."""
    buffer = getattr(module, name)
    if buffer.shape == value.shape:
        buffer.copy_(value)
    else:
        setattr(module, name, value)


class RangeObserver(ObserverBase, FixedDtypes):
    """An observer whose state is that of one of qcore's, in buffers of the same names."""

    _version = 3  # of torch.ao's state_dicts
    _rule_class: Any
    _state_class: Any = Extremes
    _steps_by_numpy = True  # which takes less time than torch for small states
    eps: torch.Tensor
    min_val: torch.Tensor
    max_val: torch.Tensor

    def __init__(
        self,
        dtype: Any = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
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
        """Changes settings of the rule, where "ch_axis" is "axis", before any tensor is seen."""
        self.rule = replace(self.rule, **{name.removeprefix("ch_"): value for name, value in settings.items()})
        for name, value in settings.items():
            setattr(self, name, value)
        self.reset_min_max_vals()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Remembers what x adds, and returns x.

        Args:
            x: tensor of float32, float64, float16 or bfloat16; one without elements adds nothing.

        Raises:
            TypeError: if x has another type.
            ValueError: if x has other channels than what was seen before.
        """
        check_input(x, Names)
        if x.numel():
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
    def has_seen(self) -> bool:
        """Whether it has seen a number, in each channel."""
        return self.min_val.numel() > 0 and not bool((self.min_val > self.max_val).any())

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The parameters that cover what was seen.

        Returns:
            The scale, float32, and the zero point, int32, each of shape (1,), or (channels,).

        Raises:
            ValueError: if nothing was seen. On a GPU, and under `torch.compile`, observers of whole tensors do not
                wait to know.
        """
        if self.min_val.numel() == 0:
            raise ValueError("no channels were observed; observe something before asking for parameters")
        qparams = self._qparams()
        return qparams.scale.reshape(-1), qparams.zero_point.reshape(-1)

    def reset_min_max_vals(self) -> None:
        """Forgets what was seen."""
        for name, value in self._empty_state()._asdict().items():
            store(self, name, value.to(self.min_val.device))

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"

    def _empty_state(self) -> Any:
        """The state before there is anything to say how many channels there are."""
        axis = getattr(self.rule, "axis", None)
        return self.rule.init(() if axis is None else (0,) * (axis + 1), Names)

    def _state(self, shape: torch.Size) -> Any:
        """The state to which a tensor of a shape is added."""
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
        for name in ("min_val", "max_val"):  # which have as many channels as were seen
            if (value := state_dict.get(prefix + name)) is not None:
                store(self, name, getattr(self, name).new_empty(value.shape))
        state_dict.setdefault(prefix + "eps", self.eps)  # which is no part of a state in JAX
        super()._load_from_state_dict(state_dict, prefix, *others)
        self.rule = replace(self.rule, eps=float(self.eps))
