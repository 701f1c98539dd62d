"""Keeping Python out of the way: of small calls, which it would slow down, and of traced programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def remember(function: Callable[..., T]) -> Callable[..., T]:
    """A function of positional, hashable arguments with a cache.

    Unhashable arguments reach the function as well, which refuses them in its own words. Not for traced programs.
    """
    cached = lru_cache(maxsize=1024, typed=True)(function)

    def call(*arguments: object) -> T:
        try:
            return cached(*arguments)
        except TypeError:
            return function(*arguments)

    call.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return call


def constant(function: Callable[..., T]) -> Callable[..., T]:
    """A function whose result is a constant of a traced program.

    It is what `torch.compiler.assume_constant_result` does, which imports the whole of Dynamo to set one attribute.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def literal(value: Any) -> Any:
    """The same value, as a constant of a traced program.

    With dynamic shapes `torch.compile` traces integers as symbols too, and Inductor compiles a clamp of int32 lanes to
    a symbolic bound as one of floats. A key of a dictionary is never a symbol.
    """
    if isinstance(value, tuple):
        return tuple(map(literal, value))
    return next(iter({value: None})) if torch.compiler.is_compiling() else value
