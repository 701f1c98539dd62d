"""Delayed scales of a `Quantizer`: a state that backward passes advance, as the states of products."""

from __future__ import annotations

from typing import Any

import torch

from qcore.formats.number import check_number
from qcore.law.rounding import check_rounding
from qcore.linalg.operands import Operand
from qcore.linalg.scaling import is_delayed, operand_of, round_delayed
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.gradients import refuse_recording
from qtorch._rounding.keys import fold_in
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import check_passes
from qtorch.linalg.delayed import enter_pass, gather
from qtorch.linalg.namespace import Float64


def first_state(history: int) -> torch.Tensor:
    """The state before the first call: a row of the forward direction, and one of the backward direction."""
    state = torch.zeros(2, 1 + history)
    state[:, 0] = 1
    return state


def check_call(x: torch.Tensor, training: bool) -> None:
    """Raises for a tensor that cannot have a delayed scale."""
    check_passes()
    if x.dtype is not torch.float32:
        raise TypeError(f"x has dtype {x.dtype}; allowed is torch.float32 with a delayed scale")
    if training and torch.is_grad_enabled() and not x.requires_grad:
        raise ValueError(
            "x needs no gradient, and only backward passes advance a delayed scale; allowed are x.requires_grad_(), "
            "eval(), torch.no_grad(), and a format without history"
        )


_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define("round_delayed(Tensor x, Tensor? key, Tensor scale, str number, str rounding) -> Tensor")
_library.define("gather_rows(Tensor state, Tensor scale, Tensor x, Tensor gradient, str[] numbers) -> Tensor")


def _round_delayed(
    x: torch.Tensor, key: torch.Tensor | None, scale: torch.Tensor, number: str, rounding: str
) -> torch.Tensor:
    """A tensor rounded to a format, with the scale that is given if the format's is delayed."""
    given = _number(number)
    key = key if check_rounding(rounding).stochastic else None
    if given is None:
        return x.clone()
    if not is_delayed(given):
        return quantize(x, given, rounding, key=key)
    enter_pass()  # in which checkpoints run a forward pass again
    return round_delayed(Float64, x, given, scale, lambda y, element: quantize(y, element, rounding, key=key))


def _gather_rows(
    state: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, numbers: list[str]
) -> torch.Tensor:
    """`gather` for a tensor and its gradient; returns a copy of the scale.

    The gradient's rounding takes the scale from here, so that compilers keep the call.
    """
    forward, backward = (operand_of(one) if is_delayed(one) else Operand() for one in map(_number, numbers))
    gather(state, (forward, backward), (x, gradient))
    return scale.clone()


def _number(text: str) -> Any:
    return check_number(text) if text else None


_library.impl("round_delayed", _round_delayed, "CompositeExplicitAutograd")
_library.impl("gather_rows", _gather_rows, "CompositeExplicitAutograd")
torch.library.register_fake("qtorch::round_delayed", lambda x, *_: torch.empty_like(x), lib=_library)
torch.library.register_fake("qtorch::gather_rows", lambda state, scale, *_: torch.empty_like(scale), lib=_library)


class Delayed(torch.autograd.Function):
    """(x, key words, state, hooks of the backward pass, both formats and roundings as text) -> x rounded."""

    @staticmethod
    def forward(x: torch.Tensor, words: Any, state: torch.Tensor, hooks: Any, *texts: str) -> torch.Tensor:
        return torch.ops.qtorch.round_delayed(x, words, state[0, 0], texts[0], texts[2])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, words, ctx.state, ctx.hooks, *ctx.texts = inputs
        ctx.save_for_backward(x, words, ctx.state[1, 0].clone())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        refuse_recording(grad)
        if torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(
                "a Quantizer with a delayed scale has no second derivatives; allowed are formats without history"
            )
        x, words, scale = ctx.saved_tensors
        forward, backward, _, rounding = ctx.texts
        for hook in ctx.hooks:
            grad = hook(grad)
        words = None if words is None else fold_in(words, 1, is_plain_tensor(words))
        scale = torch.ops.qtorch.gather_rows(ctx.state, scale, x.detach(), grad.detach(), [forward, backward])
        rounded = torch.ops.qtorch.round_delayed(grad, words, scale, backward, rounding)
        return rounded, None, None, None, None, None, None, None
