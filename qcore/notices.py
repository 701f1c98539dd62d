"""Where a call stands: the line of the user's program for warnings, and the objects whose methods run for errors."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from inspect import currentframe
from typing import TypeVar

T = TypeVar("T")

# Packages through which a call goes on its way from the user's line: ours, frameworks, and the standard library's.
_BETWEEN = frozenset(
    ("qcore", "qtorch", "qjax", "torch", "jax", "flax", "optax", "contextlib", "functools", "concurrent", "threading")
)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is neither the library's nor a framework's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    names = frame.f_globals
    place = frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "")
    warnings.warn_explicit(message, category, *place, names.setdefault("__warningregistry__", {}))


def running(kind: type[T]) -> Iterator[T]:
    """The objects of a class whose methods run, innermost first: first arguments of the functions on the stack."""
    frame = currentframe()
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, kind):
            yield first
        frame = frame.f_back
