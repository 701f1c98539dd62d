"""The Gaussian error linear unit with tanh, and its derivative, of float64 numbers."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from qcore.reproducible.elementary.sigmoid import times_sigmoid_slope

_CUBE = 0.044715
_TWICE = 2 * sqrt(2 / pi)


def gelu_tanh(xp: Any, x: Any) -> Any:
    """x / 2 (1 + tanh(u)), where 1 + tanh(u) is 2 sigmoid(2u)."""
    return x / (1.0 + xp.exp(-(x * _twice(xp, x, _CUBE))))


def gelu_tanh_slope(xp: Any, x: Any) -> Any:
    return times_sigmoid_slope(xp, x * _twice(xp, x, _CUBE), xp.product(x, _twice(xp, x, 3 * _CUBE)))


def _twice(xp: Any, x: Any, cube: float) -> Any:
    """2u / x where u = sqrt(2 / pi) (x + cube x^3), and with three times the cube 2u's derivative."""
    return _TWICE + xp.product(x * x, _TWICE * cube)
