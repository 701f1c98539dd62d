"""Keys of stochastic rounding, made from keys and numbers."""

from __future__ import annotations

import numpy as np

from qcore.arguments import check_int, check_seed
from qcore.random.threefry import threefry


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
    """`fold_in` of a key's two words, signed or unsigned, without checks.

    Python's ints take a twelfth of the time that arrays take. They have no highest bit, but in Threefry no bit moves
    down from above bit 31, so it is enough to cut these bits off now and then.
    """
    return threefry(word0, word1, 0, data, lambda number: number & 0xFFFFFFFF)


def fold_in_each(keys: np.ndarray, data: np.ndarray) -> np.ndarray:
    """`fold_in` of uint32 arrays: keys of shape (..., 2), and data whose shape broadcasts with the leading dimensions.

    Example:
        >>> fold_in_each(np.array([0, 7], np.uint32), np.arange(3, dtype=np.uint32))[1].tolist()
        [195045567, 4062205631]
    """
    word0, word1, data = np.broadcast_arrays(keys[..., 0], keys[..., 1], data)
    key0, key1, lanes = (np.ascontiguousarray(words).view(np.int32) for words in (word0, word1, data))  # not 0-d
    return np.stack(threefry(key0, key1, 0, lanes), axis=-1).view(np.uint32).reshape(*data.shape, 2)
