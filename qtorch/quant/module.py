"""`Quantizer`: rounds values in the forward pass and gradients in the backward pass, each to its own format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from qcore import Number, Quantization, Rounding
from qcore.law.rounding import RoundingLike
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.gradients import for_transforms, refuse_recording
from qtorch._rounding.keys import Key, fold_in, given_or_drawn
from qtorch._rounding.paths.choice import is_plain_tensor, round_tensor
from qtorch._rounding.plan import RoundingPlan, plan_for
from qtorch._states import apply_but_states, keep_states
from qtorch._torch_internals import Unscripted, apply_directly
from qtorch.quant.delayed import Delayed, check_call, first_state

_LANES = {8: torch.int64, 4: torch.int32, 2: torch.int16}


class Quantizer(Unscripted, torch.nn.Module):
    """A module that rounds a tensor and its gradient.

    It has no parameters. It has a buffer `scaling` only for delayed scales (float32 only; the first row is for the
    forward direction, see `BlockScaled(history=)`). All uses in a backward pass advance it by one step, at the end of
    the pass, to the largest of their magnitudes in all processes of torch's default group. It can be copied and
    compiled, and pickled if its hooks can; `quantizer` is another name for it. The arguments are those of
    `qcore.Quantization`.

    The forward pass rounds x with the key k. The backward pass applies the hooks to the gradient, rounds it with the
    key `fold_in(k, 1)`, and sets it to 0 where the forward pass clamped: where x, rounded without a range, is out of
    range. With None as a number nothing is rounded. Gradients of gradients treat rounding as the identity.

    Tangents (`torch.func.jvp`, `torch.autograd.forward_ad`) pass straight through and become 0 where the forward pass
    clamped. They exist only if gradients are neither rounded nor passed to hooks.

    Args:
        forward_number, backward_number, forward_rounding, backward_rounding, clamping_grad_zero, backward_hooks,
            overflow: as for `qcore.Quantization`.

    Raises:
        TypeError, ValueError: as `qcore.Quantization` does.

    Example:
        >>> q = Quantizer("int4", "e5m2", "nearest", "nearest", clamping_grad_zero=True)
        >>> x = torch.tensor([0.7, 9.0], requires_grad=True)
        >>> y = q(x)
        >>> y.backward(torch.tensor([0.3, 0.3]))
        >>> y.detach(), x.grad
        (tensor([1., 7.]), tensor([0.3125, 0.0000]))
    """

    scaling: torch.Tensor
    texts: tuple[str, ...]  # both formats and roundings, as text for a traced program
    _plans: _Plans | None = None

    def __init__(
        self,
        forward_number: Number | str | None = None,
        backward_number: Number | str | None = None,
        forward_rounding: RoundingLike = "stochastic",
        backward_rounding: RoundingLike = "stochastic",
        clamping_grad_zero: bool = False,
        backward_hooks: Iterable[Callable[[torch.Tensor], torch.Tensor]] = (),
        overflow: str | None = None,
    ) -> None:
        super().__init__()
        arguments: tuple[Any, ...] = (forward_number, backward_number, forward_rounding, backward_rounding)
        self.quantization = Quantization(*arguments, clamping_grad_zero, backward_hooks, overflow)  # type: ignore[arg-type]
        history = self.quantization.history
        if history is not None:
            self.register_buffer("scaling", first_state(history))
            one = self.quantization
            numbers = ["" if number is None else number.text for number in (one.forward_number, one.backward_number)]
            self.texts = *numbers, one.forward_rounding.value, one.backward_rounding.value

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return apply_but_states(self, ("scaling",), super()._apply, fn, recurse)

    def reset_parameters(self) -> None:
        """Puts the state of delayed scales back to its beginning: all that `to_empty` leaves."""
        if self.quantization.history is not None:
            self.scaling.copy_(first_state(self.quantization.history))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        keep_states(self, ("scaling",), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_plans": None}  # plans cannot be pickled

    def forward(self, x: torch.Tensor, key: Key = None) -> torch.Tensor:
        """Rounds x.

        Args:
            x: tensor of any shape, strides and device; float32, float64, float16 or bfloat16.
            key: as for `qtorch.quantize`. None draws one from torch's default generator if either rounding is
                stochastic, with or without gradients: so a checkpoint's second forward pass draws the same key.

        Returns:
            A new tensor of x's shape, dtype, device and memory format.
        """
        quantization, plain, plans, words = self.quantization, is_plain_tensor(x), None, None
        delayed = quantization.history is not None
        if delayed:
            check_call(x, self.training)
        recorded = delayed or not plain or (x.requires_grad and torch.is_grad_enabled())
        # Where only the forward pass is rounded, `quantize` draws its key itself. A key that no forward rounding reads
        # is drawn as well: later keys must not depend on whether gradients are recorded.
        if (quantization.stochastic or key is not None) and (recorded or not _draws_forward(quantization)):
            words = given_or_drawn(key, quantization.stochastic, plain)
        if delayed:
            return Delayed.apply(x, words, self.scaling, quantization.backward_hooks, *self.texts)
        if plain:
            plans = self._plans
            if plans is None or plans.quantization is not quantization or plans.dtype is not x.dtype:
                plans = self._plans = _make_plans(quantization, x.dtype)
        if recorded:
            apply = _apply if plain else for_transforms(_Rounding, _WithTangent)
            result = apply(x, words, quantization, plans)
            return result if quantization.unclamped is None else result[0]
        return _round(x, quantization.forward_number, quantization.forward_rounding, key, plans and plans.forward)

    def extra_repr(self) -> str:
        quantization = self.quantization
        parts = [
            f"{way}_number={number}, {way}_rounding={rounding.value}"
            for way, number, rounding in (
                ("forward", quantization.forward_number, quantization.forward_rounding),
                ("backward", quantization.backward_number, quantization.backward_rounding),
            )
            if number is not None
        ]
        parts += ["clamping_grad_zero=True"] if quantization.clamping_grad_zero else []
        names = [getattr(hook, "__name__", type(hook).__name__) for hook in quantization.backward_hooks]
        parts += [f"backward_hooks=[{', '.join(names)}]"] if names else []
        return ", ".join(parts)


quantizer = Quantizer


class _Plans(NamedTuple):
    """Plans for plain tensors of a dtype: forward if that needs no key, backward if it only rounds, without a key."""

    quantization: Quantization
    dtype: torch.dtype
    forward: RoundingPlan | None
    backward: RoundingPlan | None


def _make_plans(quantization: Quantization, dtype: torch.dtype) -> _Plans:
    def plan(number: Number | None, rounding: Rounding) -> RoundingPlan | None:
        if number is None or rounding.stochastic:
            return None
        with contextlib.suppress(TypeError, ValueError):  # raised when this rounding is really called
            return plan_for(number, rounding, dtype, None, False)
        return None

    alone = not quantization.backward_hooks and quantization.unclamped is None
    backward = plan(quantization.backward_number, quantization.backward_rounding) if alone else None
    return _Plans(quantization, dtype, plan(quantization.forward_number, quantization.forward_rounding), backward)


class _Rounding(torch.autograd.Function):
    """(x, key words, Quantization, plans if x is plain) -> x rounded and, if gradients are masked, where it clamped."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, words: torch.Tensor | None, quantization: Quantization, plans: _Plans | None) -> Any:
        if words is not None and torch.compiler.is_dynamo_compiling() and not _draws_forward(quantization):
            x = _needing_key(x, words)
        y = _round(x, quantization.forward_number, quantization.forward_rounding, words, plans and plans.forward)
        if quantization.unclamped is None:
            return y
        lanes = _LANES[x.element_size()]
        free = _round(x, quantization.unclamped, quantization.forward_rounding, words, None)
        return y, (y.view(lanes) == free.view(lanes)).logical_not_()  # torch 2.11 has no != for DTensors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, words, ctx.quantization, plans = inputs
        ctx.plan = plans and plans.backward
        clamped = None if ctx.quantization.unclamped is None else output[1]
        if clamped is not None:
            ctx.mark_non_differentiable(clamped)
        words = words if _draws_backward(ctx.quantization) else None
        ctx.saves = words is not None or clamped is not None  # saving takes long even for None
        if ctx.saves:
            ctx.save_for_backward(words, clamped)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        refuse_recording(grad)
        plan = ctx.plan
        if plan is not None and plan.dtype is grad.dtype and not torch.is_grad_enabled() and is_plain_tensor(grad):
            return round_tensor(grad, plan, None, True), None, None, None
        quantization: Quantization = ctx.quantization
        saved: tuple[Any, Any] = ctx.saved_tensors if ctx.saves else (None, None)
        words, clamped = saved
        for hook in quantization.backward_hooks:
            returned: Any = hook(grad)
            if not isinstance(returned, torch.Tensor):
                kind = type(returned).__name__
                raise TypeError(f"a function of backward_hooks returned a {kind}; allowed is a tensor")
            grad = returned
        if quantization.backward_number is not None:
            if words is not None:
                words = fold_in(words, 1, is_plain_tensor(words))
            grad = _round(grad, quantization.backward_number, quantization.backward_rounding, words, None)
        return grad if clamped is None else grad.masked_fill(clamped, 0), None, None, None


class _WithTangent(_Rounding):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _Rounding.setup_context(ctx, inputs, output)
        ctx.masks = ctx.quantization.unclamped is not None
        if ctx.masks:
            ctx.save_for_forward(inputs[1] if _draws_backward(ctx.quantization) else None, output[1])

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> Any:  # type: ignore[override]
        if ctx.quantization.backward_number is not None or ctx.quantization.backward_hooks:
            raise NotImplementedError(
                "a Quantizer with backward_number or backward_hooks has no forward-mode derivative; allowed are None "
                "and no hooks, or backward mode (torch.func.vjp, torch.func.grad, torch.func.jacrev)"
            )
        return (tangent.masked_fill(ctx.saved_tensors[1], 0), None) if ctx.masks else tangent.clone()


_apply = apply_directly(_Rounding)


def _round(
    x: torch.Tensor, number: Number | None, rounding: Rounding, key: Key, plan: RoundingPlan | None
) -> torch.Tensor:
    """`quantize`; with a plan, for a plain x without a gradient, in fewer steps."""
    if plan is not None:
        return round_tensor(x, plan, None, True)
    if number is None:
        return x.clone()
    return quantize(x, number, rounding, key=key if rounding.stochastic else None)


def _draws_forward(quantization: Quantization) -> bool:
    """True if the forward pass needs a key."""
    return quantization.forward_number is not None and quantization.forward_rounding.stochastic


def _draws_backward(quantization: Quantization) -> bool:
    """True if the backward pass needs a key."""
    return quantization.backward_number is not None and quantization.backward_rounding.stochastic


def _needing_key(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """x, computed in a way that makes a compiled forward pass draw the key.

    Otherwise a key that only gradients need would be drawn in the backward pass, or never, and later keys would differ
    from the keys of an eager program.
    """
    zero = (words[0] & 1) >> 1
    return (x.view(_LANES[x.element_size()]) | zero).view(x.dtype)
