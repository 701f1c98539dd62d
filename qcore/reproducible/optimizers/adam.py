"""A step of Adam and AdamW."""

from __future__ import annotations

from math import log
from typing import Any

from qcore.arguments import check_float, quoted
from qcore.reproducible.differentiable import without_gradients
from qcore.reproducible.elementary.polynomials import expm1


def adam_options(betas: Any, eps: float, weight_decay: float) -> dict[str, Any]:
    """The numbers of the law's options, checked: TypeError or ValueError if they are not those of `adam_step`."""
    try:
        first, second = betas
    except (TypeError, ValueError):
        raise ValueError(f"betas={quoted(betas)}; allowed are two numbers from 0 to below 1") from None
    return {
        "betas": (_check_beta("betas[0]", first), _check_beta("betas[1]", second)),
        "eps": check_float("eps", eps),
        "weight_decay": check_float("weight_decay", weight_decay),
    }


def _check_beta(name: str, beta: Any) -> float:
    return check_float(name, beta, "a number from 0 to below 1", lambda number: 0 <= number < 1)


def _adam(
    xp: Any,
    p: Any,
    gradient: Any,
    first: Any,
    second: Any,
    step: Any,
    rate: Any,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> tuple[Any, Any, Any]:
    """(p, first moment, second moment) after a step; all but the last line are in the order of torch's formulas.

    gradient <- gradient + weight_decay * p, or decoupled p <- p * (1 - rate * weight_decay);
    first <- beta1 * first + (1 - beta1) * gradient; second <- beta2 * second + (1 - beta2) * (gradient * gradient);
    p <- p - rate / (1 - beta1^step) * (first / (sqrt(second) / sqrt(1 - beta2^step) + eps)).
    """
    if weight_decay and decoupled:
        p = xp.mul(p, xp.sub(1.0, xp.mul(rate, weight_decay)))
    elif weight_decay:
        gradient = xp.add(gradient, xp.mul(p, weight_decay))
    first = xp.add(xp.mul(first, betas[0]), xp.mul(gradient, 1.0 - betas[0]))
    second = xp.add(xp.mul(second, betas[1]), xp.mul(xp.mul(gradient, gradient), 1.0 - betas[1]))
    root = xp.div(xp.sqrt(second), xp.sqrt(_correction(xp, betas[1], step)))
    change = xp.div(first, xp.add(root, eps))
    return xp.sub(p, xp.mul(change, xp.div(rate, _correction(xp, betas[0], step)))), first, second


def _correction(xp: Any, beta: float, step: Any) -> Any:
    """1 - beta^step, as a function of ONE float32 number, evaluated in float64 and rounded once."""
    return xp.narrow(-expm1(xp, xp.wide(step) * log(beta))) if beta else step * 0.0 + 1.0


ADAM = without_gradients(_adam)
