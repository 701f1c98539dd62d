"""Functions of one float32 number and their derivatives: each is evaluated in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore.numerics.differentiable import Differentiable

Function = Callable[[Any, Any], Any]  # (xp, float64 numbers) -> float64 numbers


def of_one(function: Function, derivative: Function) -> Differentiable:
    """The law of a function and its derivative, both of ONE float32 number: the gradient is one product."""

    def forward(xp: Any, x: Any) -> tuple[Any, tuple[Any]]:
        return xp.narrow(function(xp, xp.wide(x))), (x,)

    def backward(xp: Any, saved: tuple[Any], gradient: Any) -> tuple[Any]:
        return (xp.mul(gradient, xp.narrow(derivative(xp, xp.wide(saved[0])))),)

    return Differentiable(forward, backward)


def _exp(xp: Any, x: Any) -> Any:
    return xp.exp(x)


EXP = of_one(_exp, _exp)
