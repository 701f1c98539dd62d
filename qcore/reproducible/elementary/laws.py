"""Functions of one float32 number and their derivatives: evaluated in float64, and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary.gelu import gelu_tanh, gelu_tanh_slope
from qcore.reproducible.elementary.normal import erf, erf_slope, gelu, gelu_slope
from qcore.reproducible.elementary.polynomials import expm1
from qcore.reproducible.elementary.sigmoid import sigmoid, sigmoid_slope, silu, silu_slope, softplus

Function = Callable[[Any, Any], Any]  # (xp, numbers) -> numbers


def rounded(function: Function) -> Function:
    """A function of float64 numbers as one of float32 numbers."""
    return lambda xp, x: xp.narrow(function(xp, xp.wide(x)))


def elementwise(
    function: Callable[..., Any], derivative: Callable[..., Any], by_pieces: bool = False
) -> Differentiable:
    """The law of a function (xp, x, **options) of ONE float32 number and its derivative; the gradient is a product."""

    def forward(xp: Any, x: Any, **options: Any) -> tuple[Any, tuple[Any]]:
        return function(xp, x, **options), (x,)

    def backward(xp: Any, saved: tuple[Any], gradient: Any, **options: Any) -> tuple[Any]:
        return (xp.mul(gradient, derivative(xp, saved[0], **options)),)

    return Differentiable(forward, backward, by_pieces)


IN_FLOAT64: dict[str, Function] = {
    "exp": lambda xp, x: xp.exp(x),
    "expm1": expm1,
    "log": lambda xp, x: xp.log(x),
    "log1p": lambda xp, x: xp.log1p(x),
    "log1p_slope": lambda xp, x: 1.0 / (1.0 + x),
    "tanh": lambda xp, x: xp.tanh(x),
    "tanh_slope": lambda xp, x: 4.0 * sigmoid_slope(xp, 2.0 * x),
    "sigmoid": sigmoid,
    "sigmoid_slope": sigmoid_slope,
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
    "softplus": softplus,
    "silu": silu,
    "silu_slope": silu_slope,
    "gelu": gelu,
    "gelu_slope": gelu_slope,
    "gelu_tanh": gelu_tanh,
    "gelu_tanh_slope": gelu_tanh_slope,
}
PARTS = {name: rounded(function) for name, function in IN_FLOAT64.items()}


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
    "relu": elementwise(_relu, _step, by_pieces=True),
} | {
    name: elementwise(PARTS[name], PARTS[f"{name}_slope"])
    for name in ("log1p", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "reciprocal", "silu", "gelu", "gelu_tanh")
}
