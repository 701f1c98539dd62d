"""A step of stochastic gradient descent; every operation is rounded to float32."""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_flag, check_float
from qcore.reproducible.differentiable import without_gradients


def sgd_options(momentum: float, nesterov: bool, weight_decay: float) -> dict[str, Any]:
    """The law's options, checked: TypeError or ValueError if they are not those of `sgd_step`."""
    check_flag("nesterov", nesterov)
    momentum, weight_decay = check_float("momentum", momentum), check_float("weight_decay", weight_decay)
    if nesterov and not momentum:
        raise ValueError(f"nesterov=True with momentum={momentum}; allowed is a momentum above 0")
    return {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}


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
