"""Layer norm, RMS norm and batch norm; axes are numbers from 0 on, in ascending order."""

from __future__ import annotations

from typing import Any

from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.reductions import Axes, mean, size
from qcore.reproducible.sums import dot, total


def _scaled(xp: Any, h: Any, weight: Any, bias: Any) -> Any:
    h = h if weight is None else xp.mul(h, weight)
    return h if bias is None else xp.add(h, bias)


def _inward(xp: Any, h: Any, root: Any, gradient: Any, axes: Axes, centred: bool) -> Any:
    """The gradient of what was centred (if it was) and divided by its root to become h."""
    count = float(size(h, axes))
    along = xp.mul(h, xp.div(dot(xp, gradient, h, axes), count))
    gradient = xp.sub(gradient, mean(xp, gradient, axes)) if centred else gradient
    return xp.div(xp.sub(gradient, along), root)


def _of_parameters(xp: Any, h: Any, gradient: Any, weight: Any, has_bias: bool, axes: Axes) -> tuple[Any, Any]:
    """The gradients of weight and bias, which lie along all axes but these."""
    kept = tuple([size for axis, size in enumerate(h.shape) if axis not in axes])
    of_weight = None if weight is None else dot(xp, gradient, h, axes).reshape(kept)
    return of_weight, total(xp, gradient, axes).reshape(kept) if has_bias else None


def _layer_norm(xp: Any, x: Any, weight: Any, bias: Any, axes: Axes, eps: float, centred: bool) -> Any:
    """centred=False is RMS norm."""
    c = xp.sub(x, mean(xp, x, axes)) if centred else x
    root = xp.sqrt(xp.add(xp.div(dot(xp, c, c, axes), float(size(x, axes))), eps))
    h = xp.div(c, root)
    return _scaled(xp, h, weight, bias), (h, root, weight, bias)


def _of_layer_norm(xp: Any, saved: Any, gradient: Any, axes: Axes, eps: float, centred: bool) -> tuple[Any, ...]:
    h, root, weight, bias = saved
    others = tuple([axis for axis in range(h.ndim) if axis not in axes])
    of_parameters = _of_parameters(xp, h, gradient, weight, bias is not None, others)
    gradient = gradient if weight is None else xp.mul(gradient, weight)
    return _inward(xp, h, root, gradient, axes, centred), *of_parameters


def _batch_norm(xp: Any, x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, tuple[Any, ...]]:
    axes, shape = _channels(x)
    centre = mean(xp, x, axes)
    c = xp.sub(x, centre)
    squares = dot(xp, c, c, axes)
    count = size(x, axes)
    variance = xp.div(squares, float(count))
    root = xp.sqrt(xp.add(variance, eps))
    h = xp.div(c, root)
    weight, bias = (None if p is None else p.reshape(shape) for p in (weight, bias))
    unbiased = xp.div(squares, float(max(count - 1, 1)))
    return (_scaled(xp, h, weight, bias), centre.reshape((-1,)), unbiased.reshape((-1,))), (h, root, weight, bias)


def _of_batch_norm(xp: Any, saved: Any, gradients: Any, eps: float) -> tuple[Any, ...]:
    """Only the gradient of y counts: statistics are no function of parameters that are trained."""
    h, root, weight, bias = saved
    gradient, axes = gradients[0], _channels(h)[0]
    of_parameters = _of_parameters(xp, h, gradient, weight, bias is not None, axes)
    gradient = gradient if weight is None else xp.mul(gradient, weight)
    return _inward(xp, h, root, gradient, axes, True), *of_parameters


def _normalize(xp: Any, x: Any, centre: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Any:
    shape = _channels(x)[1]
    centre, variance = centre.reshape(shape), variance.reshape(shape)
    weight, bias = (None if p is None else p.reshape(shape) for p in (weight, bias))
    root = xp.sqrt(xp.add(variance, eps))
    h = xp.div(xp.sub(x, centre), root)
    return _scaled(xp, h, weight, bias), (h, root, weight, bias)


def _of_normalize(xp: Any, saved: Any, gradient: Any, eps: float) -> tuple[Any, ...]:
    h, root, weight, bias = saved
    of_parameters = _of_parameters(xp, h, gradient, weight, bias is not None, _channels(h)[0])
    gradient = gradient if weight is None else xp.mul(gradient, weight)
    return xp.div(gradient, root), None, None, *of_parameters


def _channels(x: Any) -> tuple[Axes, tuple[int, ...]]:
    """All axes but the channels' second one, and the shape that channels have beside x."""
    return (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))


def moving_average(xp: Any, old: Any, new: Any, momentum: float) -> Any:
    """(1 - momentum) * old + momentum * new."""
    return xp.add(xp.mul(old, 1.0 - momentum), xp.mul(new, momentum))


LAYER_NORM = Differentiable(_layer_norm, _of_layer_norm)
BATCH_NORM = Differentiable(_batch_norm, _of_batch_norm)
NORMALIZE = Differentiable(_normalize, _of_normalize)
MOVING_AVERAGE = Differentiable(
    lambda xp, old, new, momentum: (moving_average(xp, old, new, momentum), ()),
    lambda xp, saved, gradient, momentum: (None, None),
)
