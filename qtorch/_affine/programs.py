"""Laws in programs of `torch.export`: each is one operator, `qtorch::affine_law`, which torch takes apart if need be.

A converted layer has about sixty operations of torch's, and `torch.export` takes more than a millisecond for each. The
operator is composite: `run_decompositions`, `torch.compile` and AOTInductor run its function on
their own tensors, and so find the law's operations. Its arguments are the tensors of a call, its sizes that vary, and a
text of all else. Programs on disk hold this text, so they are those of one version of the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache, partial, reduce
from importlib import import_module
from types import FunctionType
from typing import Any

import torch

from qcore import Number, parse
from qcore.affine.quantized import QuantizedArray
from qtorch._exported import is_wanted
from qtorch._torch_internals import is_fake

# What a text may name, which may come from a file of a stranger: these modules have laws and their arguments only.
_MODULES = {
    *(f"qcore.affine.{name}" for name in ("integers", "operations", "parameters")),
    *(
        f"qcore.affine.functional.{name}"
        for name in ("activations", "elementwise", "norms", "operands", "pools", "resize")
    ),
    *(f"qtorch._affine.{name}" for name in ("functional", "namespace", "products", "tensor")),
    *(f"qtorch.nn.quantized.{name}" for name in ("conv", "dynamic.product", "weights")),
}
_RUNNING: ContextVar[Callable[[], torch.Tensor] | None] = ContextVar("what makes the law's result", default=None)


class _TextlessError(Exception):
    """Something among the arguments cannot be written as a text."""


def law(
    function: Callable[..., torch.Tensor],
    arrays: Sequence[Any],
    *settings: Any,
    empty: Callable[[], torch.Tensor] | None = None,
) -> torch.Tensor:
    """function(*arrays, *settings), a tensor; in a program that `torch.export` traces it is one operator.

    Args:
        function: of a module.
        arrays: tensors, quantized tensors, their parameters, or None.
        settings: all else.
        empty: makes a tensor without values as the result is; None runs the function, which takes torch longer.
    """
    run = partial(function, *arrays, *settings)
    # Dynamo, which strict exports use, traces no contexts; a law inside of another is a part of it.
    if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_exporting() or is_wanted() or _RUNNING.get():
        return run()
    tensors, sizes = list[torch.Tensor](), list[Any]()
    try:
        text = json.dumps([_written(one, tensors, sizes) for one in (function, arrays, settings)])
    except _TextlessError:
        return run()
    token = _RUNNING.set(empty or run)
    try:
        return torch.ops.qtorch.affine_law(tensors, sizes, text)
    finally:
        _RUNNING.reset(token)


def is_running() -> bool:
    """True inside of the operator."""
    return not torch.compiler.is_dynamo_compiling() and _RUNNING.get() is not None


def run_law(tensors: list[torch.Tensor], sizes: list[Any], text: str) -> torch.Tensor:
    """`qtorch::affine_law`. In `law` torch has written the operator down and asks for a result without values."""
    if make := _RUNNING.get():
        return make()
    function, arrays, settings = (_read(one, tensors, sizes) for one in json.loads(text))
    token = _RUNNING.set(partial(function, *arrays, *settings))
    try:
        return function(*arrays, *settings)
    finally:
        _RUNNING.reset(token)


def _written(x: Any, tensors: list[torch.Tensor], sizes: list[Any]) -> Any:
    """An argument as JSON has it: [name, *parts] of what is made of parts, and {kind: place or name} of the rest."""
    if isinstance(x, torch.Tensor) and is_fake(x):  # not one of a transform, whose function torch runs differently
        tensors.append(x)
        return {"tensor": len(tensors) - 1}
    if isinstance(x, torch.SymInt):
        sizes.append(x)
        return {"size": len(sizes) - 1}
    if isinstance(x, Number) and parse(x.text) == x:
        return {"format": x.text}
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, (type, FunctionType)) and (name := _name(x)):
        return {"name": name}
    if isinstance(x, QuantizedArray):
        name, parts = f"{_name(type(x))}._made", [x.values, x.qparams, x.form]
    elif is_dataclass(x):
        name, parts = _name(type(x)), [getattr(x, field.name) for field in fields(x) if field.init]
    elif isinstance(x, (tuple, list)):
        name, parts = _name(type(x)) if hasattr(x, "_fields") else type(x).__name__, x
    else:
        raise _TextlessError
    if not name:
        raise _TextlessError
    return [name, *(_written(part, tensors, sizes) for part in parts)]


def _read(x: Any, tensors: list[torch.Tensor], sizes: list[Any]) -> Any:
    """The inverse of `_written`."""
    if isinstance(x, dict):
        ((kind, value),) = x.items()
        if kind in ("name", "format"):
            return (_found if kind == "name" else parse)(value)
        return (tensors if kind == "tensor" else sizes)[value]
    if isinstance(x, list):
        name, *parts = x
        made = [_read(part, tensors, sizes) for part in parts]
        return made if name == "list" else tuple(made) if name in ("tuple", "Size") else _found(name)(*made)
    return x


def _name(x: Any) -> str:
    """Where a class or a function is defined; "" of others than a module's own."""
    return f"{x.__module__}:{x.__qualname__}" if "<" not in x.__qualname__ and x.__module__ in _MODULES else ""


@cache
def _found(name: str) -> Any:
    """What `_name` names, if it is ours."""
    module, _, path = name.partition(":")
    found = reduce(getattr, path.split("."), import_module(module)) if module in _MODULES else None
    if getattr(found, "__module__", "") not in {*_MODULES, QuantizedArray.__module__}:
        raise ValueError(
            f"qtorch::affine_law: {name} is no law; allowed are programs that this version of qtorch exported"
        )
    return found
