"""Where a call stands: the user's line for warnings, the objects whose methods run for errors, and how far it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import currentframe
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

# Packages through which a call goes on its way from the user's line: ours, frameworks, and the standard library's.
_BETWEEN = frozenset(
    ("qcore", "qtorch", "qjax", "torch", "jax", "flax", "optax", "contextlib", "functools", "concurrent", "threading")
)


def frames() -> Iterator[FrameType]:
    """The frames of the functions that run, innermost first, from the one that asks: all that reads the stack does so.

    A frame says where a call stands, which nothing else of Python does without a cost in each call that succeeds.
    """
    frame = currentframe()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
        yield frame


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is neither the library's nor a framework's."""
    *inner, outermost = frames()
    frame = next(filter(_is_users, inner), outermost)
    names = frame.f_globals
    place = frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "")
    warnings.warn_explicit(message, category, *place, names.setdefault("__warningregistry__", {}))


def _is_users(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] not in _BETWEEN


def running(class_: type[T]) -> Iterator[T]:
    """The objects of a class whose methods run, innermost first: first arguments of the functions on the stack."""
    for frame in frames():
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, class_):
            yield first


_shown: ContextVar[bool] = ContextVar("shown", default=False)  # True while a bar is on the terminal


@contextmanager
def progress(text: str) -> Iterator[Callable[[float], None]]:
    """Shows a bar on standard error while it is entered, if this is a terminal without another one.

    Yields:
        A function to call with the finished part of the work, from 0 to 1.
    """
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield lambda part: None
        return
    console = Console(stderr=True)
    if _shown.get() or not console.is_terminal:
        yield lambda part: None
        return
    _shown.set(True)
    try:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(text, total=1.0)
            yield lambda part: bar.update(task, completed=part)
    finally:
        _shown.set(False)  # not a token's: a bar may end in another context than it began in
