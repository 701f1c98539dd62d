"""The random words of stochastic accumulators: one key a product, indices by how often an element was rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from qcore.random.threefry import Materialize, element_index, identity, leading_bits, leading_bits_mask, threefry

MOST_HALF_BITS = 16


def block_of_step(step: Any, random_bits: int) -> tuple[Any, Any]:
    """Which words a rounding reads, and which part of them; an element's roundings are counted from 0.

    Up to 16 random bits, four roundings share a block of two words, the upper half of each before the lower one.
    """
    return (step >> 2, step & 3) if random_bits <= MOST_HALF_BITS else (step, step & 0)


def word_of_part(y0: Any, y1: Any, part: Any, random_bits: int) -> Any:
    """A rounding's word of 31 bits, from the block's two words."""
    word = y0 ^ y1
    if random_bits <= MOST_HALF_BITS:
        word = (y0 ^ (word & -(part >> 1))) << ((part & 1) * 16)
    return leading_bits(word, leading_bits_mask(random_bits))


def words_of_step(
    arange: Callable[[Any], Any],
    shape: Sequence[int],
    key: tuple[Any, Any],
    start: tuple[Any, Any],
    part: Any,
    random_bits: int,
    materialize: Materialize = identity,
) -> Any:
    """Words of 31 bits for each element, as `qcore.random.threefry.rounding_words` makes them.

    Args:
        arange: see `qcore.random.threefry.element_words`.
        shape: of the product, its leading dimensions included.
        key: the two words of the key.
        start: high and low word of block * (size of the product), for the block of `block_of_step`.
        part: which part of the block, int or int32 array.
        random_bits: how many leading bits stay.
        materialize: see `qcore.random.threefry.threefry`.
    """
    index = element_index(arange, shape, start, prod(shape) >= 2**31)
    y0, y1 = threefry(*key, *index, materialize)
    return word_of_part(y0, y1, part, random_bits)
