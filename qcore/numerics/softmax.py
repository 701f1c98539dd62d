"""Softmax and its kin."""

from __future__ import annotations

from typing import Any

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.sums import dot, total


def _sum(xp: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> tuple[Any, tuple[Any]]:
    found = total(xp, x, axes)
    return found if keepdims else squeezed(found, axes), (x,)


def _sum_gradient(xp: Any, saved: tuple[Any], gradient: Any, axes: tuple[int, ...], keepdims: bool) -> tuple[Any]:
    return (xp.broadcast_to(expanded(gradient, axes, saved[0].ndim), tuple(saved[0].shape)),)


SUM = Differentiable(_sum, _sum_gradient)


def _softmax(xp: Any, x: Any, axis: int) -> tuple[Any, tuple[Any]]:
    e = xp.narrow(xp.exp(xp.wide(xp.sub(x, xp.greatest(x, (axis,))))))
    y = xp.div(e, total(xp, e, (axis,)))
    return y, (y,)


def _softmax_gradient(xp: Any, saved: tuple[Any], gradient: Any, axis: int) -> tuple[Any]:
    (y,) = saved
    return (xp.mul(y, xp.sub(gradient, dot(xp, y, gradient, (axis,)))),)


SOFTMAX = Differentiable(_softmax, _softmax_gradient)


def squeezed(x: Any, axes: tuple[int, ...]) -> Any:
    """x without axes of length 1."""
    gone = {axis % x.ndim for axis in axes}
    return x.reshape(tuple(size for axis, size in enumerate(x.shape) if axis not in gone))


def expanded(x: Any, axes: tuple[int, ...], ndim: int) -> Any:
    """The inverse of `squeezed`, also of what was not."""
    if x.ndim == ndim:
        return x
    gone, sizes = {axis % ndim for axis in axes}, iter(x.shape)
    return x.reshape(tuple(1 if axis in gone else next(sizes) for axis in range(ndim)))
