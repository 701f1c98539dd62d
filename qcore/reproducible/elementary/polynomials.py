"""Polynomials in float64."""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import Any


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """By Horner's rule. Who contracts it changes float64's last place, as libraries differ there anyway."""
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


_EXPM1 = [1 / factorial(k) for k in range(1, 17)]


def expm1(xp: Any, x: Any) -> Any:
    """exp(x) - 1 of float64 numbers, by its series for |x| < 1/2: Inductor subtracts everywhere."""
    return xp.where(abs(x) < 0.5, x * polynomial(_EXPM1, x), xp.exp(x) - 1.0)
