"""The lanes of statistics: int32 arrays of all sums, in two parts, of the magnitudes, and perhaps of a digest."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qcore.insight.law import COUNTS, ERROR_COLUMNS, ERROR_FIELDS, FIELDS, MAGNITUDES, NUMBER_COLUMNS

DIGIT = 30  # bits of the lower half of a sum
NUMBERS, ERRORS = FIELDS * len(NUMBER_COLUMNS), ERROR_FIELDS * len(ERROR_COLUMNS)
SUMS = len(COUNTS) + NUMBERS + ERRORS
LENGTH = 2 * SUMS + len(MAGNITUDES)


class Packed(NamedTuple):
    """Lanes without zeros: the places of the others, and these."""

    places: np.ndarray
    values: np.ndarray


def merge_lanes(xp: Any, a: Any, b: Any) -> Any:
    """The lanes of two statistics merged, in an array namespace that has `maximum` and `concatenate`."""
    low = a[..., SUMS : 2 * SUMS] + b[..., SUMS : 2 * SUMS]
    high = a[..., :SUMS] + b[..., :SUMS] + (low >> DIGIT)
    magnitudes = xp.maximum(a[..., 2 * SUMS : LENGTH], b[..., 2 * SUMS : LENGTH])
    return xp.concatenate([high, low & ((1 << DIGIT) - 1), magnitudes, a[..., LENGTH:] + b[..., LENGTH:]], -1)


def lanes_of(sums: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """Lanes from sums in int64."""
    halves = sums >> DIGIT, sums & ((1 << DIGIT) - 1)
    return np.concatenate([*halves, magnitudes], -1).astype(np.int32)


def sums_of(lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums in int64, and the magnitudes."""
    high, low = lanes[..., :SUMS].astype(np.int64), lanes[..., SUMS : 2 * SUMS]
    return (high << DIGIT) + low, lanes[..., 2 * SUMS : LENGTH]


def as_numpy(lanes: Any) -> np.ndarray:
    """The lanes of any package, or packed ones, as a NumPy array."""
    if isinstance(lanes, Packed):
        whole = np.zeros(LENGTH, np.int32)
        whole[lanes.places] = lanes.values
        return whole
    return np.asarray(lanes.cpu() if hasattr(lanes, "cpu") else lanes)
