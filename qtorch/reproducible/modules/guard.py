"""The guard of a running model: it replaces torch's functions by functions with defined bits, and refuses others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function, resolve_name

from qcore.names import shown
from qtorch._running import running_modules
from qtorch._torch_internals import operator_of
from qtorch.reproducible.modules import elementwise, layer_functions, moves  # noqa: F401  # have rows of the registry
from qtorch.reproducible.modules.registry import (
    DEFINED,
    EXACT_METHODS,
    MAKERS,
    METHODS,
    RANDOM,
    float32,
    has_floats,
    stays,
)


class _State(threading.local):
    """How often `paused` is entered in this thread: torch's modes are per thread, and Dynamo traces no ContextVar."""

    def __init__(self) -> None:
        self.depth = 0


STATE = _State()


@contextmanager
def paused() -> Iterator[None]:
    """A context in which the guard leaves functions as they are: the library's own code runs."""
    STATE.depth += 1
    try:
        yield
    finally:
        STATE.depth -= 1


def run_unguarded(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """function(*tensors), a function of this library, without the guard. Faster than `paused`."""
    STATE.depth += 1
    try:
        if torch.compiler.is_dynamo_compiling() or not has_torch_function(tensors):
            return function(*tensors)
        # The call is outside the guard's mode; otherwise torch would call the guard for each function inside.
        return handle_torch_function(function, tensors, *tensors)
    finally:
        STATE.depth -= 1


@contextmanager
def resumed() -> Iterator[None]:
    """A context inside `paused` in which the guard replaces functions again: the model's own code runs."""
    before, STATE.depth = STATE.depth, 0
    try:
        yield
    finally:
        STATE.depth = before


_BY_NAME = frozenset((*METHODS, *EXACT_METHODS))


class Guard(TorchFunctionMode):
    """Replaces torch's functions of floating tensors by those of `qtorch.reproducible` with the same arguments.

    Functions that only move numbers, and functions without floating tensors, are not replaced.

    Args:
        model: the model whose layers error messages name.

    Raises:
        TypeError, ValueError: at another function without defined bits, or at arguments for which the bits are not
            defined.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if STATE.depth:  # the library's own code, which may have no name
            return func(*args, **kwargs)
        name = func.__name__
        if name in _BY_NAME and operator_of(func):  # a program's operator, which may have the name of a method
            name = ""
        if name in EXACT_METHODS or name == "__get__":
            return func(*args, **kwargs)
        found = METHODS.get(name) or DEFINED.get(func)
        if found is None and stays(func):
            return func(*args, **kwargs)
        if not has_floats(args) and not has_floats(kwargs.values()) and func not in RANDOM:
            y = func(*args, **kwargs)
            if func in MAKERS or not has_floats((y,)):
                return y
            # functions of integers with float results: the integers become float32 first
            args, kwargs = tuple(map(float32, args)), {name: float32(x) for name, x in kwargs.items()}
        if found is not None:
            STATE.depth += 1  # a model that was switched may be a part of another one, whose guard asks too
            try:
                return found(*args, **kwargs)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{self._layer()} calls {_name(func)}: {error}") from error
            finally:
                STATE.depth -= 1
        calls, allowed = f"{self._layer()} calls {_name(func)}", "the functions of qtorch.reproducible"
        if func in RANDOM:
            raise ValueError(
                f"{calls}, whose numbers are those of torch's generator; allowed are numbers that the caller draws, "
                f"and {allowed}, such as dropout with a key"
            )
        raise ValueError(
            f"{calls}, whose order of operations is not defined; allowed are {allowed}, torch's with these names, and "
            "what moves numbers only"
        )

    def _layer(self) -> str:
        """The innermost layer of the model that is running, as messages name it; Dynamo itself says where it is."""
        if torch.compiler.is_dynamo_compiling():
            return "the model"
        names: dict[Any, str] = {layer: name for name, layer in self.model.named_modules()}
        for running in running_modules():
            if running in names:
                return shown(names[running])
        return "the model"


def _name(func: Any) -> str:
    if torch.compiler.is_dynamo_compiling():
        return func.__name__
    return resolve_name(func) or func.__name__
