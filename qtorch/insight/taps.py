"""What a gradient was before and after a function's backward pass, seen from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Seen = Callable[[torch.Tensor, torch.Tensor], None]


def tap(x: torch.Tensor, seen: Seen) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Taps the backward pass of a function of x.

    Args:
        x: the function's argument.
        seen: is called in the backward pass, with the gradient of the function's result and that of its argument.

    Returns:
        What the function is to be called with, and what is to be called with its result and gives it on.
    """
    kept: list[torch.Tensor] = []
    return _After.apply(x, kept, seen), lambda y: _Before.apply(y, kept)  # type: ignore[return-value]


class _Before(torch.autograd.Function):
    """Identity, whose gradient is that of a result."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        ctx.kept = kept
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        ctx.kept.append(grad)
        return grad, None


class _After(torch.autograd.Function):
    """Identity, whose gradient is that of an argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: list[torch.Tensor], seen: Seen) -> torch.Tensor:  # type: ignore[override]
        ctx.kept, ctx.seen = kept, seen
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        ctx.seen(ctx.kept.pop(), grad)
        return grad, None, None
