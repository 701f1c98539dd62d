"""Functions of one float32 number in pieces, each operation rounded to float32, and their derivatives.

A number that is NaN is NaN in the result, and its derivative is.
"""

from __future__ import annotations

from typing import Any

from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary.laws import PARTS, elementwise
from qcore.reproducible.sums import unbroadcast


def _chosen(xp: Any, condition: Any, value: Any, x: Any, other: float) -> Any:
    """A value where a condition holds, another one elsewhere, and NaN where x is NaN."""
    return xp.where(condition, value, xp.where(x == x, other, x))


def _absolute_slope(xp: Any, x: Any) -> Any:
    return xp.where(x < 0, -1.0, _chosen(xp, x > 0, 1.0, x, 0.0))


def _leaky(xp: Any, x: Any, slope: float) -> Any:
    return xp.where(x > 0, x, xp.mul(x, slope))


def _leaky_slope(xp: Any, x: Any, slope: float) -> Any:
    return _chosen(xp, x > 0, 1.0, x, slope)


def _clamped(xp: Any, x: Any, low: float, high: float, ends: bool) -> Any:
    return xp.where(x < low, low, xp.where(x > high, high, x))


def _clamped_slope(xp: Any, x: Any, low: float, high: float, ends: bool) -> Any:
    """At the ends it is 1 if they belong to the inner piece, else 0."""
    inside = (x >= low) & (x <= high) if ends else (x > low) & (x < high)
    return _chosen(xp, inside, 1.0, x, 0.0)


def _hard_sigmoid(xp: Any, x: Any) -> Any:
    return xp.where(x <= -3, 0.0, xp.where(x >= 3, 1.0, xp.div(xp.add(x, 3.0), 6.0)))


def _hard_sigmoid_slope(xp: Any, x: Any) -> Any:
    return _chosen(xp, (x > -3) & (x < 3), 1 / 6, x, 0.0)


def _hard_swish(xp: Any, x: Any) -> Any:
    return xp.where(x <= -3, 0.0, xp.mul(x, _hard_sigmoid(xp, x)))


def _hard_swish_slope(xp: Any, x: Any) -> Any:
    return xp.where(x <= -3, 0.0, xp.where(x >= 3, 1.0, xp.add(xp.div(x, 3.0), 0.5)))


def _elu(xp: Any, x: Any, positive: float, negative: float, divisor: float) -> Any:
    below = xp.mul(PARTS["expm1"](xp, xp.div(x, divisor)), negative)
    return xp.where(x > 0, xp.mul(x, positive), below)


def _elu_slope(xp: Any, x: Any, positive: float, negative: float, divisor: float) -> Any:
    below = xp.mul(PARTS["exp"](xp, xp.div(x, divisor)), negative / divisor)
    return xp.where(x > 0, positive, below)


def _prelu(xp: Any, x: Any, weight: Any) -> tuple[Any, tuple[Any, Any]]:
    return xp.where(x > 0, x, xp.mul(x, weight)), (x, weight)


def _of_prelu(xp: Any, saved: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
    x, weight = saved
    of_x = xp.where(x > 0, gradient, xp.mul(gradient, weight))
    of_weight = xp.where(x > 0, xp.zeros((), gradient), xp.mul(gradient, x))
    return of_x, unbroadcast(xp, of_weight, weight.shape)


PIECEWISE = {
    "abs": elementwise(lambda xp, x: abs(x), _absolute_slope, by_pieces=True),
    "leaky_relu": elementwise(_leaky, _leaky_slope, by_pieces=True),
    "clamp": elementwise(_clamped, _clamped_slope, by_pieces=True),
    "hardsigmoid": elementwise(_hard_sigmoid, _hard_sigmoid_slope, by_pieces=True),
    "hardswish": elementwise(_hard_swish, _hard_swish_slope),
    "elu": elementwise(_elu, _elu_slope),
}
PRELU = Differentiable(_prelu, _of_prelu)
