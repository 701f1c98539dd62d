"""What watches over a model's functions: it replaces torch's by those with defined bits, and refuses others."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function, resolve_name

from qtorch.reproducible.modules import layer_functions  # noqa: F401  # defines functions
from qtorch.reproducible.modules.functions import DEFINED, EXACT


class _State(threading.local):
    """How often `paused` is entered in this thread: modes of torch are a thread's, and Dynamo traces no ContextVar."""

    def __init__(self) -> None:
        self.depth = 0


STATE = _State()


@contextmanager
def paused() -> Iterator[None]:
    """While it is entered functions are ours: the guard lets them be."""
    STATE.depth += 1
    try:
        yield
    finally:
        STATE.depth -= 1


def let_be(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """function(*tensors), which is ours: the guard lets it be, and is asked about it once, not at each step within."""
    STATE.depth += 1  # as in `paused`, which takes longer
    try:
        if torch.compiler.is_dynamo_compiling() or not has_torch_function(tensors):
            return function(*tensors)
        return handle_torch_function(function, tensors, *tensors)  # torch runs it without the guard's mode
    finally:
        STATE.depth -= 1


@contextmanager
def resumed() -> Iterator[None]:
    """While it is entered functions are the guard's again, as the model's own code runs."""
    before, STATE.depth = STATE.depth, 0
    try:
        yield
    finally:
        STATE.depth = before


class Guard(TorchFunctionMode):
    """Replaces torch's functions of floating tensors by those of `qtorch.reproducible` with the same arguments.

    Functions that move numbers only, and those without floating tensors, stay.

    Args:
        model: whose layers messages name.

    Raises:
        TypeError, ValueError: at a function that is neither, or whose arguments have no defined bits.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if STATE.depth or func in EXACT or func.__name__ == "__get__":
            return func(*args, **kwargs)
        found = DEFINED.get(func)
        if found is not None:
            STATE.depth += 1  # a model that was switched may be a part of another one, whose guard asks too
            try:
                return found(*args, **kwargs)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{_layer(self.model)} calls {_name(func)}: {error}") from error
            finally:
                STATE.depth -= 1
        if not _has_floats(args) and not _has_floats(kwargs.values()):
            return func(*args, **kwargs)
        raise ValueError(
            f"{_layer(self.model)} calls {_name(func)}, whose order of operations is not defined; allowed are the "
            "functions of qtorch.reproducible, torch's with these names, and what moves numbers only"
        )


def _has_floats(arguments: Any) -> bool:
    for x in arguments:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            return True
        if isinstance(x, tuple | list) and _has_floats(x):
            return True
    return False


def _name(func: Any) -> str:
    return resolve_name(func) or func.__name__


def _layer(model: nn.Module) -> str:
    """The innermost layer that is running, as messages have it."""
    names: dict[Any, str] = {layer: name for name, layer in model.named_modules()}
    frame: Any = inspect.currentframe()
    while frame is not None:
        running = frame.f_locals.get("self")
        if isinstance(running, nn.Module) and running in names:
            return f"layer '{names[running]}'" if names[running] else "the model itself"
        frame = frame.f_back
    return "the model"
