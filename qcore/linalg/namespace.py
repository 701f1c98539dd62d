"""The array namespace of products: NumPy's names, and sums in float64."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from qcore import namespace
from qcore.formats.number import Number
from qcore.law.rounding import Rounding, rounds_distance
from qcore.linalg.accumulator import Accumulator, rounding_program
from qcore.random.threefry import as_lane, block_of_step, words_of_step


class Float64(namespace.Names):
    """The array namespace of the law of products; arrays are float64 unless a method names another type.

    `key` has two 32-bit words for stochastic accumulators, else it is None.
    """

    def __init__(self, key: tuple[int, int] | None = None) -> None:
        self.key = key

    @staticmethod
    def float32(x: np.ndarray) -> np.ndarray:
        """Float64 rounded to float32."""
        return x.astype(np.float32)

    @staticmethod
    def part(x: np.ndarray, index: int, axis: int, count: int = 1) -> np.ndarray:
        """The index-th `count` places of an axis, which stays."""
        return np.take(x, range(index * count, (index + 1) * count), axis)

    @staticmethod
    def plus(total: np.ndarray, found: np.ndarray) -> np.ndarray:
        """The sum of both; it may overwrite the second."""
        found += total
        return found

    @staticmethod
    def unsigned_zero(x: np.ndarray) -> np.ndarray:
        """x with +0 for every -0."""
        return x + 0.0

    @staticmethod
    def lanes(x: np.ndarray) -> np.ndarray:
        """The bits as int64."""
        return x.view(np.int64)

    @staticmethod
    def floats(bits: np.ndarray) -> np.ndarray:
        """The inverse of `lanes`."""
        return bits.view(np.float64)

    @staticmethod
    def float64(x: np.ndarray) -> np.ndarray:
        """Float32 as float64."""
        return x.astype(np.float64)

    @classmethod
    def product(cls, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The product of float32 matrices in float64, for matrices whose sums are exact in any order."""
        return cls.float64(a) @ cls.float64(b)

    @staticmethod
    def ascending(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """The product of float32 matrices in float64, term by term; None leaves it to the law."""
        return None

    @staticmethod
    def sequential(
        a: np.ndarray, b: np.ndarray, accumulator: Accumulator, first: int, addend: np.ndarray | None
    ) -> np.ndarray | None:
        """The product of float32 matrices by a sequential accumulator; None leaves it to the law."""
        return None

    @staticmethod
    def by_steps(
        a: np.ndarray,
        b: np.ndarray,
        accumulator: Accumulator,
        least: tuple[int, int],
        scales: tuple[np.ndarray, np.ndarray] | None,
        addend: np.ndarray | None,
    ) -> np.ndarray | None:
        """The product of float32 matrices by aligned sums or an instruction, from a float64 addend on.

        None leaves it to the law. `least` and `scales` are those of `qcore.linalg.steps.step`.
        """
        return None

    @staticmethod
    def fold(step: Callable[..., Any], total: Any, a: Any, b: Any, length: int, shares_words: bool = False) -> Any:
        """Applies step(total, index, a's part, b's part) to all chunks of the contraction index, ascending.

        With `shares_words`, every four steps from the first on read one block of random words.
        """
        for index, begin in enumerate(range(0, a.shape[-1], length)):
            total = step(total, index, a[..., begin : begin + length], b[..., begin : begin + length, :])
        return total

    def rounded(  # type: ignore[override]
        self, x: np.ndarray, number: Number, mode: Rounding, step: int, random_bits: int
    ) -> np.ndarray:
        """Rounds to a format; stochastic rounding reads the words of the step."""
        program, constants = rounding_program(number, mode)
        word = None if not mode.stochastic else self.words(x.shape, step, random_bits, rounds_distance(mode)) << 32
        return program.run(namespace.Names, x.view(np.int64), constants, (), word).view(np.float64)

    def words(self, shape: tuple[int, ...], step: int, random_bits: int, half: bool) -> np.ndarray:
        """The random words of a step, in int64."""
        assert self.key is not None  # checked where the key is given
        block, part = block_of_step(step, random_bits)
        start = block * prod(shape)
        words = (*self.key, start >> 32 & 0xFFFFFFFF, start & 0xFFFFFFFF)
        high = [np.full(1, as_lane(word), np.int32) for word in words]  # arrays wrap silently, scalars warn
        arange: Any = lambda size: np.arange(size, dtype=np.int32)  # noqa: E731
        key, first = (high[0], high[1]), (high[2], high[3])
        return words_of_step(arange, shape, key, first, part, random_bits, half).astype(np.int64)
