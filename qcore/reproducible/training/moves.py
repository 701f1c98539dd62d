"""What moves numbers or compares them, and rounds nothing; a number that goes to several places has a sum as gradient.

Numbers that are taken by their places have the law of an embedding (`qcore.reproducible.training.embedding`).
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any

from qcore.reproducible.differentiable import Differentiable, without_gradients
from qcore.reproducible.sums import unbroadcast

Pairs = tuple[tuple[int, int], ...]


def _where(xp: Any, condition: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, ...]]:
    """Of arrays of the result's shape nothing is saved: gradients only read shapes."""
    found = xp.where(condition, a, b)
    return found, (condition, *(None if tuple(x.shape) == tuple(found.shape) else x for x in (a, b)))


def _of_where(xp: Any, saved: tuple[Any, ...], gradient: Any) -> tuple[Any, ...]:
    condition, a, b = saved
    zero = xp.zeros((), gradient)
    pairs = (xp.where(condition, gradient, zero), a), (xp.where(condition, zero, gradient), b)
    return None, *(found if x is None else unbroadcast(xp, found, x.shape) for found, x in pairs)


def _broadcast(xp: Any, x: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[Any]]:
    return xp.broadcast_to(x, shape), (x,)


def _of_broadcast(xp: Any, saved: tuple[Any], gradient: Any, shape: tuple[int, ...]) -> tuple[Any]:
    return (unbroadcast(xp, gradient, saved[0].shape),)


def padded(xp: Any, x: Any, widths: Pairs, value: float) -> Any:
    """x with so many numbers before and after the last axes."""
    for axis, width in enumerate(widths, x.ndim - len(widths)):
        before, after = (xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), x) + value for size in width)
        x = xp.concatenate([before, x, after], axis) if any(width) else x
    return x


def unpadded(x: Any, widths: Pairs) -> Any:
    """What lies between the numbers that `padded` puts around the last axes."""
    lengths = x.shape[x.ndim - len(widths) :]
    inner = [slice(before, length - after) for (before, after), length in zip(widths, lengths, strict=True)]
    return x[(slice(None),) * (x.ndim - len(widths)) + tuple(inner)]


def _greatest_place(xp: Any, x: Any, axis: int) -> Any:
    """The first place along an axis that has the greatest number, or NaN."""
    last = x.shape[axis] - 1
    from_end = (last - xp.arange(last + 1, x)).reshape((-1, *(1,) * (x.ndim - 1 - axis)))
    hits = (x == xp.greatest(x, (axis,))) | (x != x)
    return last - xp.greatest(xp.where(hits, from_end, -1), (axis,))


def _order(xp: Any, x: Any, descending: bool) -> Any:
    """Places along the last axis in the order of their numbers; equal ones keep theirs, NaN is the greatest."""
    if not descending:
        return xp.to_int32(xp.argsort(x))
    backward = x.shape[-1] - 1 - xp.arange(x.shape[-1], x)
    return xp.to_int32((x.shape[-1] - 1 - xp.argsort(x[..., backward]))[..., backward])


def _places(xp: Any, indices: Any, shape: tuple[int, ...], axis: int) -> Any:
    """Row-major places, in an array of a shape, of the numbers at indices along an axis; -1 where there is none."""
    known = xp.to_float64(indices)  # int8 may not have the length of the axis
    known = (known >= 0) & (known < shape[axis])
    places = xp.to_int32(indices) * prod(shape[axis + 1 :])
    for other, length in enumerate(indices.shape):
        if other != axis:
            step = xp.arange(length, indices) * prod(shape[other + 1 :])
            places = places + step.reshape((-1, *(1,) * (len(shape) - 1 - other)))
    return xp.where(known, places, -1)


def _compared(xp: Any, a: Any, b: Any, relation: str) -> Any:
    return getattr(operator, relation)(a, b)


def _fitting(xp: Any, x: Any, least: float, most: float) -> Any:
    """Numbers from least to below most, and zeros elsewhere: what all processors convert to the same integers."""
    return xp.where((x >= least) & (x < most), x, 0.0)


WHERE = Differentiable(_where, _of_where, by_pieces=True)
BROADCAST = Differentiable(_broadcast, _of_broadcast, by_pieces=True)
PAD = Differentiable(
    lambda xp, x, widths, value: (padded(xp, x, widths, value), ()),
    lambda xp, saved, gradient, widths, value: (unpadded(gradient, widths),),
    by_pieces=True,
)
COMPARED = without_gradients(_compared, fusible=False)
FITTING = without_gradients(_fitting, fusible=False)
GREATEST_PLACE = without_gradients(_greatest_place, fusible=False)
ORDER = without_gradients(_order, fusible=False)
PLACES = without_gradients(_places, fusible=False)
