"""Clipping of gradients by their common norm."""

from __future__ import annotations

from typing import Any

from qcore.reproducible.differentiable import without_gradients
from qcore.reproducible.sums import dot, total


def _clip(xp: Any, *gradients: Any, max_norm: float) -> tuple[Any, ...]:
    """All gradients times min(1, max_norm / (norm + 1e-6)), and the norm last.

    The sum of the exact squares of each gradient is rounded to float32, then the sum of these, then the square root.
    """
    squares = [dot(xp, g, g, tuple(range(g.ndim))).reshape((1,)) for g in gradients]
    norm = xp.sqrt(total(xp, xp.concatenate(squares, 0), (0,))).reshape(())
    factor = xp.div(max_norm + norm * 0.0, xp.add(norm, 1e-6))
    factor = xp.where(factor > 1.0, 1.0, factor)
    return *(xp.mul(g, factor) for g in gradients), norm


CLIP = without_gradients(_clip)
