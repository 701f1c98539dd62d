"""Pooling over windows of the last axes: the largest number, or the mean.

A number that is in several windows has a gradient from each: these are summed in float64, ascending in its tap (its
place in the window, row-major), and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product
from math import ceil, inf, prod
from typing import Any

from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.training.moves import Pairs, padded, unpadded

Shape = tuple[int, ...]


def window_padding(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The padding after an axis: with ceil_mode as much more as the last window needs that begins in the array."""
    if not ceil_mode:
        return padding
    reach = dilation * (kernel - 1) + 1
    count = ceil((length + 2 * padding - reach) / stride) + 1
    if (count - 1) * stride >= length + padding:
        count -= 1
    return max((count - 1) * stride + reach - length - padding, padding)


def _max_pool(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape) -> tuple[Any, tuple[Any]]:
    return _largest(xp, x, kernel, stride, widths, dilation)[0], (x,)


def _largest(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape) -> tuple[Any, Any]:
    """The largest number of each window, and the first tap that has it; the last NaN if there is one."""
    largest = taps = None
    for tap, number in enumerate(_taps(padded(xp, x, widths, -inf), kernel, stride, dilation)):
        if largest is None:
            largest, taps = number, xp.zeros(number.shape, xp.arange(1, number))
            continue
        better = (number > largest) | (number != number)
        largest, taps = xp.where(better, number, largest), xp.where(better, tap, taps)
    return largest, taps


def _max_pool_gradient(
    xp: Any, saved: tuple[Any], gradient: Any, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape
) -> tuple[Any]:
    taps, wide = _largest(xp, saved[0], kernel, stride, widths, dilation)[1], xp.wide(gradient)
    parts = (xp.where(taps == tap, wide, xp.zeros((), wide)) for tap in range(prod(kernel)))
    return (_gathered(xp, parts, saved[0].shape, kernel, stride, widths, dilation),)


def _avg_pool(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, counted: Pairs) -> tuple[Any, tuple[Any]]:
    """counted: how much of the padding counts as numbers, which are zeros."""
    numbers = _taps(xp.wide(padded(xp, x, widths, 0.0)), kernel, stride, (1,) * len(kernel))
    total = xp.narrow(reduce(lambda total, number: total + number, numbers))
    return xp.div(total, _counts(xp, x, kernel, stride, widths, counted)), (x,)


def _avg_pool_gradient(
    xp: Any, saved: tuple[Any], gradient: Any, kernel: Shape, stride: Shape, widths: Pairs, counted: Pairs
) -> tuple[Any]:
    (x,) = saved
    each = xp.wide(xp.div(gradient, _counts(xp, x, kernel, stride, widths, counted)))
    parts = (each for _ in range(prod(kernel)))
    return (_gathered(xp, parts, x.shape, kernel, stride, widths, (1,) * len(kernel)),)


def _counts(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, counted: Pairs) -> Any:
    """How many numbers each window has: one number for all, or an array."""
    if widths == counted:
        return float(prod(kernel))
    found = 1.0
    for axis, length in enumerate(x.shape[x.ndim - len(kernel) :]):
        (before, after), (first, last) = widths[axis], counted[axis]
        count = (before + length + after - kernel[axis]) // stride[axis] + 1
        begin = xp.arange(count, x) * stride[axis]
        end, least, most = begin + kernel[axis], before - first, before + length + last
        inside = xp.where(end > most, most, end) - xp.where(begin < least, least, begin)
        found = found * xp.to_float32(inside).reshape((-1, *(1,) * (len(kernel) - 1 - axis)))
    return found


MAX_POOL = Differentiable(_max_pool, _max_pool_gradient, by_pieces=True, fusible=False)
AVG_POOL = Differentiable(_avg_pool, _avg_pool_gradient, by_pieces=True, fusible=False)


def _taps(x: Any, kernel: Shape, stride: Shape, dilation: Shape) -> Iterator[Any]:
    """For each tap its numbers of all windows."""
    lengths = x.shape[x.ndim - len(kernel) :]
    reaches = [space * (size - 1) + 1 for size, space in zip(kernel, dilation, strict=True)]
    counts = [(length - reach) // step + 1 for length, reach, step in zip(lengths, reaches, stride, strict=True)]
    for places in product(*map(range, kernel)):
        spans = zip(places, dilation, counts, stride, strict=True)
        firsts = [(place * space, count, step) for place, space, count, step in spans]
        yield x[(..., *(slice(first, first + (count - 1) * step + 1, step) for first, count, step in firsts))]


def _gathered(
    xp: Any, parts: Iterator[Any], shape: Shape, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape
) -> Any:
    """The gradients of x from those of its taps."""
    dims = len(kernel)
    lengths = [size + sum(width) for size, width in zip(shape[len(shape) - dims :], widths, strict=True)]
    total = None
    for places, part in zip(product(*map(range, kernel)), parts, strict=True):
        axes = zip(places, dilation, stride, lengths, strict=True)
        for axis, (place, space, step, length) in enumerate(axes, part.ndim - dims):
            part = _spread(xp, part, axis, place * space, step, length)
        total = part if total is None else total + part
    return xp.narrow(unpadded(total, widths))


def _spread(xp: Any, x: Any, axis: int, first: int, step: int, length: int) -> Any:
    """Zeros of a length along an axis, with x's numbers from a first place on in steps."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    gaps = xp.zeros((*before, x.shape[axis], step - 1, *after), x)
    spread = xp.concatenate([x.reshape((*before, x.shape[axis], 1, *after)), gaps], axis + 1)
    spread = spread.reshape((*before, x.shape[axis] * step, *after))[(slice(None),) * axis + (slice(length - first),)]
    ends = [xp.zeros((*before, size, *after), x) for size in (first, length - first - spread.shape[axis])]
    return xp.concatenate([ends[0], spread, ends[1]], axis)
