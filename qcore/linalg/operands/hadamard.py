"""Random Hadamard transforms along the sum of a product."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qcore.arguments import check_seed, quoted
from qcore.formats.text import Kind, Reader, register, write
from qcore.random.threefry import threefry

SIZE, _STAGES = 16, (1, 2, 4, 8)


@dataclass(frozen=True)
class Hadamard:
    """16 neighbouring terms of a sum, times signs, times the orthogonal Hadamard matrix of 16 rows.

    Element j of the result is the sum over i of (-1)^(number of ones in i & j) * sign[i] * x[i] / 4. Four stages
    compute it, of float32 additions and subtractions of numbers whose places differ by 1, 2, 4 and 8; at last 1/4 is
    multiplied. Each result is rounded to float32, subnormal numbers included. Zeros are appended to a sum whose length
    16 does not divide. Applied to both operands it leaves the exact product as it is: a `Product` has it in both, or in
    neither. Source: NVIDIA, "Pretraining Large Language Models with NVFP4", 2025: one vector of signs for all layers.

    Args:
        seed: the key of the signs, from 0 to 2^64 - 1. The i-th sign is minus where the highest bit of the key's random
            word with the index i is set.

    Attributes:
        signs: the 16 signs, 1 or -1.

    Raises:
        TypeError, ValueError: if seed is not as above.

    Example:
        >>> Hadamard(3).text, Hadamard(3).signs[:4]
        ('hadamard(seed=3)', (1, -1, -1, -1))
    """

    seed: int = 0
    signs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        high, low = check_seed(self.seed)
        if not isinstance(self.seed, int):
            raise TypeError(
                f"seed={quoted(self.seed)} is a {type(self.seed).__name__}; allowed is an int from 0 to 2^64 - 1"
            )
        words = [_word(high, low, index) for index in range(SIZE)]
        object.__setattr__(self, "signs", tuple(1 - 2 * (word >> 31) for word in words))
        object.__setattr__(self, "text", write(self))


def _word(high: int, low: int, index: int) -> int:
    """The random word of an index, of a key's two words."""
    y0, y1 = threefry(high, low, 0, index, lambda number: number & 0xFFFFFFFF)
    return (y0 ^ y1) & 0xFFFFFFFF


def transformed(xp: Any, x: Any, transform: Hadamard) -> Any:
    """A float32 array with 16 neighbours along the last axis transformed; zeros are appended where some are missing."""
    missing = -x.shape[-1] % SIZE
    if missing:
        x = xp.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, missing)])
    shape = x.shape
    if 0 in shape:
        return x
    x = xp.wide(x).reshape(*shape[:-1], shape[-1] // SIZE, SIZE)
    x = xp.stack([x[..., i] * float(sign) for i, sign in enumerate(transform.signs)], -1)
    for distance in _STAGES:
        pairs = x.reshape(*x.shape[:-1], SIZE // 2 // distance, 2, distance)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        found = xp.materialize(xp.narrow(xp.stack([first + second, first - second], -2)))
        x = xp.wide(found).reshape(x.shape)
    return xp.narrow(x * 0.25).reshape(shape)


register("hadamard", Kind(Hadamard, {"seed": Reader.integer}, 0, 0, 0))
