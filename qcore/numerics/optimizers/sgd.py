"""A step of stochastic gradient descent; every operation is rounded to float32."""

from __future__ import annotations

from typing import Any

from qcore.numerics.differentiable import without_gradients


def _sgd(
    xp: Any, p: Any, gradient: Any, velocity: Any, rate: Any, momentum: float, nesterov: bool, weight_decay: float
) -> tuple[Any, Any]:
    """The parameter and the velocity after a step; terms with a factor of 0 are left out."""
    if weight_decay:
        gradient = xp.add(gradient, xp.mul(p, weight_decay))
    if velocity is not None:
        velocity = xp.add(xp.mul(velocity, momentum), gradient)
        gradient = xp.add(gradient, xp.mul(velocity, momentum)) if nesterov else velocity
    return xp.sub(p, xp.mul(gradient, rate)), velocity


SGD = without_gradients(_sgd)
