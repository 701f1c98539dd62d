"""Operations of two float32 arrays that broadcast, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary.laws import PARTS
from qcore.reproducible.sums import unbroadcast


def _binary(
    forward: Callable[..., Any], backward: Callable[..., tuple[Any, Any]], fusible: bool = True
) -> Differentiable:
    """The law of forward(xp, a, b), and of gradients backward(xp, a, b, gradient) that have the result's shape."""

    def run(xp: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, Any]]:
        return forward(xp, a, b), (a, b)

    def gradients(xp: Any, saved: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
        of_a, of_b = backward(xp, *saved, gradient)
        return unbroadcast(xp, of_a, saved[0].shape), unbroadcast(xp, of_b, saved[1].shape)

    return Differentiable(run, gradients, fusible=fusible)


def _sum(forward: Callable[..., Any], sign: Callable[[Any], Any]) -> Differentiable:
    """The law of forward(xp, a, b), whose gradient is that of a, and with a sign that of b.

    What has the result's shape is not saved: nothing but shapes is read of a and b.
    """

    def run(xp: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, Any]]:
        found = forward(xp, a, b)
        a, b = (None if tuple(x.shape) == tuple(found.shape) else x for x in (a, b))
        return found, (a, b)

    def gradients(xp: Any, saved: tuple[Any, Any], gradient: Any) -> tuple[Any, ...]:
        pairs = zip((gradient, sign(gradient)), saved, strict=True)
        return tuple([found if x is None else unbroadcast(xp, found, x.shape) for found, x in pairs])

    return Differentiable(run, gradients, by_pieces=True)


def _of_quotient(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    of_a = xp.div(gradient, b)
    return of_a, -xp.mul(of_a, xp.div(a, b))


def _of_power(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    """No gradient for a where b is 0, none for b where a is 0."""
    slope = xp.mul(b, xp.power(a, xp.sub(b, 1.0)))
    change = xp.mul(xp.power(a, b), PARTS["log"](xp, a))
    of_a = xp.mul(gradient, xp.where(b == 0, 0.0, slope))
    return of_a, xp.mul(gradient, xp.where(a == 0, 0.0, change))


def _greater(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a >= b) | (a != a), a, b)


def _lesser(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a <= b) | (a != a), a, b)


def _of_greater(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    """Equal numbers share the gradient."""
    equal = xp.where(a == b, xp.mul(gradient, 0.5), 0.0)
    return xp.where(a > b, gradient, equal), xp.where(a < b, gradient, equal)


def _of_lesser(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    """b > a says that a is the lesser one."""
    return _of_greater(xp, b, a, gradient)


ADD = _sum(lambda xp, a, b: xp.add(a, b), lambda gradient: gradient)
SUB = _sum(lambda xp, a, b: xp.sub(a, b), lambda gradient: -gradient)
MUL = _binary(lambda xp, a, b: xp.mul(a, b), lambda xp, a, b, gradient: (xp.mul(gradient, b), xp.mul(gradient, a)))
DIV = _binary(lambda xp, a, b: xp.div(a, b), _of_quotient)
POW = _binary(lambda xp, a, b: xp.power(a, b), _of_power, fusible=False)
MAXIMUM = _binary(_greater, _of_greater)
MINIMUM = _binary(_lesser, _of_lesser)
