"""Functions of one float32 number and their derivatives: each is evaluated in float64 and rounded once.

What would cancel in float64 is put together of such functions and of defined operations instead.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.elementary.normal import density, distribution, erf
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


def _in_one_go(function: Function, derivative: Function) -> Differentiable:
    return elementwise(rounded(function), rounded(derivative))


def _exp(xp: Any, x: Any) -> Any:
    return xp.exp(x)


def _sigmoid(xp: Any, x: Any) -> Any:
    return 1.0 / (1.0 + xp.exp(-x))


def _bell(xp: Any, x: Any) -> Any:
    """The derivative of the sigmoid."""
    e = xp.exp(-abs(x))
    return e / ((1.0 + e) * (1.0 + e))


sigmoid, sigmoid_slope = rounded(_sigmoid), rounded(_bell)


def _silu_slope(xp: Any, x: Any) -> Any:
    return xp.add(sigmoid(xp, x), xp.mul(x, sigmoid_slope(xp, x)))


def _gelu(xp: Any, x: Any) -> Any:
    return xp.mul(x, distribution(xp, x))


def _gelu_slope(xp: Any, x: Any) -> Any:
    return xp.add(distribution(xp, x), xp.mul(x, density(xp, x)))


def _gelu_argument(xp: Any, x: Any) -> Any:
    """2u, and the sum in it: x + 0.044715 x^3."""
    return xp.mul(xp.add(x, xp.mul(xp.mul(xp.mul(x, x), x), _CUBE)), _TWICE)


def _gelu_tanh(xp: Any, x: Any) -> Any:
    """1 + tanh(u) is 2 sigmoid(2u)."""
    return xp.mul(x, sigmoid(xp, _gelu_argument(xp, x)))


def _gelu_tanh_slope(xp: Any, x: Any) -> Any:
    argument = _gelu_argument(xp, x)
    slope = xp.mul(xp.add(xp.mul(xp.mul(x, x), 3 * _CUBE), 1.0), _TWICE)
    bell = xp.mul(xp.mul(x, slope), sigmoid_slope(xp, argument))
    return xp.add(sigmoid(xp, argument), xp.where(abs(argument) < 200.0, bell, 0.0))


def _relu(xp: Any, x: Any) -> Any:
    return xp.where(x <= 0, 0.0, x)


def _step(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, 1.0, xp.where(x == x, 0.0, x))


EXP = _in_one_go(_exp, _exp)
EXPM1 = _in_one_go(expm1, _exp)
LOG = _in_one_go(lambda xp, x: xp.log(x), lambda xp, x: 1.0 / x)
LOG1P = _in_one_go(lambda xp, x: xp.log1p(x), lambda xp, x: 1.0 / (1.0 + x))
TANH = _in_one_go(lambda xp, x: xp.tanh(x), lambda xp, x: 4.0 * _bell(xp, 2.0 * x))
SIGMOID = elementwise(sigmoid, sigmoid_slope)
ERF = _in_one_go(erf, lambda xp, x: xp.exp(-(x * x)) * (2 / sqrt(pi)))
SIN = _in_one_go(lambda xp, x: xp.sin(x), lambda xp, x: xp.cos(x))
COS = _in_one_go(lambda xp, x: xp.cos(x), lambda xp, x: -xp.sin(x))
SQRT = _in_one_go(lambda xp, x: xp.root(x), lambda xp, x: 0.5 / xp.root(x))
RSQRT = _in_one_go(lambda xp, x: 1.0 / xp.root(x), lambda xp, x: -0.5 / (x * xp.root(x)))
RECIPROCAL = _in_one_go(lambda xp, x: 1.0 / x, lambda xp, x: -1.0 / (x * x))
SOFTPLUS = elementwise(rounded(lambda xp, x: xp.where(x > 0, x, 0.0) + xp.log1p(xp.exp(-abs(x)))), sigmoid)
SILU = elementwise(rounded(lambda xp, x: x / (1.0 + xp.exp(-x))), _silu_slope)
GELU = elementwise(_gelu, _gelu_slope)
GELU_TANH = elementwise(_gelu_tanh, _gelu_tanh_slope)
RELU = elementwise(_relu, _step)

ELEMENTARY = {
    "exp": EXP,
    "expm1": EXPM1,
    "log": LOG,
    "log1p": LOG1P,
    "tanh": TANH,
    "sigmoid": SIGMOID,
    "erf": ERF,
    "sin": SIN,
    "cos": COS,
    "sqrt": SQRT,
    "rsqrt": RSQRT,
    "reciprocal": RECIPROCAL,
    "softplus": SOFTPLUS,
    "silu": SILU,
    "gelu": GELU,
    "gelu_tanh": GELU_TANH,
    "relu": RELU,
}
