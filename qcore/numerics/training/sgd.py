"""A step of stochastic gradient descent; every operation is rounded to float32."""

from __future__ import annotations

from typing import Any

from qcore.numerics.differentiable import Differentiable


def _sgd(
    xp: Any, p: Any, gradient: Any, velocity: Any, rate: Any, momentum: float, nesterov: bool, weight_decay: float
) -> tuple[tuple[Any, Any], tuple[()]]:
    """(p, velocity) after a step, where velocity is None without momentum and zeros at first.

    gradient <- gradient + weight_decay * p; velocity <- momentum * velocity + gradient; p <- p - rate * velocity, or
    with Nesterov's momentum p - rate * (gradient + momentum * velocity). Terms with a factor of 0 are left out.
    """
    if weight_decay:
        gradient = xp.add(gradient, xp.mul(p, weight_decay))
    if velocity is not None:
        velocity = xp.add(xp.mul(velocity, momentum), gradient)
        gradient = xp.add(gradient, xp.mul(velocity, momentum)) if nesterov else velocity
    return (xp.sub(p, xp.mul(gradient, rate)), velocity), ()


def _no_gradients(xp: Any, saved: tuple[()], gradient: Any, **options: Any) -> tuple[None, ...]:
    return (None,) * 4


SGD = Differentiable(_sgd, _no_gradients)
