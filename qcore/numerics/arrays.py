"""The laws on NumPy arrays: the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.numerics.differentiable import apply
from qcore.numerics.elementary import EXP
from qcore.numerics.softmax import SOFTMAX, SUM


def exp(x: Any) -> np.ndarray:
    return apply(EXP, x)


def sum(x: Any, axis: int = -1) -> np.ndarray:
    return apply(SUM, x, axes=(axis,), keepdims=False)


def softmax(x: Any, axis: int = -1) -> np.ndarray:
    return apply(SOFTMAX, x, axis=axis)
