"""Real data in an order that a key decides: scikit-learn's handwritten digits, and the help texts of Python."""

from __future__ import annotations

import hashlib
from functools import cache
from pydoc_data import topics

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.training_models.sizes import BATCH, CONTEXT
from qcore import fold_in
from qcore.random import permutation, random_bits

_TEXT_LENGTH = 100_000


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    pixels, digits = load_digits(return_X_y=True)
    return pixels.astype(np.float32) / 16, digits.astype(np.int32)


@cache
def _text() -> np.ndarray:
    """The help texts as bytes."""
    joined = "".join(text for _, text in sorted(topics.topics.items()))
    return np.frombuffer(joined.encode("ascii", "replace")[:_TEXT_LENGTH], np.uint8).astype(np.int32)


LETTERS = 128  # of ASCII


def batch_of(model: str, key: tuple[int, int], step: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and targets of a step: images and digits, each once an epoch, or texts and what follows each letter.

    Args:
        model: a network, a key of `BATCH`.
        key: decides the order.
        step: counted from 0.
    """
    size = BATCH[model]
    if model == "gpt":
        text = _text()
        starts = random_bits(fold_in(key, step), (size,)) % np.uint32(len(text) - CONTEXT)
        windows = text[starts.astype(np.int64)[:, None] + np.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]
    images, digits = _digits()
    epoch, place = divmod(step, len(images) // size)
    chosen = permutation(fold_in(key, epoch), len(images))[place * size : (place + 1) * size]
    return images[chosen], digits[chosen]


def data_hash(model: str) -> str:
    """A SHA-256 of the data: the help texts are those of one version of Python."""
    arrays = (_text(),) if model == "gpt" else _digits()
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
