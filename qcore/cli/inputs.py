"""Inputs on which an implementation of a format goes wrong when it can."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.carrier import FLOAT64
from qcore.cli.facts import facts
from qcore.number import Number
from qcore.posit import Posit
from qcore.reference import decode, quantize

ALL_BITS = 12  # formats of up to so many bits have all their values among the inputs
SAMPLES = 1024  # larger ones so many, and their neighbours


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
        number: the format.
        dtype: of the result.
        count: how many random bit patterns follow.
        seed: of these, and of the sample where a format has too many numbers to take them all.

    Returns:
        An array of one dimension: the points in the order of their bits, each once, then the random ones.
    """
    rng = np.random.default_rng(seed)
    values = _values(number, dtype, rng)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan]
    with np.errstate(all="ignore"):
        points = np.concatenate([values, _midpoints(number, values), _edges(number), special]).astype(dtype)
    bits = bits_of(points)
    near = np.unique(np.concatenate([bits, bits + 1, bits - 1]))
    return np.concatenate([near, _random_bits(dtype, count, rng)]).view(dtype)


def _random_bits(dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> np.ndarray:
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True)


def _values(number: Number, dtype: np.dtype[Any], rng: np.random.Generator) -> np.ndarray:
    """Numbers of the format in float64: all, or a sample, or where it has no codes what random numbers round to."""
    try:
        number.check_exact(FLOAT64)
        number.codes(FLOAT64)
    except ValueError:
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
    known = facts(number)
    halves = [(4 * end.count, end) for end in (known.largest, known.lowest)]
    halves += [(2 * end.count + step, end) for end in (known.largest, known.lowest) for step in (-2, -1, 0, 1, 2)]
    halves += [(count, known.smallest) for count in (1, 2, 3) if known.smallest]
    with np.errstate(over="ignore"):
        edges = np.array([np.ldexp(float(count), max(min(end.exponent - 1, 9999), -9999)) for count, end in halves])
    return np.concatenate([edges, -edges])
