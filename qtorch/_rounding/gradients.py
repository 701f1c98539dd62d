"""Autograd functions: how to apply them eagerly, in traced programs and under transforms, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from qtorch._torch_internals import differentiates, in_forward_mode


def raise_if_recorded(gradients: list[torch.Tensor | None]) -> None:
    if any(
        x is not None and x.requires_grad for x in gradients
    ):  # in a backward pass with create_graph=True, in which Dynamo turns gradients off
        raise NotImplementedError(
            "a program that torch.compile made has no second derivatives: with backend='eager' they would be wrong, as "
            "those of every torch.autograd.Function; allowed are eager programs"
        )


def nothing(gradients: list[torch.Tensor | None]) -> None:
    """The check on tensors without values."""


def refuse_recording(*gradients: torch.Tensor | None) -> None:
    """Makes a backward pass that Dynamo traced raise if it is differentiated again.

    A gradient that is constant, such as the gradient of a sum, does not require gradients and passes the check.
    Backends with AOTAutograd drop the check, because it has no result, and raise by themselves.
    """
    if torch.compiler.is_dynamo_compiling():
        torch.ops.qtorch.refuse_recording(gradients)


def for_transforms(function: Any, with_tangent: Any) -> Callable[..., Any]:
    """`apply` for tensors that are not plain.

    In traced programs it is the `apply` of a function without `jvp`, because `torch.compile` does not accept `jvp`;
    else of its subclass with `jvp`. TorchScript can hold neither: its programs have the forward pass, and no gradient.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        return function.forward
    if not torch.compiler.is_dynamo_compiling():
        return with_tangent.apply
    leave_transforms_to_eager()
    return function.apply


def is_differentiated(x: torch.Tensor) -> bool:
    """True if a tensor that is not plain may have a derivative."""
    # `requires_grad` is not enough in eager programs: a tensor under torch.func may have a derivative without it.
    if torch.compiler.is_dynamo_compiling():
        leave_transforms_to_eager()
        return x.requires_grad and torch.is_grad_enabled()
    return torch.is_grad_enabled() or in_forward_mode()


def apart(*tensors: Any) -> list[Any]:
    """The arguments, with a view for every repeated tensor: `torch.compile` does not accept one tensor twice."""
    before = [any(x is y for y in tensors[:i]) for i, x in enumerate(tensors)]
    return [x.view_as(x) if again and x is not None else x for x, again in zip(tensors, before, strict=True)]


def leave_transforms_to_eager() -> None:
    """Raises if a program that Dynamo traces differentiates inside, forward or by `torch.func.grad`.

    Dynamo would trace tangents of 0, and gradients of 0, since tensors under `torch.func` do not require gradients
    there. After the error Dynamo runs the function eagerly, unless fullgraph=True.
    """
    if in_forward_mode() or differentiates():
        raise NotImplementedError(
            "derivatives by torch.func, and forward-mode derivatives, are taken in eager programs only; allowed is "
            "backward() of what the compiled program returns"
        )


def refuse_transforms(recorded: bool, tensors: tuple[torch.Tensor | None, ...]) -> None:
    """Raises if `torch.func`, or forward mode, differentiates a function with defined bits, which autograd may record.

    Operators would drop tangents: derivatives would silently be 0.
    """
    given = [x for x in tensors if x is not None]
    tangents = in_forward_mode() and any(forward_ad.unpack_dual(x).tangent is not None for x in given)
    if tangents or (recorded and differentiates()):
        raise NotImplementedError(
            "functions with defined bits have no derivatives by torch.func, and no forward-mode ones (grad, jvp, "
            "jacfwd, hessian); allowed are backward() and torch.autograd.grad"
        )
