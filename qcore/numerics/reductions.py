"""Reductions along axes, in the order of `qcore.numerics.sums`; axes are numbers from 0 on, in ascending order."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.elementary.laws import PARTS
from qcore.numerics.sums import dot, expanded, squeezed, total

Axes = tuple[int, ...]

exp, log = PARTS["exp"], PARTS["log"]


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


def _reduction(forward: Callable[..., Any], backward: Callable[..., Any]) -> Differentiable:
    """The law of forward(xp, x, axes) and of backward(xp, x, result, gradient, axes), with axes of length 1 kept."""

    def run(xp: Any, x: Any, axes: Axes, keepdims: bool, **options: Any) -> tuple[Any, tuple[Any, Any]]:
        found = forward(xp, x, axes, **options)
        return found if keepdims else squeezed(found, axes), (x, found)

    def gradients(xp: Any, saved: tuple[Any, Any], gradient: Any, axes: Axes, keepdims: bool, **options: Any) -> Any:
        gradient = gradient if keepdims else expanded(gradient, axes, saved[0].ndim)
        found = backward(xp, *saved, gradient, axes, **options)
        return (xp.broadcast_to(found, tuple(saved[0].shape)),)

    return Differentiable(run, gradients)


def _variance(xp: Any, x: Any, axes: Axes, correction: int) -> Any:
    centred = xp.sub(x, mean(xp, x, axes))
    return xp.div(dot(xp, centred, centred, axes), float(size(x, axes) - correction))


def _of_variance(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes, correction: int) -> Any:
    centred = xp.sub(x, mean(xp, x, axes))
    return xp.mul(centred, xp.div(xp.mul(gradient, 2.0), float(size(x, axes) - correction)))


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


SUM = _reduction(total, lambda xp, x, found, gradient, axes: gradient)
MEAN = _reduction(mean, lambda xp, x, found, gradient, axes: xp.div(gradient, float(size(x, axes))))
VAR = _reduction(_variance, _of_variance)
NORM = _reduction(lambda xp, x, axes: xp.sqrt(dot(xp, x, x, axes)), _of_norm)
MAX = _reduction(greatest, _of_greatest)
LOGSUMEXP = _reduction(_logsumexp, _of_logsumexp)
