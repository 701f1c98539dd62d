"""Parts of tensors, and tensors as they are, whose gradients have defined bits too.

Frameworks differ in the sign of zeros where the gradients of slices meet, and in who flushes subnormal numbers where
the gradients of a number that was used twice are added.
"""

from __future__ import annotations

from typing import Any

from qcore.reproducible.differentiable import Differentiable


def _chunk(xp: Any, x: Any, chunks: int, axis: int) -> tuple[tuple[Any, ...], tuple[()]]:
    length = x.shape[axis] // chunks
    before = (slice(None),) * axis
    return tuple([x[(*before, slice(i * length, (i + 1) * length))] for i in range(chunks)]), ()


def _chunk_gradient(xp: Any, saved: tuple[()], gradients: tuple[Any, ...], chunks: int, axis: int) -> tuple[Any]:
    return (xp.concatenate(list(gradients), axis),)


def _narrow(xp: Any, x: Any, axis: int, start: int, length: int, rest: int) -> tuple[Any, tuple[()]]:
    return x[(*(slice(None),) * axis, slice(start, start + length))], ()


def _narrow_gradient(
    xp: Any, saved: tuple[()], gradient: Any, axis: int, start: int, length: int, rest: int
) -> tuple[Any]:
    """Zeros are +0 before and after the part."""
    before, after = ((*gradient.shape[:axis], n, *gradient.shape[axis + 1 :]) for n in (start, rest))
    return (xp.concatenate([xp.zeros(before, gradient), gradient, xp.zeros(after, gradient)], axis),)


NARROW = Differentiable(_narrow, _narrow_gradient, by_pieces=True)
CHUNK = Differentiable(_chunk, _chunk_gradient, by_pieces=True, several=True)
SETTLE = Differentiable(lambda xp, x: (x, ()), lambda xp, saved, gradient: (gradient,), by_pieces=True)
