"""Delayed scales of a `Quantizer`: a state that backward passes advance, as the states of products."""

from __future__ import annotations

from typing import Any

import torch

from qtorch._rounding.gradients import refuse_recording
from qtorch._rounding.keys import fold_in
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import check_passes


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
