"""Laws as functions that autograd knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qcore.numerics.differentiable import Differentiable
from qtorch.reproducible.tensor_names import Names


def differentiable(law: Differentiable) -> Callable[..., Any]:
    """The function (*tensors, **options) of a law, whose gradients are the law's."""

    class Law(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, options: tuple[tuple[str, Any], ...], *tensors: Any) -> Any:  # type: ignore[override]
            result, saved = law.run(Names, tensors, dict(options))
            ctx.save_for_backward(*saved)
            ctx.options = options
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            gradient = gradients if len(gradients) > 1 else gradients[0]
            return None, *law.gradients(Names, ctx.saved_tensors, gradient, dict(ctx.options))

    def function(*tensors: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors):
            return Law.apply(tuple(options.items()), *tensors)
        return law.run(Names, tensors, options)[0]

    return function
