"""Sums in a fixed order, which depends on neither threads nor layouts nor devices."""

from __future__ import annotations

from math import prod
from typing import Any


def tree_sum(xp: Any, x: Any, axis: int = -1) -> Any:
    """The sum of float64 numbers along an axis, which stays with the length 1: halves by index, an odd rest appended."""
    axis %= x.ndim
    before = (slice(None),) * axis
    while (length := x.shape[axis]) > 1:
        half = length // 2
        pairs = x[(*before, slice(half))] + x[(*before, slice(half, 2 * half))]
        x = xp.concatenate([pairs, x[(*before, slice(2 * half, None))]], axis) if length % 2 else pairs
    return x if x.shape[axis] else xp.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x)


def total(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The sums of float32 numbers along axes, which stay: in float64, in row-major order, rounded once to float32."""
    return xp.narrow(_along(xp, xp.wide(x), axes))


def dot(xp: Any, a: Any, b: Any, axes: tuple[int, ...]) -> Any:
    """The sums of the exact products of float32 numbers, as `total`."""
    return xp.narrow(_along(xp, xp.wide(a) * xp.wide(b), axes))


def _along(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    axes = tuple([axis for axis in range(x.ndim) if axis in axes or axis - x.ndim in axes])
    if not axes:
        return x
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    count, first = prod([x.shape[axis] for axis in axes]), axes[0]
    if axes != tuple(range(first, axes[-1] + 1)):  # brings them together
        x, first = xp.moveaxis(x, axes, tuple(range(len(axes)))), 0
    x = x.reshape((*x.shape[:first], count, *x.shape[first + len(axes) :]))
    return tree_sum(xp, x, first).reshape(kept)


def unbroadcast(xp: Any, gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an array of a shape, of which copies were made when it met a larger one."""
    extra = gradient.ndim - len(shape)
    if tuple(gradient.shape) == tuple(shape):
        return gradient
    axes = (*range(extra), *(extra + i for i, size in enumerate(shape) if size == 1 and gradient.shape[extra + i] != 1))
    return total(xp, gradient, axes).reshape(shape)
