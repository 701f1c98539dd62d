"""The rotation before caches of four bits: signs that are always the same, then a Hadamard matrix of ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from qcore.linalg.accumulator import EXACT

_SEED = 0x9E3779B9  # of vLLM, which draws the signs from torch's generator on the CPU


@lru_cache(16)
def signs(size: int) -> tuple[float, ...]:
    """The signs of so many numbers: a Mersenne twister's words, of which torch takes 24 bits as a number below 1."""
    words = np.random.RandomState(_SEED)._bit_generator.random_raw(size)  # type: ignore[attr-defined]
    return tuple([1.0 if word & 0xFFFFFF < 1 << 23 else -1.0 for word in words.tolist()])


def rotated(xp: Any, x: Any) -> Any:
    """(x D) H along the last axis: exact sums of float32 numbers, rounded once to float32.

    Args:
        xp: the namespace of attention.
        x: numbers whose last axis is a power of two. Its square root is the norm of H, which has no factor.
    """
    return _summed(xp, xp.settled(x) * _constant(xp, x))


def rotated_back(xp: Any, x: Any) -> Any:
    """(x H) D: the inverse of `rotated`, times the length of the axis."""
    return _summed(xp, xp.settled(x)) * _constant(xp, x)


def _constant(xp: Any, x: Any) -> Any:
    return xp.constant(list(signs(x.shape[-1])), "float32", x)


def _summed(xp: Any, x: Any) -> Any:
    size = x.shape[-1]
    places = xp.arange(size, x)
    parity = places[:, None] & places
    for shift in (8, 4, 2, 1):  # of indices of at most 16 bits
        parity = parity ^ (parity >> shift)
    hadamard = 1.0 - 2.0 * xp.to_float32(parity & 1)
    return xp.settled(xp.multiply(x.reshape((-1, size)), hadamard, None, None, EXACT)).reshape(x.shape)
