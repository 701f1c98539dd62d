"""`Quantizer`: rounds values on the way forward and gradients on the way back, each in its own way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from qcore import Number, Quantization, Rounding
from qtorch.autograd import apply_directly
from qtorch.dispatch import is_ordinary, quantize, round_tensor
from qtorch.keys import Key, check_noise, draw, draw_opaquely, fold_in, key_tensor
from qtorch.plan import Plan, plan_for

_LANES = {8: torch.int64, 4: torch.int32, 2: torch.int16}


class Quantizer(torch.nn.Module):
    """Rounds a tensor, and its gradient.

    It is a function with a key that can be copied, pickled (if its hooks can) and compiled, and has no parameters or
    buffers: `quantizer` is therefore only another name of it.

    Forward, x is rounded with the key k. Backward, the gradient goes through the hooks in order, is rounded with the
    key `fold_in(k, 1)`, and becomes 0 where the forward rounding clamped. A way whose number is None rounds nothing.
    Gradients of gradients see rounding as the identity.

    A number counts as clamped when what it would round to, were there no range, is out of range: the largest number
    and 0.4 steps is not, when rounding to nearest.

    Args:
        forward_number: the format of the values, or its name; None copies them.
        backward_number: the format of the gradients, or its name.
        forward_rounding, backward_rounding: names or members of `Rounding`.
        clamping_grad_zero: whether gradients become 0 where a clamping `FixedPoint` clamped; forward_number must then
            be a `FixedPoint` or None.
        backward_hooks: functions of the gradient that return another.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is not one of those allowed.

    Example:
        >>> q = Quantizer("int4", "e5m2", "nearest", "nearest", clamping_grad_zero=True)
        >>> x = torch.tensor([0.7, 9.0], requires_grad=True)
        >>> y = q(x)
        >>> y.backward(torch.tensor([0.3, 0.3]))
        >>> y.detach(), x.grad
        (tensor([1., 7.]), tensor([0.3125, 0.0000]))
    """

    _plans: _Plans | None = None

    def __init__(
        self,
        forward_number: Number | str | None = None,
        backward_number: Number | str | None = None,
        forward_rounding: str | Rounding = "stochastic",
        backward_rounding: str | Rounding = "stochastic",
        clamping_grad_zero: bool = False,
        backward_hooks: Iterable[Callable[[torch.Tensor], torch.Tensor]] = (),
    ) -> None:
        super().__init__()
        told: tuple[Any, ...] = (forward_number, backward_number, forward_rounding, backward_rounding)
        self.quantization = Quantization(*told, clamping_grad_zero, backward_hooks)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_plans": None}  # which cannot be pickled

    def forward(self, x: torch.Tensor, key: Key = None) -> torch.Tensor:
        """Rounds x.

        Args:
            x: tensor of any shape, strides and device; float32, float64, float16 or bfloat16.
            key: as for `qtorch.quantize`. None draws one from torch's default generator if either way is stochastic,
                whether or not there will be gradients: a checkpoint's second forward draws what the first did.

        Returns:
            A new tensor of x's shape, dtype, device and memory format.

        Raises:
            TypeError, ValueError: if an argument is not as above.
        """
        told, ordinary, plans = self.quantization, is_ordinary(x), None
        if ordinary:
            plans = self._plans
            if plans is None or plans.told is not told or plans.dtype is not x.dtype:
                plans = self._plans = _make_plans(told, x.dtype)
        if not ordinary or (x.requires_grad and torch.is_grad_enabled()):
            words = _key_words(told, key, ordinary) if told.stochastic or key is not None else None
            result = (_apply if ordinary else _Rounding.apply)(x, words, told, plans)
            return result if told.unclamped is None else result[0]
        if not _draws_forward(told):
            _key_words(told, key, ordinary)
            key = None
        return _round(x, told.forward_number, told.forward_rounding, key, plans and plans.forward)

    def extra_repr(self) -> str:
        told = self.quantization
        parts = [
            f"{way}_number={number}, {way}_rounding={rounding.value}"
            for way, number, rounding in (
                ("forward", told.forward_number, told.forward_rounding),
                ("backward", told.backward_number, told.backward_rounding),
            )
            if number is not None
        ]
        parts += ["clamping_grad_zero=True"] if told.clamping_grad_zero else []
        names = [getattr(hook, "__name__", type(hook).__name__) for hook in told.backward_hooks]
        parts += [f"backward_hooks=[{', '.join(names)}]"] if names else []
        return ", ".join(parts)


quantizer = Quantizer


class _Plans(NamedTuple):
    """How ordinary tensors of a dtype are rounded: forward, where that needs no key, and backward, where nothing else
    is done with a gradient either."""

    told: Quantization
    dtype: torch.dtype
    forward: Plan | None
    backward: Plan | None


def _make_plans(told: Quantization, dtype: torch.dtype) -> _Plans:
    def plan(number: Number | None, rounding: Rounding) -> Plan | None:
        if number is None or rounding is Rounding.STOCHASTIC:
            return None
        with contextlib.suppress(TypeError, ValueError):  # which the rounding will raise, if it is ever asked for
            return plan_for(number, rounding, dtype, None, False)
        return None

    alone = not told.backward_hooks and told.unclamped is None
    backward = plan(told.backward_number, told.backward_rounding) if alone else None
    return _Plans(told, dtype, plan(told.forward_number, told.forward_rounding), backward)


class _Rounding(torch.autograd.Function):
    """(x, the key's words, a Quantization, plans if x is ordinary) -> the rounded x, and where gradients are masked the
    places that were clamped."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, words: torch.Tensor | None, told: Quantization, plans: _Plans | None) -> Any:
        if words is not None and torch.compiler.is_compiling() and not _draws_forward(told):
            x = _anchored(x, words)
        y = _round(x, told.forward_number, told.forward_rounding, words, plans and plans.forward)
        if told.unclamped is None:
            return y
        lanes = _LANES[x.element_size()]
        free = _round(x, told.unclamped, told.forward_rounding, words, None)
        return y, (y.view(lanes) == free.view(lanes)).logical_not_()  # torch 2.11 has no != for DTensors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, words, ctx.told, plans = inputs
        ctx.plan = plans and plans.backward
        clamped = None if ctx.told.unclamped is None else output[1]
        if clamped is not None:
            ctx.mark_non_differentiable(clamped)
        words = words if _draws_backward(ctx.told) else None
        ctx.saves = words is not None or clamped is not None  # which takes long even of nothing
        if ctx.saves:
            ctx.save_for_backward(words, clamped)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        plan = ctx.plan
        if plan is not None and plan.dtype is grad.dtype and not torch.is_grad_enabled() and is_ordinary(grad):
            return round_tensor(grad, plan, None, True), None, None, None
        told: Quantization = ctx.told
        saved: tuple[Any, Any] = ctx.saved_tensors if ctx.saves else (None, None)
        words, clamped = saved
        for hook in told.backward_hooks:
            grad = hook(grad)
            if not isinstance(grad, torch.Tensor):
                raise TypeError(f"a function of backward_hooks returned a {type(grad).__name__}; allowed is a tensor")
        if told.backward_number is not None:
            if words is not None:
                words = fold_in(words, 1, is_ordinary(words))
            grad = _round(grad, told.backward_number, told.backward_rounding, words, None)
        return grad if clamped is None else grad.masked_fill(clamped, 0), None, None, None


_apply = apply_directly(_Rounding)


def _round(x: torch.Tensor, number: Number | None, rounding: Rounding, key: Key, plan: Plan | None) -> torch.Tensor:
    """`quantize`, in fewer steps where there is a plan: for an ordinary x that needs no gradient."""
    if plan is not None:
        return round_tensor(x, plan, None, True)
    if number is None:
        return x.clone()
    return quantize(x, number, rounding, key=key if rounding is Rounding.STOCHASTIC else None)


def _draws_forward(told: Quantization) -> bool:
    """Whether the values themselves need a key."""
    return told.forward_number is not None and told.forward_rounding is Rounding.STOCHASTIC


def _draws_backward(told: Quantization) -> bool:
    """Whether gradients need a key."""
    return told.backward_number is not None and told.backward_rounding is Rounding.STOCHASTIC


def _anchored(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """x, but so that a compiled program needs the key for it. One that only gradients need would be drawn with them, or
    never, and all later keys would be others than in an eager program."""
    zero = (words[0] & 1) >> 1
    return (x.view(_LANES[x.element_size()]) | zero).view(x.dtype)


def _key_words(told: Quantization, key: Key, ordinary: bool) -> torch.Tensor | None:
    """The key, given or drawn, as a tensor; None where nothing is stochastic."""
    if not told.stochastic:
        if key is not None:
            check_noise(key, 24, 0)
        return None
    if key is not None:
        return key_tensor(key)
    return draw() if ordinary else draw_opaquely()
