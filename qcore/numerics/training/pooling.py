"""Pooling over windows of the last axes: the largest number, or the mean.

A number that is in several windows has a gradient from each: these are summed in float64, ascending in its tap (its
place in the window, row-major), and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from math import inf, prod
from typing import Any

from qcore.numerics.differentiable import Differentiable

Shape = tuple[int, ...]


def _max_pool(xp: Any, x: Any, kernel: Shape, stride: Shape, padding: Shape) -> tuple[Any, tuple[Any]]:
    return _largest(xp, x, kernel, stride, padding)[0], (x,)


def _largest(xp: Any, x: Any, kernel: Shape, stride: Shape, padding: Shape) -> tuple[Any, Any]:
    """The largest number of each window, and the first tap that has it; the last NaN if there is one."""
    largest = taps = None
    for tap, number in enumerate(_taps(xp, _padded(xp, x, padding, -inf), kernel, stride)):
        if largest is None:
            largest, taps = number, xp.zeros(number.shape, xp.arange(1, number))
            continue
        better = (number > largest) | (number != number)
        largest, taps = xp.where(better, number, largest), xp.where(better, tap, taps)
    return largest, taps


def _max_pool_gradient(
    xp: Any, saved: tuple[Any], gradient: Any, kernel: Shape, stride: Shape, padding: Shape
) -> tuple[Any]:
    taps, wide = _largest(xp, saved[0], kernel, stride, padding)[1], xp.wide(gradient)
    parts = (xp.where(taps == tap, wide, xp.zeros((), wide)) for tap in range(prod(kernel)))
    return (_gathered(xp, parts, saved[0].shape, kernel, stride, padding),)


def _avg_pool(xp: Any, x: Any, kernel: Shape, stride: Shape, padding: Shape) -> tuple[Any, tuple[Any]]:
    """Zeros of the padding count as numbers."""
    numbers = _taps(xp, xp.wide(_padded(xp, x, padding, 0.0)), kernel, stride)
    return xp.div(xp.narrow(reduce(lambda total, number: total + number, numbers)), prod(kernel)), (x,)


def _avg_pool_gradient(
    xp: Any, saved: tuple[Any], gradient: Any, kernel: Shape, stride: Shape, padding: Shape
) -> tuple[Any]:
    each = xp.wide(xp.div(gradient, prod(kernel)))
    return (_gathered(xp, (each for _ in range(prod(kernel))), saved[0].shape, kernel, stride, padding),)


MAX_POOL = Differentiable(_max_pool, _max_pool_gradient, by_pieces=True)
AVG_POOL = Differentiable(_avg_pool, _avg_pool_gradient, by_pieces=True)


def _padded(xp: Any, x: Any, padding: Sequence[int], value: float) -> Any:
    """x with a number before and after the last axes."""
    for axis, size in enumerate(padding, x.ndim - len(padding)):
        edge = xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), x) + value
        x = xp.concatenate([edge, x, edge], axis) if size else x
    return x


def _taps(xp: Any, x: Any, kernel: Shape, stride: Shape) -> Iterator[Any]:
    """For each tap its numbers of all windows."""
    lengths = x.shape[x.ndim - len(kernel) :]
    counts = [(length - size) // step + 1 for length, size, step in zip(lengths, kernel, stride, strict=True)]
    for places in product(*map(range, kernel)):
        spans = zip(places, counts, stride, strict=True)
        yield x[(..., *(slice(first, first + (count - 1) * step + 1, step) for first, count, step in spans))]


def _gathered(xp: Any, parts: Iterator[Any], shape: Shape, kernel: Shape, stride: Shape, padding: Shape) -> Any:
    """The gradients of x from those of its taps."""
    dims = len(kernel)
    lengths = [size + 2 * pad for size, pad in zip(shape[len(shape) - dims :], padding, strict=True)]
    total = None
    for places, part in zip(product(*map(range, kernel)), parts, strict=True):
        for axis, (first, step, length) in enumerate(zip(places, stride, lengths, strict=True), part.ndim - dims):
            part = _spread(xp, part, axis, first, step, length)
        total = part if total is None else total + part
    inner = tuple(slice(pad, length - pad) for pad, length in zip(padding, lengths, strict=True))
    return xp.narrow(total[(..., *inner)])  # type: ignore[index]


def _spread(xp: Any, x: Any, axis: int, first: int, step: int, length: int) -> Any:
    """Zeros of a length along an axis, with x's numbers from a first place on in steps."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    gaps = xp.zeros((*before, x.shape[axis], step - 1, *after), x)
    spread = xp.concatenate([x.reshape((*before, x.shape[axis], 1, *after)), gaps], axis + 1)
    spread = spread.reshape((*before, x.shape[axis] * step, *after))[(slice(None),) * axis + (slice(length - first),)]
    ends = [xp.zeros((*before, size, *after), x) for size in (first, length - first - spread.shape[axis])]
    return xp.concatenate([ends[0], spread, ends[1]], axis)
