"""Random bits that do not depend on device, thread, layout or sharding: Threefry-2x32 on the element's index.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Only additions, xors and rotations
of int32 lanes, which wrap; equal to `jax.random.bits(key, shape, "uint32")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import check_int, check_seed

Materialize = Callable[[Any], Any]
Rotate = Callable[[Any, int], Any]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
MOST_HALF_BITS = 16  # up to this number of random bits, four roundings share a block of two words


def identity(lanes: Any) -> Any:
    """The default `materialize`."""
    return lanes


def rotate_left(x: Any, distance: int) -> Any:
    """The default `rotate`: int32 lanes rotated by 0 < `distance` < 32 bits."""
    # The left shift is written as a multiplication because Inductor's vectors shift by a register full of
    # distances, while compilers turn a constant power of two into an immediate shift (a sixth of the time).
    return (x * (1 << distance)) | ((x >> (32 - distance)) & ((1 << distance) - 1))


def threefry(
    key0: Any,
    key1: Any,
    counter0: Any,
    counter1: Any,
    materialize: Materialize = identity,
    rotate: Rotate = rotate_left,
) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds: two int32 lanes of random bits for each counter.

    Args:
        key0, key1, counter0, counter1: int32 lanes that broadcast.
        materialize: an identity whose result a compiler computes once. Some compilers compute a value again at each of
            its uses, which are exponentially many here.
        rotate: `rotate_left`, in a form for which a compiler has an instruction.
    """
    keys = (key0, key1, key0 ^ key1 ^ _PARITY)
    x0, x1 = counter0 + key0, counter1 + key1
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = rotate(x1, distance) ^ x0
        x0 = materialize(x0 + keys[(group + 1) % 3])
        x1 = materialize(x1 + (keys[(group + 2) % 3] + (group + 1)))
    return x0, x1


class Noise(NamedTuple):
    """The source of the random words of an array.

    Attributes:
        key: two int32 arrays of one word each, or one array of two words.
        window: int32 array of three words: the first element's 64-bit index (high, low), and `leading_bits_mask`.
    """

    key: Any
    window: Any


def rounding_words(
    arange: Callable[[Any], Any],
    shape: Sequence[Any],
    noise: Noise,
    half: bool,
    materialize: Materialize = identity,
) -> Any:
    """The words that stochastic rounding reads: the leading bits of each element's word, in a word of 31 bits.

    Such a word is not negative, so a shift to the right by 31 - n leaves its n leading bits. See `element_words`.
    """
    key, window = noise
    words = element_words(arange, shape, (key[0], key[1]), (window[0], window[1]), prod(shape) >= 2**31, materialize)
    return leading_bits(words, window[2], half)


def leading_bits(word: Any, mask: Any, half: bool) -> Any:
    """The leading bits of a random word in a word of 31 bits; for the mask see `leading_bits_mask`.

    With `half`, the next bit is set: half of the last one. Modes read it that round the distance to as many bits as are
    random, see `qcore.law.rounding.rounds_distance`.
    """
    found = (word >> 1) & mask
    return found | (((mask ^ 0x7FFFFFFF) + 1) >> 1) if half else found


def leading_bits_mask(random_bits: int) -> int:
    """The mask that leaves the leading `random_bits` bits of a word, once it is shifted right by one."""
    return 0x7FFFFFFF & -1 << (31 - random_bits)


def element_words(
    arange: Callable[[Any], Any],
    shape: Sequence[Any],
    key: tuple[Any, Any],
    start: tuple[Any, Any],
    large: bool = False,
    materialize: Materialize = identity,
) -> Any:
    """One random int32 word for each element of an array, by its row-major index plus `start`.

    Args:
        arange: n -> the int32 array 0, 1, ..., n - 1, on the device of the words.
        shape: the array's shape, at least one dimension.
        key: two int32 arrays, 0-d or of one element.
        start: high and low word of the first element's 64-bit index, int32 arrays like the key's words.
        large: True if the array has 2^31 elements or more.
        materialize: see `threefry`.
    """
    y0, y1 = threefry(*key, *element_index(arange, shape, start, large), materialize)
    return y0 ^ y1


def element_index(
    arange: Callable[[Any], Any], shape: Sequence[Any], start: tuple[Any, Any], large: bool
) -> tuple[Any, Any]:
    """High and low int32 words of every element's row-major index plus `start`."""
    high, low = start
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if not large:
        total = low + sum(_along(arange, shape, axis) * stride for axis, stride in enumerate(strides))
        return high - ((low & ~total) >> 31), total  # the index is not negative: a carry clears the sign bit
    for axis, stride in enumerate(strides):
        add_high, add_low = _multiply(_along(arange, shape, axis), stride)
        total = low + add_low
        carry = ((low & add_low) | ((low | add_low) & ~total)) >> 31  # -1 where the unsigned sum passed 2^32
        high, low = high + add_high - carry, total
    return high, low


def _along(arange: Callable[[Any], Any], shape: Sequence[Any], axis: int) -> Any:
    """Each element's position along an axis."""
    return arange(shape[axis]).reshape((-1,) + (1,) * (len(shape) - 1 - axis))


def _multiply(x: Any, factor: int) -> tuple[Any, Any]:
    """High and low 32-bit words of x * factor for lanes 0 <= x < 2^31 and 0 <= factor < 2^63, in 16-bit digits."""
    # In digits of 16 bits, as lanes have no wider product. >> copies the sign, hence a mask after each shift.
    x0, x1 = x & 0xFFFF, x >> 16
    f0, f1, f2 = factor & 0xFFFF, factor >> 16 & 0xFFFF, factor >> 32
    low = x0 * f0
    middle = x1 * f0 + (low >> 16 & 0xFFFF)
    cross = x0 * f1 + (middle & 0xFFFF)
    high = x1 * f1 + (middle >> 16 & 0xFFFF) + (cross >> 16 & 0xFFFF) + x * as_lane(f2 & 0xFFFFFFFF)
    return high, (cross << 16) | (low & 0xFFFF)


def as_lane(word: int) -> int:
    """An unsigned 32-bit word as the int32 with the same bits."""
    return word - ((word & 0x80000000) << 1)


def fold_in(key: int | tuple[int, int], data: int) -> tuple[int, int]:
    """A new key from a key and a number, as `jax.random.fold_in` makes it.

    Args:
        key: an int from 0 to 2^64 - 1, or two 32-bit words.
        data: an int from 0 to 2^32 - 1.

    Returns:
        The two 32-bit words of the new key.

    Example:
        >>> fold_in(7, 1)
        (195045567, 4062205631)
    """
    data = check_int("data", data, 0, 2**32 - 1)
    return fold_words(*check_seed(key), data)


def fold_words(word0: int, word1: int, data: int) -> tuple[int, int]:
    """`fold_in` of a key's two words, signed or unsigned, without checks.

    Python's ints take a twelfth of the time of arrays. They do not wrap, but in Threefry no bit above bit 31 moves
    down, so it is enough to cut the higher bits off once in each group of rounds.
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


def block_of_step(step: Any, random_bits: int) -> tuple[Any, Any]:
    """The number of the block of words that a rounding reads, and the part of it; roundings are counted from 0.

    Up to 16 random bits, four roundings share a block of two words, the upper half of each before the lower one.
    """
    return (step >> 2, step & 3) if random_bits <= MOST_HALF_BITS else (step, step & 0)


def row_step(row: int, random_bits: int) -> int:
    """The step whose words, for one row of an array, are those of this row for the whole array at step 0."""
    return row << 2 if random_bits <= MOST_HALF_BITS else row


def word_of_part(y0: Any, y1: Any, part: Any, random_bits: int, half: bool) -> Any:
    """A rounding's word of 31 bits, from the block's two words; for `half` see `leading_bits`."""
    word = y0 ^ y1
    # The parts 0 and 1 read the halves of y0, 2 and 3 those of y1: y0 ^ (y0 ^ y1) is y1, without a branch.
    if random_bits <= MOST_HALF_BITS:
        word = (y0 ^ (word & -(part >> 1))) << ((part & 1) * 16)
    return leading_bits(word, leading_bits_mask(random_bits), half)


def words_of_step(
    arange: Callable[[Any], Any],
    shape: Sequence[int],
    key: tuple[Any, Any],
    start: tuple[Any, Any],
    part: Any,
    random_bits: int,
    half: bool,
    materialize: Materialize = identity,
) -> Any:
    """Words of 31 bits for each element, as `rounding_words` returns them.

    Args:
        arange: see `qcore.random.threefry.element_words`.
        shape: the shape of the product, with its leading dimensions.
        key: the two words of the key.
        start: high and low word of block * (size of the product), for the block of `block_of_step`.
        part: the part of the block, int or int32 array.
        random_bits: the number of leading bits that stay.
        half: see `leading_bits`.
        materialize: see `qcore.random.threefry.threefry`.
    """
    index = element_index(arange, shape, start, prod(shape) >= 2**31)
    y0, y1 = threefry(*key, *index, materialize)
    return word_of_part(y0, y1, part, random_bits, half)
