"""Keys of stochastic rounding, made from keys and numbers."""

from __future__ import annotations

import numpy as np

from qcore.arguments import check_int, check_seed
from qcore.random import threefry


def fold_in(key: int | tuple[int, int], data: int) -> tuple[int, int]:
    """A new key from a key and a number, as `jax.random.fold_in` makes it.

    Args:
        key: an int from 0 to 2^64 - 1, or two 32-bit words.
        data: an int from 0 to 2^32 - 1.

    Returns:
        The two 32-bit words of the new key.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> fold_in(7, 1)
        (195045567, 4062205631)
    """
    data = check_int("data", data, 0, 2**32 - 1)
    return fold_words(*check_seed(key), data)


def fold_words(word0: int, word1: int, data: int) -> tuple[int, int]:
    """`fold_in` without its checks, in Python's ints: making arrays would take a dozen times as long.

    Ints have no highest bit, but nothing moves down from above bit 31 in Threefry: what gathers there is cut off.

    Args:
        word0, word1: the key's words, signed or unsigned.
        data: an int from 0 to 2^32 - 1.

    Returns:
        The two 32-bit words of the new key.

    Example:
        >>> fold_words(0, 7, 1)
        (195045567, 4062205631)
    """
    return threefry(word0, word1, 0, data, _as_word)


def _as_word(number: int) -> int:
    return number & 0xFFFFFFFF


def fold_in_each(keys: np.ndarray, data: np.ndarray) -> np.ndarray:
    """`qcore.fold_in` of many keys and numbers.

    Args:
        keys: uint32 array of shape (..., 2), two words a key.
        data: uint32 array of a shape that broadcasts with the keys' leading dimensions.

    Returns:
        A uint32 array of the broadcast shape, and 2.

    Example:
        >>> fold_in_each(np.array([0, 7], np.uint32), np.arange(3, dtype=np.uint32))[1].tolist()
        [195045567, 4062205631]
    """
    word0, word1, data = np.broadcast_arrays(keys[..., 0], keys[..., 1], data)
    lanes = (np.ascontiguousarray(words).view(np.int32) for words in (word0, word1, data))  # at least one dimension
    key0, key1, numbers = lanes
    return np.stack(threefry(key0, key1, 0, numbers), axis=-1).view(np.uint32).reshape(*data.shape, 2)
