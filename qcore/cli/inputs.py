"""Hard inputs: those on which a wrong implementation of a format is most likely to show it."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arrays import decode, quantize
from qcore.cli.properties import properties, why_no_codes
from qcore.formats.block import NVFP4, BlockNumber
from qcore.formats.number import Number
from qcore.formats.posit import Posit

ALL_BITS = 12  # for formats of up to 12 bits the inputs include all values
SAMPLES = 1024  # for larger formats, so many values and their neighbours
BLOCK, BLOCKS = 32, 64  # elements where a block may have any number of them; the fewest blocks


def dtype_of(name: str) -> np.dtype[Any]:
    """A carrier's dtype by name; bfloat16 needs ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bit patterns of an array."""
    return x.view(f"u{x.dtype.itemsize}")


def vector_inputs(number: Number, dtype: np.dtype[Any], count: int, seed: int) -> np.ndarray:
    """Numbers of the format, midpoints between them, overflow thresholds and special values, each with its neighbours.

    Args:
        number: the format; for blocks see `_blocks`.
        dtype: of the result.
        count: how many random bit patterns follow.
        seed: of these, and of the sample where a format has too many numbers to take them all.

    Returns:
        An array of one dimension: the points in the order of their bits, each once, then the random ones.
    """
    rng = np.random.default_rng(seed)
    if isinstance(number, BlockNumber):
        return _blocks(number, dtype, count, seed)
    values = _values(number, dtype, rng)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan]
    with np.errstate(all="ignore"):
        points = np.concatenate([values, _midpoints(number, values), _edges(number), special]).astype(dtype)
    bits = bits_of(points)
    near = np.unique(np.concatenate([bits, bits + 1, bits - 1]))
    return np.concatenate([near, _random_bits(dtype, count, rng)]).view(dtype)


def _blocks(number: Any, dtype: np.dtype[Any], count: int, seed: int) -> np.ndarray:
    """Blocks of the elements' hard inputs under scales from the whole range, and of random bit patterns.

    The first blocks have: only zeros, a NaN, an infinity, the dtype's smallest number, its largest, and the number just
    below a power of two. If all blocks share a scale, or there is only one block, all numbers are near 1, and random
    numbers replace random bit patterns; a single block has no NaN and no infinity.
    """
    rng, whole = np.random.default_rng(seed), number.block_sizes(1)[0] is None
    size = BLOCK if whole else number.block_sizes(1)[0]
    with np.errstate(invalid="ignore"):  # signalling NaN
        points = vector_inputs(number.element, dtype, 0, seed).astype(np.float64)
    points = rng.permutation(points[np.isfinite(points)])
    points = np.resize(points, (max(-(-len(points) // size), BLOCKS), size))
    together, unsigned = whole or isinstance(number, NVFP4), f"u{dtype.itemsize}"
    smallest = np.ones(1, unsigned).view(dtype)[0]
    largest = (bits_of(np.array(np.inf, dtype)) - 1).astype(unsigned).view(dtype)
    ends = (2.0**-12, 2.0**4) if together else (smallest, largest)
    lowest, highest = (np.frexp(float(end))[1] for end in ends)
    room = np.frexp(np.abs(points).max(1, keepdims=True))[1]
    exponents = rng.integers(lowest, highest, points.shape[:1], endpoint=True)[:, None] - room
    exponents[::2] = np.minimum(0, highest - room[::2])
    with np.errstate(all="ignore"):
        blocks = np.ldexp(points, exponents).astype(dtype)
    first = np.repeat(blocks[:1], 6, 0)
    first[0] = np.where(np.arange(size) % 2, -0.0, 0.0)
    first[3] = 0
    special = (1, -1) if whole else (np.nan, -np.inf)
    first[1:, 0] = *special, smallest, ends[1], np.nextafter(dtype.type(2), dtype.type(0))
    more = -(-count // size) * size
    random = rng.standard_normal(more).astype(dtype) if together else _random_bits(dtype, more, rng).view(dtype)
    return np.concatenate([first.ravel(), blocks.ravel(), random])


def _random_bits(dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> np.ndarray:
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True)


def _values(number: Number, dtype: np.dtype[Any], rng: np.random.Generator) -> np.ndarray:
    """Numbers of the format in float64: all, or a sample; without codes, what random numbers are rounded to."""
    if why_no_codes(number):
        x = _random_bits(dtype, SAMPLES, rng).view(dtype)
        with np.errstate(all="ignore"):
            return quantize(x, number, "nearest").astype(np.float64)
    every = number.bits <= ALL_BITS
    codes = np.arange(1 << number.bits) if every else rng.integers(0, 1 << number.bits, SAMPLES)
    return decode(codes, number, np.float64)


def _midpoints(number: Number, values: np.ndarray) -> np.ndarray:
    """The midpoints between each number and the next ones above and below it, of posits those of their codes."""
    around = [values]
    for mode, end in (("down", -np.inf), ("up", np.inf)):
        following = quantize(np.nextafter(values, end), number, mode)
        around += [values / 2 + following / 2, following]
        if isinstance(number, Posit):
            exponents = np.frexp(values)[1] + np.frexp(following)[1] - 2
            around.append(np.ldexp(np.sign(values), exponents // 2))
    return np.concatenate(around)


def _edges(number: Number) -> np.ndarray:
    """Where numbers begin to overflow and to vanish: the outermost numbers, and half and whole steps from there."""
    known = properties(number)
    halves = [(4 * end.count, end) for end in (known.largest, known.lowest)]
    halves += [(2 * end.count + step, end) for end in (known.largest, known.lowest) for step in (-2, -1, 0, 1, 2)]
    halves += [(count, known.smallest) for count in (1, 2, 3) if known.smallest]
    with np.errstate(over="ignore"):
        edges = np.array([np.ldexp(float(count), max(min(end.exponent - 1, 9999), -9999)) for count, end in halves])
    return np.concatenate([edges, -edges])
