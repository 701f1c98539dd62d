"""Rules: the formats of a layer's tensors, and the layers that a rule applies to; shared by qtorch and qjax."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

# pyright: reportPrivateUsage=false
# Public classes have parts that rooms read and users need not.

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from qcore.arguments import check_choice, check_flag, quoted
from qcore.formats.block import BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.number import OVERFLOWS, Number, call_text, check_target, with_overflow
from qcore.law.rounding import Rounding, RoundingLike, check_rounding
from qcore.namespace import Array


def _optional_number(name: str, number: Any, overflow: Any = None) -> Number | None:
    return None if number is None else with_overflow(check_target(number, name), overflow)


def _hooks(hooks: Iterable[Any]) -> tuple[Callable[..., Array], ...]:
    try:
        hooks = tuple(hooks)
    except TypeError:
        raise TypeError(
            f"backward_hooks={quoted(hooks)} is a {type(hooks).__name__}; allowed is a list of functions"
        ) from None
    for hook in hooks:
        if not callable(hook):
            raise TypeError(f"backward_hooks has a {type(hook).__name__}; allowed are functions of the gradient")
    return hooks


@dataclass(frozen=True, repr=False)
class Quantization:
    """The formats and roundings of a value and of its gradient.

    Attributes:
        forward_number, backward_number: a format or its text; None does not round the values, or the gradients.
        forward_rounding, backward_rounding: names or members of `Rounding`.
        clamping_grad_zero: True sets gradients to 0 where a clamping `FixedPoint` clamped; forward_number must then be
            a `FixedPoint` or None.
        backward_hooks: functions of the gradient, applied in this order before it is rounded.
        overflow: the policy for numbers beyond the range of either format, as in `quantize`: "saturate",
            "propagate", "inf", "nan" or "wrap"; None is each format's own policy. It is an argument only; the formats
            then have it.
        stochastic: True if a call needs a key; computed.
        unclamped: forward_number without its range if gradients are masked, else None; computed. An element was clamped
            if the two formats round it to different numbers.

    Example:
        >>> outputs = Quantization("e4m3fn", "e5m2", "nearest", "stochastic")
        >>> outputs.stochastic, str(outputs.backward_number)
        (True, 'e5m2')
    """

    forward_number: Number | None = None
    backward_number: Number | None = None
    forward_rounding: Rounding = Rounding.STOCHASTIC
    backward_rounding: Rounding = Rounding.STOCHASTIC
    clamping_grad_zero: bool = False
    backward_hooks: tuple[Callable[..., Array], ...] = ()
    overflow: InitVar[str | None] = None
    stochastic: bool = field(init=False, repr=False, compare=False)
    unclamped: FixedPoint | None = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            forward_number: Number | str | None = None,
            backward_number: Number | str | None = None,
            forward_rounding: RoundingLike = Rounding.STOCHASTIC,
            backward_rounding: RoundingLike = Rounding.STOCHASTIC,
            clamping_grad_zero: bool = False,
            backward_hooks: Iterable[Callable[..., Array]] = (),
            overflow: str | None = None,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self, overflow: str | None) -> None:
        check_flag("clamping_grad_zero", self.clamping_grad_zero)
        if overflow is not None:  # also where there is no format
            check_choice("overflow", overflow, OVERFLOWS)
        for name in ("forward_number", "backward_number"):
            object.__setattr__(self, name, _optional_number(name, getattr(self, name), overflow))
        for name in ("forward_rounding", "backward_rounding"):
            object.__setattr__(self, name, check_rounding(getattr(self, name), name))
        object.__setattr__(self, "backward_hooks", _hooks(self.backward_hooks))
        number = self.forward_number
        if self.clamping_grad_zero and number is not None and not isinstance(number, FixedPoint):
            raise ValueError(f"clamping_grad_zero=True with forward_number={number}; allowed are FixedPoint and None")
        pairs = ((number, self.forward_rounding), (self.backward_number, self.backward_rounding))
        stochastic = any(number is not None and rounding.stochastic for number, rounding in pairs)
        clamps = self.clamping_grad_zero and isinstance(number, FixedPoint) and number.clamp and not number.wrap
        object.__setattr__(self, "stochastic", stochastic)
        if len({one.history for one in self.delayed if one is not None}) > 1:
            raise ValueError(f"forward_number={number}, backward_number={self.backward_number}; allowed is one history")
        object.__setattr__(self, "unclamped", replace(number, clamp=False) if clamps else None)  # type: ignore[type-var]

    @property
    def delayed(self) -> tuple[BlockScaled | None, BlockScaled | None]:
        """Both formats, where their scales are delayed; else None."""
        forward, backward = (
            number if isinstance(number, BlockScaled) and number.history is not None else None
            for number in (self.forward_number, self.backward_number)
        )
        return forward, backward

    @property
    def _rounds(self) -> bool:
        """True if there is a format, or a hook, for values or gradients."""
        return self.forward_number is not None or self.backward_number is not None or bool(self.backward_hooks)

    @property
    def history(self) -> int | None:
        """The number of past tensors in the history of delayed scales; None if no scale is delayed."""
        return next((number.history for number in self.delayed if number is not None), None)


@dataclass(frozen=True, repr=False)
class Rule:
    """The layers that a rule applies to, and how they are rounded; the first rule that matches a layer applies.

    Attributes:
        name: a shell pattern for the layer's dotted name: "features.*", "block?.conv1".
        layer_type: a group of layer types, such as "conv", or a layer class; None is any.
        outputs: how the layer's output and its gradient are rounded.
        weight_number, weight_rounding: how the layer's weight is rounded; None does not round it.
        overflow: the overflow policy of the weight, as in `Quantization`; an argument only.

    Example:
        >>> rule = Rule(name="features.*", weight_number="e4m3fn")
        >>> rule.names("features.0"), rule.names("head")
        (True, False)
    """

    name: str = "*"
    layer_type: str | type | None = None
    outputs: Quantization = Quantization()
    weight_number: Number | None = None
    weight_rounding: Rounding = Rounding.NEAREST
    overflow: InitVar[str | None] = None

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str = "*",
            layer_type: str | type | None = None,
            outputs: Quantization = Quantization(),
            weight_number: Number | str | None = None,
            weight_rounding: RoundingLike = Rounding.NEAREST,
            overflow: str | None = None,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self, overflow: str | None) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name={quoted(self.name)} is a {type(self.name).__name__}; allowed is a pattern, a str")
        if not isinstance(self.outputs, Quantization):
            raise TypeError(
                f"outputs={quoted(self.outputs)} is a {type(self.outputs).__name__}; allowed is a Quantization"
            )
        object.__setattr__(self, "weight_number", _optional_number("weight_number", self.weight_number, overflow))
        object.__setattr__(self, "weight_rounding", check_rounding(self.weight_rounding, "weight_rounding"))
        if getattr(self.weight_number, "history", None) is not None:
            raise ValueError(
                f"weight_number={self.weight_number} has a delayed scale; allowed are formats without history"
            )

    @property
    def _rounds(self) -> bool:
        """True if outputs, gradients or weights have a format or a hook; other rules leave their layers alone."""
        return self.outputs._rounds or self.weight_number is not None

    def names(self, layer: str) -> bool:
        """True if the pattern matches a layer's dotted name."""
        return fnmatchcase(layer, self.name)
