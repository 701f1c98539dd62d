"""Reductions along axes, in the order of `qcore.reproducible.sums`; axes are numbers from 0 on, in ascending order."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

from qcore.arguments import check_int, quoted
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary.laws import PARTS
from qcore.reproducible.sums import dot, expanded, squeezed, total

Axes = tuple[int, ...]

exp, log = PARTS["exp"], PARTS["log"]


def check_axes(name: str, axis: Any, ndim: int) -> Axes:
    """Axes as numbers from 0 on, in ascending order.

    Raises:
        TypeError, ValueError: if they are no axes of an array of so many dimensions, each named once.
    """
    if axis is None:
        return tuple(range(ndim))
    try:
        given = [check_int(name, one) for one in (axis if isinstance(axis, tuple | list) else (axis,))]
    except TypeError:
        raise TypeError(f"{name}={quoted(axis)}; allowed are ints, tuples of ints and None") from None
    found = [one + ndim if one < 0 else one for one in given]
    if not all(0 <= one < ndim for one in found) or len(set(found)) != len(found):
        raise ValueError(f"{name}={quoted(axis)}; allowed are different axes from {-ndim} to {ndim - 1}")
    return tuple([one for one in range(ndim) if one in found])


def check_axis(axis: Any, x: Any) -> int:
    """One axis of an array, as a number from 0 on; it raises as `check_axes`."""
    return check_int("axis", axis, -x.ndim, x.ndim - 1) % x.ndim


def check_numbers(x: Any, axes: Axes) -> None:
    """Refuses an array x without numbers along axes."""
    for axis in axes:
        if x.shape[axis] == 0:
            raise ValueError(f"x has shape {tuple(x.shape)}; allowed is at least one number along axis {axis}")


def size(x: Any, axes: Axes) -> int:
    """How many elements there are along axes."""
    return prod([x.shape[axis] for axis in axes])


def mean(xp: Any, x: Any, axes: Axes) -> Any:
    """The sum, rounded to float32, divided by the number of elements."""
    return xp.div(total(xp, x, axes), float(size(x, axes)))


def greatest(xp: Any, x: Any, axes: Axes) -> Any:
    """The greatest numbers along axes, which stay; a zero is +0."""
    found = xp.greatest(x, axes)
    return xp.where(found == 0, 0.0, found)


def _reduction(forward: Callable[..., Any], backward: Callable[..., Any], by_pieces: bool = False) -> Differentiable:
    """The law of forward(xp, x, axes) and of backward(xp, x, result, gradient, axes), with axes of length 1 kept."""

    def run(xp: Any, x: Any, axes: Axes, keepdims: bool, **options: Any) -> tuple[Any, tuple[Any, Any]]:
        found = forward(xp, x, axes, **options)
        return found if keepdims else squeezed(found, axes), (x, found)

    def gradients(xp: Any, saved: tuple[Any, Any], gradient: Any, axes: Axes, keepdims: bool, **options: Any) -> Any:
        gradient = gradient if keepdims else expanded(gradient, axes, saved[0].ndim)
        found = backward(xp, *saved, gradient, axes, **options)
        return (xp.broadcast_to(found, tuple(saved[0].shape)),)

    return Differentiable(run, gradients, by_pieces)


def _divisor(x: Any, axes: Axes, correction: int) -> float:
    return float(max(size(x, axes) - correction, 0))


def _variance(xp: Any, x: Any, axes: Axes, correction: int) -> Any:
    centred = xp.sub(x, mean(xp, x, axes))
    return xp.div(dot(xp, centred, centred, axes), _divisor(x, axes, correction))


def _of_variance(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes, correction: int) -> Any:
    centred = xp.sub(x, mean(xp, x, axes))
    return xp.mul(centred, xp.div(xp.mul(gradient, 2.0), _divisor(x, axes, correction)))


def _of_norm(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes) -> Any:
    return xp.mul(gradient, xp.where(found == 0, 0.0, xp.div(x, found)))


def _of_greatest(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes) -> Any:
    """Shared by all that are as great."""
    chosen = x == found
    count = total(xp, xp.where(chosen, 1.0, xp.zeros(tuple(x.shape), x)), axes)
    return xp.where(chosen, xp.div(gradient, count), 0.0)


def _logsumexp(xp: Any, x: Any, axes: Axes) -> Any:
    most = xp.greatest(x, axes)
    most = xp.where(abs(most) == inf, 0.0, most)
    return xp.add(most, log(xp, total(xp, exp(xp, xp.sub(x, most)), axes)))


def _of_logsumexp(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes) -> Any:
    return xp.mul(gradient, exp(xp, xp.sub(x, found)))


SUM = _reduction(total, lambda xp, x, found, gradient, axes: gradient, by_pieces=True)
MEAN = _reduction(mean, lambda xp, x, found, gradient, axes: xp.div(gradient, float(size(x, axes))), by_pieces=True)
VAR = _reduction(_variance, _of_variance)
NORM = _reduction(lambda xp, x, axes: xp.sqrt(dot(xp, x, x, axes)), _of_norm)
MAX = _reduction(greatest, _of_greatest, by_pieces=True)
LOGSUMEXP = _reduction(_logsumexp, _of_logsumexp)
