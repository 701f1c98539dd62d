"""Random numbers and orders that depend on a key alone: initial weights, and the order of examples."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from qcore.arguments import check_int, check_seed
from qcore.random.threefry import as_lane, element_words

_UNIFORM_BITS = 24


def random_bits(key: int | tuple[int, int], shape: Sequence[int]) -> np.ndarray:
    """The random words of an array's elements, as `jax.random.bits` makes them.

    Args:
        key: an int from 0 to 2^64 - 1, or two 32-bit words.
        shape: the array's shape.

    Returns:
        A uint32 array.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> random_bits(7, (2,)).tolist()
        [2895194379, 4185947648]
    """
    shape = tuple(check_int("shape", size, 0) for size in shape)
    words = [np.full(1, as_lane(word), np.int32) for word in (*check_seed(key), 0, 0)]  # arrays wrap silently
    found = element_words(
        lambda size: np.arange(size, dtype=np.int32),
        shape or (1,),
        (words[0], words[1]),
        (words[2], words[3]),
        prod(shape) >= 2**31,
    )
    return found.view(np.uint32).reshape(shape)


def uniform(key: int | tuple[int, int], shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """low + u * (high - low) in float64, rounded once to float32; u is an element's leading 24 random bits times 2^-24.

    Args:
        key, shape: as for `random_bits`.
        low, high: the range.

    Returns:
        A float32 array.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> uniform(7, (2,), -1, 1).tolist()
        [0.3481799364089966, 0.9492337703704834]
    """
    leading = (random_bits(key, shape) >> np.uint32(32 - _UNIFORM_BITS)).astype(np.float64)
    return (low + leading * 2.0**-_UNIFORM_BITS * (high - low)).astype(np.float32)


def permutation(key: int | tuple[int, int], count: int) -> np.ndarray:
    """The numbers 0 to count - 1 in the order of their random words; equal words keep the order of the numbers.

    Args:
        key: as for `random_bits`.
        count: how many.

    Returns:
        An int64 array of shape (count,).

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> permutation(7, 5).tolist()
        [2, 3, 0, 4, 1]
    """
    return np.argsort(random_bits(key, (check_int("count", count, 0),)), kind="stable")
