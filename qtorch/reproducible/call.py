"""Laws as functions of tensors that autograd knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.elementary.arithmetic import ADD, DIV, MUL, POW, SUB
from qcore.numerics.elementary.laws import ELEMENTARY
from qcore.numerics.layers import Layers
from qcore.numerics.norms import BATCH_NORM, LAYER_NORM, MOVING_AVERAGE, NORMALIZE
from qcore.numerics.optimizers.adam import ADAM
from qcore.numerics.optimizers.clipping import CLIP
from qcore.numerics.optimizers.functions import Optimizing
from qcore.numerics.optimizers.schedules import RATE
from qcore.numerics.optimizers.sgd import SGD
from qcore.numerics.reductions import LOGSUMEXP, MAX, MEAN, NORM, SUM, VAR
from qcore.numerics.softmax import CROSS_ENTROPY, LOG_SOFTMAX, MSE, SOFTMAX
from qtorch._rounding.gradients import apart
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch._torch_internals import apply_directly
from qtorch.linalg.operator import OBSERVER
from qtorch.reproducible.fused.plan import Backward, plan_for
from qtorch.reproducible.tensor_names import Names


def _run(
    law: Differentiable, planned: bool, kind: str, tensors: tuple[Any, ...], options: tuple[tuple[str, Any], ...]
) -> Any:
    """The result, and of kind "forward" what is saved."""
    plan = plan_for(law, kind, tensors, options) if planned else None
    if plan is not None:
        return plan.run(tensors)
    found = law.run(Names, tensors, dict(options))
    return found if kind == "forward" else found[0]


def _gradients(law: Differentiable, fused: bool, ctx: Any, *gradients: Any) -> Any:
    """None for what are no tensors, and the gradients of all tensors, or of those that need one."""
    saved = ctx.saved_tensors
    tensors = *saved, *gradients
    plain = fused and not torch.compiler.is_compiling() and are_plain_tensors(tensors)
    if plain and OBSERVER.get() is None:  # a plan tells an observer nothing
        plan = plan_for(law, Backward(len(saved), ctx.needs_input_grad[2:]), tensors, ctx.options)
        if plan is not None:
            return None, None, *plan.run(tensors)
    gradient: Any = gradients[0] if len(gradients) == 1 else gradients
    return None, None, *law.gradients(Names, saved, gradient, dict(ctx.options))


class _Once(torch.autograd.Function):
    """(law, x, tensors that x follows from) -> x, whose derivative raises."""

    @staticmethod
    def forward(ctx: Any, law: Differentiable, x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.law = law
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(ctx.law.no_second_derivative)


def differentiable(law: Differentiable, fused: bool = True) -> Callable[..., Any]:
    """The function (*tensors, **options) of a law, whose gradients are the law's; they have none themselves.

    Args:
        law: the law.
        fused: False if it uses what `fused.recording` has not.
    """

    class Law(torch.autograd.Function):
        @staticmethod
        def forward(  # type: ignore[override]
            ctx: Any, planned: bool, options: tuple[tuple[str, Any], ...], *tensors: Any
        ) -> Any:
            result, saved = _run(law, planned, "forward", tensors, options)
            ctx.save_for_backward(*saved)
            ctx.options = options
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return _gradients(law, fused, ctx, *gradients)
            with torch.no_grad():
                nothing, none, *found = _gradients(law, fused, ctx, *gradients)
            given = [x for x in (*ctx.saved_tensors, *gradients) if isinstance(x, torch.Tensor) and x.requires_grad]
            refused = [x if x is None or not given else _Once.apply(law, x, *given) for x in found]
            return nothing, none, *refused

    apply = apply_directly(Law)

    def function(*tensors: Any, **options: Any) -> Any:
        given = tuple(options.items())
        compiling = torch.compiler.is_compiling()
        plain = not compiling and are_plain_tensors(tensors)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
            if compiling:
                return Law.apply(False, given, *apart(*tensors))
            return (apply if plain else Law.apply)(fused and plain, given, *tensors)
        return _run(law, fused and plain, "result", tensors, given)

    return function


_LAWS = (
    ADD,
    DIV,
    MUL,
    POW,
    SUB,
    BATCH_NORM,
    LAYER_NORM,
    MOVING_AVERAGE,
    NORMALIZE,
    LOGSUMEXP,
    MAX,
    MEAN,
    NORM,
    SUM,
    VAR,
)
_LAWS += (CROSS_ENTROPY, LOG_SOFTMAX, MSE, SOFTMAX, ADAM, CLIP, RATE, SGD, *ELEMENTARY.values())
_FUNCTIONS = {law.name: differentiable(law, law is not POW) for law in _LAWS}


class Tensors(Layers, Optimizing):
    """Torch's."""

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        return _FUNCTIONS[law.name](*arrays, **options)

    def float32(self, name: str, x: Any) -> Any:
        return _checked(name, x, isinstance(x, torch.Tensor) and x.dtype is torch.float32, "float32")

    def integers(self, name: str, x: Any) -> Any:
        whole = isinstance(x, torch.Tensor) and not x.dtype.is_floating_point and not x.dtype.is_complex
        return _checked(name, x, whole and x.dtype is not torch.bool, "integers")


def _checked(name: str, x: Any, fits: bool, allowed: str) -> Any:
    if not fits:
        came = f"tensor of {x.dtype}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"{name} is a {came}; allowed is a torch.Tensor of {allowed}")
    return x
