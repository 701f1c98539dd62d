"""Rounding modes, and the one primitive that all formats share: what to add before low bits are dropped."""

from __future__ import annotations

from enum import Enum
from typing import Any


class Rounding(Enum):
    """How a number between two neighbours of a format is rounded.

    Attributes:
        NEAREST: to the nearer one; ties to the even one (IEEE 754 roundTiesToEven).
        NEAREST_AWAY: ties away from zero (IEEE 754 roundTiesToAway).
        NEAREST_UP: ties toward +infinity.
        NEAREST_DOWN: ties toward -infinity.
        STOCHASTIC: away from zero with probability equal to the distance from the neighbour nearer to zero.
    """

    NEAREST = "nearest"
    NEAREST_AWAY = "nearest_away"
    NEAREST_UP = "nearest_up"
    NEAREST_DOWN = "nearest_down"
    STOCHASTIC = "stochastic"

    @property
    def to_nearest(self) -> bool:
        """Whether the result is always one of the nearest numbers."""
        return self is not Rounding.STOCHASTIC


def increment(mode: Rounding, mask: Any, odd: Any, sign: Any, top_bits: Any) -> Any:
    """What to add to a magnitude so that dropping the bits of `mask` afterwards rounds it.

    With half = (mask + 1) / 2, adding half carries into the kept bits exactly from the midpoint on, and
    half - 1 exactly above it; `(mask + 1) >> 1` and `mask >> 1` are these two, and both are 0 for an empty mask.

    Args:
        mode: the rounding mode.
        mask: 2^drop - 1, the bits that will be dropped.
        odd: 1 where the last kept bit is one, else 0; only read by NEAREST.
        sign: -1 for negative numbers, else 0; only read by NEAREST_UP and NEAREST_DOWN.
        top_bits: the random bits aligned with `mask`; only read by STOCHASTIC.
    """
    if mode is Rounding.STOCHASTIC:
        return top_bits
    if mode is Rounding.NEAREST:
        return (mask + odd) >> 1
    if mode is Rounding.NEAREST_AWAY:
        return (mask + 1) >> 1
    if mode is Rounding.NEAREST_UP:
        return (mask + (sign + 1)) >> 1
    return (mask - sign) >> 1
