"""Caches that make small calls fast, and constants of traced programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch

from qcore.formats.number import FormatTexts
from qcore.formats.table import checked_fields, span_of
from qtorch._torch_internals import constant_result

T = TypeVar("T")


def cached(function: Callable[..., T]) -> Callable[..., T]:
    """A function of positional, hashable arguments with a cache.

    Arguments without a hash, or whose comparison raises (tensors), reach the function itself, which raises its own
    message for them. Not for traced programs. The attribute `known` is the cache alone: it saves a call, and raises
    Python's own message for arguments without a hash.
    """
    known = lru_cache(maxsize=1024, typed=True)(function)

    def call(*arguments: object) -> T:
        try:
            return known(*arguments)
        except (TypeError, ValueError, RuntimeError):
            return function(*arguments)

    call.known = known  # type: ignore[attr-defined]
    call.cache_clear = known.cache_clear  # type: ignore[attr-defined]
    return call


for function in FormatTexts.learn, checked_fields, span_of:  # Dynamo cannot trace a parser, nor parts of floats
    constant_result(function)


def literal(value: Any) -> Any:
    """The same value, as a constant of a traced program.

    With dynamic shapes `torch.compile` traces integers as symbols too, and Inductor compiles a clamp of int32 lanes to
    a symbolic bound as a clamp of floats. Dynamo never makes a symbol of a key of a dictionary.
    """
    if isinstance(value, tuple):
        return tuple(map(literal, value))
    return next(iter({value: None})) if torch.compiler.is_dynamo_compiling() else value
