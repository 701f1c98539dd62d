"""The logistic sigmoid, and functions that are made of it, of float64 numbers."""

from __future__ import annotations

from typing import Any

_NEAR = 2.0**-12


def sigmoid(xp: Any, x: Any) -> Any:
    """Near 0 it is 1/2 + x/4 - x^3/48, whose cube float64 loses: many of these sums are the middle of two numbers.

    There an exact product, a little smaller than x/4, lies on the cube's side of the middle, and passes no other one.
    """
    return xp.near_zero(x, _NEAR, 0.5 + x * (0.25 - 2.0**-29), 1.0 / (1.0 + xp.exp(-x)))


def sigmoid_slope(xp: Any, x: Any) -> Any:
    e = _decay(xp, x)
    return e / ((1.0 + e) * (1.0 + e))


def silu(xp: Any, x: Any) -> Any:
    return x / (1.0 + xp.exp(-x))


def silu_slope(xp: Any, x: Any) -> Any:
    """Near 0 it is 1/2 + x/2 - x^3/12: as `sigmoid` there."""
    beyond = times_sigmoid_slope(xp, x, x)
    return xp.near_zero(x, _NEAR, 0.5 + x * (0.5 - 2.0**-28), beyond)


def times_sigmoid_slope(xp: Any, argument: Any, change: Any) -> Any:
    """The derivative of x sigmoid(argument), where `change` is x times the argument's derivative.

    Below zero the exponential is a factor of the sum, which so keeps its sign where it underflows.
    """
    e = _decay(xp, argument)
    above, below = 1.0 + e + xp.product(change, e), e * (1.0 + e + change)
    return xp.where(argument < 0, below, above) / ((1.0 + e) * (1.0 + e))


def _decay(xp: Any, x: Any) -> Any:
    """exp(-|x|), with a derivative at zero, where that of the absolute value would be 0."""
    return xp.exp(xp.where(x < 0, x, -x))


def softplus(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, x, 0.0) + xp.log1p(xp.exp(-abs(x)))
