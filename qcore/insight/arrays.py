"""Statistics of NumPy arrays: the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arguments import check_type
from qcore.arrays import Key, as_array, quantize, to_lanes
from qcore.formats.number import Number, check_number, with_overflow
from qcore.insight.bounds import bounds, check_carrier, range_of
from qcore.insight.law import (
    ERROR_FIELDS,
    ERROR_KEYS,
    FIELDS,
    LENGTH,
    NUMBER_KEYS,
    Bounds,
    Effects,
    effects,
    error_weights,
    lanes_of,
    number_weights,
    to_float32,
)
from qcore.insight.statistics import Statistics
from qcore.law.rounding import RoundingLike
from qcore.law.tiles import tiles
from qcore.namespace import Names


def statistics_of(
    x: np.ndarray,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> Statistics:
    """The statistics of `quantize` with the same arguments.

    Args:
        x: array of any shape; float32, float16 or ml_dtypes.bfloat16.
        number, rounding, key, random_bits, start, overflow: as for `qcore.quantize`.

    Returns:
        The same statistics in all packages.

    Raises:
        TypeError, ValueError: as `qcore.quantize`, and for float64.

    Example:
        >>> statistics_of(np.float32([1, 3e-9, 1e9]), "float(5,2)")
        Statistics (number=float(5,2), elements=3, underflowed=1, saturated=1, sqnr=0.0 dB)
    """
    x, _ = as_array(x)
    check_carrier(x.dtype.name)
    y = quantize(x, number, rounding, key=key, random_bits=random_bits, start=start, overflow=overflow)
    return statistics_between(x, y, with_overflow(check_number(number), overflow))


def statistics_between(x: np.ndarray, y: np.ndarray, number: Number | str) -> Statistics:
    """The statistics of a rounding of x to y.

    Args:
        x: array of any shape; float32, float16 or ml_dtypes.bfloat16.
        y: the rounded x, of the same shape and dtype.
        number: the format, or its text.

    Returns:
        The same statistics in all packages.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> statistics_between(np.float32([0.1, 900]), np.float32([0, 448]), "e4m3fn")
        Statistics (number=e4m3fn, elements=2, underflowed=1, saturated=1, sqnr=6.0 dB)
    """
    x, _ = as_array(x)
    check_type("y", y, np.ndarray, "a NumPy array like x")
    carrier, number = check_carrier(x.dtype.name), check_number(number)
    if y.dtype != x.dtype or y.shape != x.shape:
        raise ValueError(f"y is {y.dtype}{list(y.shape)}; allowed is x's {x.dtype}{list(x.shape)}")
    found = range_of(number, carrier)
    sizes = number.tile_sizes(x.ndim)
    if x.size == 0:
        return Statistics(number.text, np.zeros(LENGTH, np.int32))
    bits = to_lanes(x, carrier)
    blocks = tiles(bits.shape, sizes or (1,))
    ends = bounds(Names, blocks.split(bits, _pad), found, blocks)
    ends = Bounds(*(_spread(end, blocks) for end in ends))
    before, after = (to_float32(Names, lanes, carrier) for lanes in (bits, to_lanes(y, carrier)))
    return Statistics(number.text, _tabulate(effects(Names, before, after, ends)))


def _spread(end: Any, blocks: Any) -> Any:
    return end if isinstance(end, int) else blocks.merge(np.broadcast_to(end, blocks.tiled))


def _pad(array: np.ndarray, missing: tuple[int, ...]) -> np.ndarray:
    return np.pad(array, [(0, count) for count in missing])


def _tabulate(found: Effects) -> np.ndarray:
    """The sums as lanes."""
    flags = [found.number_key.size, *(int(np.count_nonzero(flag)) for flag in found.flags)]
    numbers, errors = _counts(found.number_key, FIELDS, NUMBER_KEYS), _counts(found.error_key, ERROR_FIELDS, ERROR_KEYS)
    errors[0, 0] = 0
    tables = (numbers @ number_weights()).reshape(-1), (errors @ error_weights()).reshape(-1)
    return lanes_of(np.concatenate([flags, *tables]), np.array([lanes.max() for lanes in found.magnitudes]))


def _counts(key: np.ndarray, fields: int, keys: int) -> np.ndarray:
    return np.bincount(key.reshape(-1), minlength=fields * keys).reshape(fields, keys)
