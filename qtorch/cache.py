"""Remembering what small calls would otherwise spend most of their time on."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import torch

T = TypeVar("T")


def remember(function: Callable[..., T]) -> Callable[..., T]:
    """A function of positional, hashable arguments with a cache.

    Unhashable arguments reach the function as well, which refuses them in its own words; and `torch.compile` traces
    the function itself.
    """
    cached = lru_cache(maxsize=1024, typed=True)(function)

    @wraps(function)
    def call(*arguments: object) -> T:
        if torch.compiler.is_compiling():
            return function(*arguments)
        try:
            return cached(*arguments)
        except TypeError:
            return function(*arguments)

    call.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return call
