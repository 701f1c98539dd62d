"""Characters to train on: the help texts that come with Python."""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np

LETTERS = "\n" + "".join(map(chr, range(32, 127)))  # 96; all others become the last one


def load() -> np.ndarray:
    """The topics of `help()` as one array of indices into `LETTERS`, int64, some 700,000 of them."""
    codes = np.array([ord(letter) for name in sorted(topics) for letter in topics[name]], np.int64)
    return np.where(codes == ord("\n"), 0, np.where((codes >= 32) & (codes < 127), codes - 31, len(LETTERS) - 1))


def batches(text: np.ndarray, size: int, length: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Parts of a text at random, and for each letter the one that follows, for ever; both of shape (size, length)."""
    random = np.random.default_rng(seed)
    while True:
        places = random.integers(0, len(text) - length, size)[:, None] + np.arange(length)
        yield text[places], text[places + 1]
