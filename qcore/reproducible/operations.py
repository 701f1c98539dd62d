"""What laws of float32 numbers use of an array namespace: NumPy's names, and the operations that all share."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import namespace
from qcore.reproducible.elementary.power import power
from qcore.reproducible.sums import sums_by_index, tree_sums

SMALLEST = 2.0**-126  # magnitudes up to this one, the smallest normal number, are zeros


def normal(number: float) -> float:
    """A Python number as float32 has it, without subnormal numbers."""
    found = float(np.float32(number))
    return 0.0 if abs(found) <= SMALLEST else found


class Names(namespace.Names):
    """The vocabulary for NumPy; a framework overrides the primitives, and inherits what is made of them.

    Besides these names laws use comparisons, negation, `abs`, slices, `shape`, `ndim` and `reshape`.

    Example:
        >>> Names.mul(np.float32([1, 2**-100]), np.float32([3, 2**-100])).tolist()  # 2^-200 is a zero
        [3.0, 0.0]
    """

    root: Any = staticmethod(np.sqrt)

    @staticmethod
    def is_float32(x: Any) -> bool:
        return x.dtype == np.float32

    @staticmethod
    def to_float32(x: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(np.float32)

    @staticmethod
    def to_float64(x: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(np.float64)

    @staticmethod
    def to_int32(x: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(np.int32)

    @staticmethod
    def bits(x: np.ndarray) -> np.ndarray:
        """Float32 numbers' bits as int32."""
        return np.asarray(x).view(np.int32)

    @staticmethod
    def floats(bits: np.ndarray) -> np.ndarray:
        """The inverse of `bits`."""
        return np.asarray(bits).view(np.float32)

    @staticmethod
    def product(a: Any, b: Any) -> Any:
        """A product of float64 numbers that rounds, and that no compiler contracts with a sum."""
        return a * b

    # From here on, what all frameworks share.

    @classmethod
    def settled(cls, x: Any) -> Any:
        """x with zeros of their sign in the place of float32 numbers of magnitude at most 2^-126.

        To a compiler it is a choice between two numbers of which it knows neither: it contracts no product with a sum
        across it, and drops no conversion to float32.
        """
        return cls.where(abs(x) > SMALLEST, x, x * 0.0)

    @classmethod
    def one_nan(cls, x: Any) -> Any:
        """x with 0x7fc00000 in the place of every NaN."""
        nan: Any = np.nan
        return cls.where(x == x, x, nan)

    @classmethod
    def sums(cls, a: Any, b: Any, axes: tuple[int, ...]) -> Any:
        """See `qcore.reproducible.sums.tree_sums`."""
        return tree_sums(cls, a, b, axes)

    @classmethod
    def sums_by_index(cls, rows: Any, indices: Any, count: int) -> Any:
        """See `qcore.reproducible.sums.sums_by_index`."""
        return sums_by_index(cls, rows, indices, count)

    @classmethod
    def wide(cls, x: Any) -> Any:
        """Settled float32 numbers as float64; a Python number becomes the nearest float32 number first."""
        return float(np.float32(x)) if isinstance(x, int | float) else cls.to_float64(x)

    @classmethod
    def narrow(cls, x: Any) -> Any:
        """Float64 numbers, rounded to float32 and settled."""
        return cls.settled(cls.to_float32(x))

    @classmethod
    def add(cls, a: Any, b: Any) -> Any:
        return cls.settled(a + b)

    @classmethod
    def sub(cls, a: Any, b: Any) -> Any:
        return cls.settled(a - b)

    @classmethod
    def mul(cls, a: Any, b: Any) -> Any:
        return cls.settled(a * b)

    @classmethod
    def div(cls, a: Any, b: Any) -> Any:
        """By way of float64, in which also a * (1 / b) rounds to the quotient of float32 numbers."""
        return cls.narrow(cls.wide(a) / cls.wide(b))

    @classmethod
    def sqrt(cls, x: Any) -> Any:
        return cls.narrow(cls.root(cls.wide(x)))

    @classmethod
    def power(cls, a: Any, b: Any) -> Any:
        """See `qcore.reproducible.elementary.power`."""
        return power(cls, a, b)

    @classmethod
    def near_zero(cls, x: Any, bound: float, near: Any, beyond: Any) -> Any:
        """One function of x as two formulas, of which the first rounds to the right numbers next to zero."""
        return cls.where(abs(x) < bound, near, beyond)


class Unrounded(Names):
    """What a framework's names inherit from first, to be differentiated by the framework: float64, nothing rounds.

    Second derivatives are those of the functions, as derivatives of roundings are none.

    Example:
        >>> Unrounded.div(np.array([1.0]), np.array([3.0])).tolist()
        [0.3333333333333333]
    """

    @staticmethod
    def materialize(x: Any, /) -> Any:
        return x

    settled: Any = materialize
    one_nan: Any = materialize
    to_float32: Any = materialize

    @staticmethod
    def product(a: Any, b: Any) -> Any:
        return a * b

    @staticmethod
    def power(a: Any, b: Any) -> Any:
        return a**b

    @staticmethod
    def near_zero(x: Any, bound: float, near: Any, beyond: Any) -> Any:
        return beyond

    @staticmethod
    def sums(a: Any, b: Any, axes: tuple[int, ...]) -> Any:
        x = a if b is None else a * b
        return x.sum(axes, keepdims=True) if axes else x

    @classmethod
    def sums_by_index(cls, rows: Any, indices: Any, count: int) -> Any:
        return sums_by_index(cls, rows, indices, count)
