"""Functions of one float32 number and their derivatives.

Those in `PARTS` are evaluated in float64 and rounded once. What would cancel in float64 is put together of such parts
and of defined operations instead.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.elementary.normal import density, distribution, erf, erf_slope
from qcore.numerics.elementary.polynomials import expm1

Function = Callable[[Any, Any], Any]  # (xp, numbers) -> numbers

_CUBE = 0.044715  # of gelu_tanh: u = sqrt(2 / pi) * (x + _CUBE * x^3)
_TWICE = 2 * sqrt(2 / pi)


def rounded(function: Function) -> Function:
    """A function of float64 numbers as one of float32 numbers."""
    return lambda xp, x: xp.narrow(function(xp, xp.wide(x)))


def elementwise(function: Function, derivative: Function) -> Differentiable:
    """The law of a function of ONE float32 number and its derivative: the gradient is one product."""

    def forward(xp: Any, x: Any) -> tuple[Any, tuple[Any]]:
        return function(xp, x), (x,)

    def backward(xp: Any, saved: tuple[Any], gradient: Any) -> tuple[Any]:
        return (xp.mul(gradient, derivative(xp, saved[0])),)

    return Differentiable(forward, backward)


def _softplus(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, x, 0.0) + xp.log1p(xp.exp(-abs(x)))


def _sigmoid(xp: Any, x: Any) -> Any:
    """Near 0 it is 1/2 + x/4 - x^3/48, whose cube float64 loses: many of these sums are the middle of two numbers.

    There an exact product, a little smaller than x/4, lies on the cube's side of the middle, and passes no other one.
    """
    return xp.where(abs(x) < 2.0**-12, 0.5 + x * (0.25 - 2.0**-29), 1.0 / (1.0 + xp.exp(-x)))


def _bell(xp: Any, x: Any) -> Any:
    """The derivative of the sigmoid."""
    e = xp.exp(-abs(x))
    return e / ((1.0 + e) * (1.0 + e))


IN_FLOAT64: dict[str, Function] = {
    "exp": lambda xp, x: xp.exp(x),
    "expm1": expm1,
    "log": lambda xp, x: xp.log(x),
    "log1p": lambda xp, x: xp.log1p(x),
    "log1p_slope": lambda xp, x: 1.0 / (1.0 + x),
    "tanh": lambda xp, x: xp.tanh(x),
    "tanh_slope": lambda xp, x: 4.0 * _bell(xp, 2.0 * x),
    "sigmoid": _sigmoid,
    "sigmoid_slope": _bell,
    "erf": erf,
    "erf_slope": erf_slope,
    "sin": lambda xp, x: xp.sin(x),
    "cos": lambda xp, x: xp.cos(x),
    "sqrt": lambda xp, x: xp.root(x),
    "sqrt_slope": lambda xp, x: 0.5 / xp.root(x),
    "rsqrt": lambda xp, x: 1.0 / xp.root(x),
    "rsqrt_slope": lambda xp, x: -0.5 / (x * xp.root(x)),
    "reciprocal": lambda xp, x: 1.0 / x,
    "reciprocal_slope": lambda xp, x: -1.0 / (x * x),
    "softplus": _softplus,
    "silu": lambda xp, x: x / (1.0 + xp.exp(-x)),
    "normal_distribution": distribution,
    "normal_density": density,
}
PARTS = {name: rounded(function) for name, function in IN_FLOAT64.items()}


def _silu_slope(xp: Any, x: Any) -> Any:
    return xp.add(PARTS["sigmoid"](xp, x), xp.mul(x, PARTS["sigmoid_slope"](xp, x)))


def _gelu(xp: Any, x: Any) -> Any:
    return xp.mul(x, PARTS["normal_distribution"](xp, x))


def _gelu_slope(xp: Any, x: Any) -> Any:
    return xp.add(PARTS["normal_distribution"](xp, x), xp.mul(x, PARTS["normal_density"](xp, x)))


def _gelu_argument(xp: Any, x: Any) -> Any:
    """2u."""
    return xp.mul(xp.add(x, xp.mul(xp.mul(xp.mul(x, x), x), _CUBE)), _TWICE)


def _gelu_tanh(xp: Any, x: Any) -> Any:
    """1 + tanh(u) is 2 sigmoid(2u)."""
    return xp.mul(x, PARTS["sigmoid"](xp, _gelu_argument(xp, x)))


def _gelu_tanh_slope(xp: Any, x: Any) -> Any:
    argument = _gelu_argument(xp, x)
    slope = xp.mul(xp.add(xp.mul(xp.mul(x, x), 3 * _CUBE), 1.0), _TWICE)
    bell = xp.mul(xp.mul(x, slope), PARTS["sigmoid_slope"](xp, argument))
    return xp.add(PARTS["sigmoid"](xp, argument), xp.where(abs(argument) < 200.0, bell, 0.0))


def _relu(xp: Any, x: Any) -> Any:
    return xp.where(x <= 0, 0.0, x)


def _step(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, 1.0, xp.where(x == x, 0.0, x))


def _negative_sine(xp: Any, x: Any) -> Any:
    return -PARTS["sin"](xp, x)


ELEMENTARY = {
    "exp": elementwise(PARTS["exp"], PARTS["exp"]),
    "expm1": elementwise(PARTS["expm1"], PARTS["exp"]),
    "log": elementwise(PARTS["log"], PARTS["reciprocal"]),
    "sin": elementwise(PARTS["sin"], PARTS["cos"]),
    "cos": elementwise(PARTS["cos"], _negative_sine),
    "softplus": elementwise(PARTS["softplus"], PARTS["sigmoid"]),
    "silu": elementwise(PARTS["silu"], _silu_slope),
    "gelu": elementwise(_gelu, _gelu_slope),
    "gelu_tanh": elementwise(_gelu_tanh, _gelu_tanh_slope),
    "relu": elementwise(_relu, _step),
} | {
    name: elementwise(PARTS[name], PARTS[f"{name}_slope"])
    for name in ("log1p", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "reciprocal")
}
