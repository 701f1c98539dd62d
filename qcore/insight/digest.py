"""Digests of results: sums, modulo 2^32, of hashes of each element's bits and index.

Two runs with the same digests had the same bits in the same places, but for chance. They find faults, not forgeries. A
sum has no order, so that devices and frameworks add up what they have.

Functions take arrays of int32, in which products and sums wrap around, of any package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WORDS = 2
_SECOND = 0x3C6EF372  # what the second word adds to the index


def hashes(lanes: Any, index: Any) -> tuple[Any, Any]:
    """A number for each element and word, from its bits, which are lanes, and its row-major index."""
    return _mixed(_mixed(index) ^ lanes), _mixed(_mixed(index + _SECOND) ^ lanes)


def _mixed(x: Any) -> Any:
    """A bijection of int32, Wellons' lowbias32; every bit depends on all bits."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


def text_of(words: np.ndarray) -> str:
    """Words, int32 of shape (..., WORDS), added up, as hexadecimal digits.

    Example:
        >>> text_of(np.int32([[1, -1], [1, 2]]))
        '0000000200000001'
    """
    totals = words.reshape(-1, WORDS).sum(0, dtype=np.int32)
    return "".join(f"{word:08x}" for word in totals.view(np.uint32))


def merged(a: str | None, b: str | None) -> str | None:
    """The digest of what two digests are of together; None if one is missing.

    Example:
        >>> merged("00000002ffffffff", "0000000100000003")
        '0000000300000002'
    """
    if a is None or b is None:
        return None
    words = np.array([[int(one[i : i + 8], 16) for i in range(0, 8 * WORDS, 8)] for one in (a, b)], np.uint32)
    return text_of(words.view(np.int32))
