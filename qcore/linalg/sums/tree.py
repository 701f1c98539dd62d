"""Sums in a fixed order, which depends on neither threads nor layouts nor devices."""

from __future__ import annotations

from typing import Any


def tree_sum(xp: Any, x: Any, axis: int = -1) -> Any:
    """The sum of float64 numbers along an axis, which stays with length 1: halves by index, an odd rest appended."""
    before = (slice(None),) * (axis % x.ndim)
    axis = len(before)
    while (length := x.shape[axis]) > 1:
        half = length // 2
        pairs = x[(*before, slice(half))] + x[(*before, slice(half, 2 * half))]
        x = xp.concatenate([pairs, x[(*before, slice(2 * half, None))]], axis) if length % 2 else pairs
    return x
