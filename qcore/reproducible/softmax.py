"""Softmax, its logarithm, and losses; `axis` is a number from 0 on."""

from __future__ import annotations

from math import nan, prod
from typing import Any

from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.reductions import exp, log
from qcore.reproducible.sums import dot, squeezed, total

IGNORED = -100  # the target that does not count, as in torch


def _softmax(xp: Any, x: Any, axis: int) -> tuple[Any, tuple[Any]]:
    e = exp(xp, xp.sub(x, xp.greatest(x, (axis,))))
    y = xp.div(e, total(xp, e, (axis,)))
    return y, (y,)


def _of_softmax(xp: Any, saved: tuple[Any], gradient: Any, axis: int) -> tuple[Any]:
    (y,) = saved
    return (xp.mul(y, xp.sub(gradient, dot(xp, y, gradient, (axis,)))),)


def log_softmax(xp: Any, x: Any, axis: int) -> tuple[Any, tuple[Any]]:
    """x - max - log(sum), and what its gradient needs."""
    shifted = xp.sub(x, xp.greatest(x, (axis,)))
    y = xp.sub(shifted, log(xp, total(xp, exp(xp, shifted), (axis,))))
    return y, (y,)


def _of_log_softmax(xp: Any, saved: tuple[Any], gradient: Any, axis: int) -> tuple[Any]:
    return (xp.sub(gradient, xp.mul(exp(xp, saved[0]), total(xp, gradient, (axis,)))),)


def _cross_entropy(xp: Any, x: Any, target: Any, axis: int) -> tuple[Any, tuple[Any, ...]]:
    logarithms, _ = log_softmax(xp, x, axis)
    axes, zeros = tuple(range(x.ndim)), xp.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x)
    ignored, known = _kinds_of(xp, target, x, axis)
    counted = total(xp, xp.where(ignored, zeros, 1.0), axes)
    terms = xp.where(known, xp.where(_chosen(xp, x, target, axis), logarithms, 0.0), nan)
    sum_ = total(xp, xp.where(ignored, 0.0, terms), axes)
    return squeezed(-xp.div(sum_, counted), axes), (logarithms, target, counted)


def _of_cross_entropy(xp: Any, saved: tuple[Any, ...], gradient: Any, axis: int) -> tuple[Any, None]:
    logarithms, target, counted = saved
    share = xp.div(gradient, counted)
    chosen = _chosen(xp, logarithms, target, axis)
    probability = exp(xp, logarithms)
    difference = xp.where(chosen, xp.sub(probability, 1.0), probability)
    ignored, known = _kinds_of(xp, target, logarithms, axis)
    return xp.where(ignored, 0.0, xp.where(known, xp.mul(difference, share), nan)), None


def _kinds_of(xp: Any, target: Any, x: Any, axis: int) -> tuple[Any, Any]:
    """Which targets do not count, and which of the others are classes."""
    numbers = xp.to_float64(_beside(target, x, axis))  # int8 may not have the number of classes
    return numbers == IGNORED, (numbers >= 0) & (numbers < x.shape[axis])


def _beside(target: Any, x: Any, axis: int) -> Any:
    return target.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def _chosen(xp: Any, x: Any, target: Any, axis: int) -> Any:
    """Where the classes along an axis are the targets."""
    classes = xp.arange(x.shape[axis], x).reshape((-1, *(1,) * (x.ndim - 1 - axis)))
    return _beside(target, x, axis) == classes


def _mean_squared_error(xp: Any, x: Any, target: Any) -> tuple[Any, tuple[Any]]:
    difference, axes = xp.sub(x, target), tuple(range(x.ndim))
    return squeezed(xp.div(dot(xp, difference, difference, axes), float(prod(x.shape))), axes), (difference,)


def _of_mean_squared_error(xp: Any, saved: tuple[Any], gradient: Any) -> tuple[Any, Any]:
    (difference,) = saved
    found = xp.mul(difference, xp.div(xp.mul(gradient, 2.0), float(prod(difference.shape))))
    return found, -found


SOFTMAX = Differentiable(_softmax, _of_softmax)
LOG_SOFTMAX = Differentiable(log_softmax, _of_log_softmax)
CROSS_ENTROPY = Differentiable(_cross_entropy, _of_cross_entropy)
MSE = Differentiable(_mean_squared_error, _of_mean_squared_error)
