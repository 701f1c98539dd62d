"""What a run of training is made from and leaves: initial numbers, its state as arrays by name, and their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from math import sqrt
from zlib import crc32

import numpy as np

from qcore import fold_in
from qcore.random import uniform

SEED = (0, 20_261_123)
MOMENTUM = 0.9
DATA, WEIGHTS, ROUNDING = range(3)  # what the keys of a run are for


def key_for(purpose: int, step: int = 0) -> tuple[int, int]:
    """The key of a purpose in a step."""
    return fold_in(_key_of(purpose), step)


@cache
def _key_of(purpose: int) -> tuple[int, int]:
    return fold_in(SEED, purpose)


def initial(name: str, value: np.ndarray) -> np.ndarray:
    """A parameter's first numbers, by its name in torch: uniform of the deviation 1 / sqrt(inputs).

    Vectors stay as they are: norms begin with ones and zeros, biases with zeros.
    """
    if value.ndim < 2:
        return np.zeros_like(value) if name.endswith("bias") else value
    inputs = value.shape[1] if name in ("letters.weight", "positions.weight") else value[0].size
    bound = sqrt(3 / inputs)
    return uniform(fold_in(key_for(WEIGHTS), crc32(name.encode())), value.shape, -bound, bound)


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """A SHA-256 of names, shapes and bits, in the order of names."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype} {array.shape} ".encode())
        found.update(array.tobytes())
    return found.hexdigest()
