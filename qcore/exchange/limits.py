"""What a file may take while it runs: the sizes of its arrays, and its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod

from qcore.arguments import quoted

MAX_ELEMENTS, MAX_STEPS = 2**28, 10**6


@dataclass
class _Limits:
    """The bounds of one run, and the steps that it has taken."""

    elements: int = MAX_ELEMENTS
    steps: int = MAX_STEPS
    taken: int = 0


_OF_RUN: ContextVar[_Limits | None] = ContextVar("_OF_RUN", default=None)


@contextmanager
def limited(max_elements: int, max_steps: int) -> Iterator[None]:
    """The bounds of what runs within."""
    token = _OF_RUN.set(_Limits(max_elements, max_steps))
    try:
        yield
    finally:
        _OF_RUN.reset(token)


def check_shape(shape: tuple[int, ...], name: str = "a result") -> tuple[int, ...]:
    """The shape of an array that is to be made; a size of 0 does not hide the others."""
    most = (_OF_RUN.get() or _Limits()).elements
    if any(size < 0 for size in shape):
        raise ValueError(f"{name} has shape {quoted(shape)}; allowed are sizes from 0 on")
    if prod(size for size in shape if size) > most:
        raise ValueError(f"{name} has shape {quoted(shape)}; allowed are at most {most} elements, of max_elements")
    return shape


def count_step() -> None:
    """Counts a node that runs, or a step of a loop."""
    limits = _OF_RUN.get()
    if limits is None:
        return
    limits.taken += 1
    if limits.taken > limits.steps:
        raise ValueError(f"more than {limits.steps} nodes and steps of loops ran; allowed are those of max_steps")
