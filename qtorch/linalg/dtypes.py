"""Products in programs of other dtypes: bfloat16 and float16 tensors, and `torch.autocast`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from qtorch._torch_internals import unseen_by_modes

Function = TypeVar("Function", bound=Callable[..., torch.Tensor])
HALVES = (torch.bfloat16, torch.float16)


def in_float32(function: Function) -> Function:
    """A product that takes bfloat16 and float16 tensors, and may run under `torch.autocast`.

    Operands are the float32 numbers that the given tensors hold. The result in float32 is rounded once, to nearest, to
    the tensors' dtype or, under autocast, to autocast's.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> torch.Tensor:
        first = arguments[0] if arguments else next(iter(options.values()), None)
        refuse_tracers(first)
        if not isinstance(first, torch.Tensor):
            return function(*arguments, **options)  # which raises
        with unseen_by_modes():  # a mode that lowers functions must not see the functions that a product is made of
            return call_in_float32(function, first, arguments, options)

    return call  # type: ignore[return-value]


def refuse_tracers(x: Any) -> None:
    """Raises in programs of `torch.jit.trace` and `torch.fx.symbolic_trace`, which cannot hold products.

    Raises:
        RuntimeError: if one of them is running.
    """
    if torch.jit.is_tracing() or isinstance(x, torch.fx.Proxy):  # type: ignore[attr-defined]
        tracer = "torch.jit.trace" if torch.jit.is_tracing() else "torch.fx.symbolic_trace"  # type: ignore[attr-defined]
        raise RuntimeError(
            f"{tracer} of a model with low-precision products; allowed are torch.export.export(model, inputs) and "
            "torch.compile"
        )


def call_in_float32(
    function: Callable[..., Any], first: torch.Tensor, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A call of a function that computes in float32, see `in_float32`.

    Args:
        function: what is called; its result is a tensor, or a tuple of tensors.
        first: the tensor among its arguments that says the device, and without autocast the result's dtype.
        arguments, options: its arguments.
    """
    device = first.device.type
    automatic = device != "meta" and torch.is_autocast_enabled(device)  # which torch does not answer for meta
    if not automatic and first.dtype not in HALVES:
        return function(*arguments, **options)
    dtype = torch.get_autocast_dtype(device) if automatic else first.dtype
    state = {"scaling": options["scaling"]} if "scaling" in options else {}
    options = {name: x for name, x in options.items() if name != "scaling"}
    _check_dtypes(first, (*arguments, *options.values()), automatic)
    arguments = tuple([_wide(x) for x in arguments])
    options = {name: _wide(x) for name, x in options.items()} | state
    if not automatic:
        return _narrow(function(*arguments, **options), dtype)
    with torch.autocast(device, enabled=False):
        return _narrow(function(*arguments, **options), dtype)


def _check_dtypes(first: torch.Tensor, others: tuple[Any, ...], automatic: bool) -> None:
    """Refuses tensors of different dtypes where no autocast brings them together."""
    for x in others:
        if isinstance(x, tuple | list):
            _check_dtypes(first, tuple(x), automatic)
        if isinstance(x, torch.Tensor) and x.dtype is torch.float64:
            raise TypeError(
                "a tensor has dtype torch.float64; allowed are torch.float32, torch.bfloat16, torch.float16"
            )
        if not automatic and isinstance(x, torch.Tensor) and x.dtype is torch.float32 and x.dim() > 0:
            raise TypeError(
                f"tensors have the dtypes {first.dtype} and torch.float32; allowed is one for all, or torch.autocast"
            )


def _wide(x: Any) -> Any:
    if isinstance(x, tuple | list):  # the weights and states of recurrent layers
        return tuple([_wide(one) for one in x])
    return x.to(torch.float32) if isinstance(x, torch.Tensor) and x.dtype in HALVES else x


def _narrow(y: Any, dtype: torch.dtype) -> Any:
    return tuple([one.to(dtype) for one in y]) if isinstance(y, tuple) else y.to(dtype)
