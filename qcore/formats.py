"""Number formats: frozen, hashable descriptions that reduce themselves to a few integers for each carrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from qcore.arguments import check_flag, check_int
from qcore.carrier import Carrier
from qcore.law import Block, Grid, uniform_grid


class Number(ABC):
    """A number format. Formats are immutable, hashable, comparable and picklable."""

    @abstractmethod
    def reduce(self, carrier: Carrier) -> tuple[str, Grid | Block]:
        """The kind of this format (see `Program`) and its integers on a carrier.

        Raises:
            ValueError: when the carrier cannot hold the format's numbers at all.
        """

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The axes along which an array of `ndim` dimensions shares one quantum (only blocks share any)."""
        return ()


@dataclass(frozen=True, repr=False)
class FixedPoint(Number):
    """Two's complement fixed point: the multiples of 2^-fl that wl bits can count.

    The range is [-2^(wl-fl-1), 2^(wl-fl-1) - 2^-fl]. Source: Gupta et al., "Deep Learning with Limited Numerical
    Precision", 2015; argument names and meaning are QPyTorch's.

    Args:
        wl: word length in bits, at least 1.
        fl: fractional length in bits; may be 0, negative, or above wl.
        clamp: whether numbers outside the range become its nearer end; else only the precision is simulated.
        symmetric: whether the lowest number is given up, so that the range is [-max, max].

    Raises:
        TypeError: if wl or fl is no integer, or clamp or symmetric no bool.
        ValueError: if wl is below 1.

    Example:
        >>> FixedPoint(wl=8, fl=4)
        FixedPoint (wl=8, fl=4)
    """

    wl: int
    fl: int
    clamp: bool = True
    symmetric: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "wl", check_int("wl", self.wl, 1))
        object.__setattr__(self, "fl", check_int("fl", self.fl))
        check_flag("clamp", self.clamp)
        check_flag("symmetric", self.symmetric)

    def __repr__(self) -> str:
        extra = ("" if self.clamp else ", clamp=False") + (", symmetric=True" if self.symmetric else "")
        return f"FixedPoint (wl={self.wl}, fl={self.fl}{extra})"

    def reduce(self, carrier: Carrier) -> tuple[str, Grid | Block]:
        if not carrier.step_exponent <= -self.fl <= carrier.max_exponent:
            raise ValueError(
                f"fl={self.fl}: the step 2^{-self.fl} is no {carrier.name} number; allowed are "
                f"{-carrier.max_exponent} <= fl <= {-carrier.step_exponent}"
            )
        lowest = 1 << min(self.wl - 1, 2 << carrier.exponent_bits)  # steps; beyond, every carrier has ended
        highest = lowest - 1
        limit = carrier.lane_at_most(highest, -self.fl) if self.clamp else carrier.infinity
        lower = carrier.lane_at_most(highest if self.symmetric else lowest, -self.fl) if self.clamp else limit
        base, top, coarsest = uniform_grid(_Ints, carrier.bias - self.fl, carrier)
        return "grid", Grid(base, top, coarsest, 0, 0, limit, lower - limit)


@dataclass(frozen=True, repr=False)
class FloatingPoint(Number):
    """Binary floating point with subnormals and without codes for infinity and NaN: QPyTorch's grid.

    Exponents run from 2 - 2^(exp-1) to 2^(exp-1), so the largest number is (2 - 2^-man) * 2^(2^(exp-1)); results
    saturate there, infinities included. From exp = 8 on, the range is the carrier's, and overflow is infinity.

    Args:
        exp: exponent bits, 1 to 64.
        man: stored mantissa bits, 0 to 23.

    Raises:
        TypeError: if exp or man is no integer.
        ValueError: if exp or man is out of range.

    Example:
        >>> FloatingPoint(exp=5, man=2)
        FloatingPoint (exponent=5, mantissa=2)
    """

    exp: int
    man: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "exp", check_int("exp", self.exp, 1, 64))
        object.__setattr__(self, "man", check_int("man", self.man, 0, 23))

    def __repr__(self) -> str:
        return f"FloatingPoint (exponent={self.exp}, mantissa={self.man})"

    def reduce(self, carrier: Carrier) -> tuple[str, Grid | Block]:
        max_exponent = 1 << (self.exp - 1)
        min_exponent = max(2 - max_exponent, carrier.min_exponent)
        base, top, coarsest = uniform_grid(_Ints, min_exponent - self.man + carrier.bias, carrier)
        finest = carrier.width - self.man
        if self.exp < 8:
            limit = carrier.lane_at_most((2 << self.man) - 1, min(max_exponent, carrier.max_exponent) - self.man)
        else:
            limit = carrier.infinity
        wide = 2 - max_exponent < carrier.min_exponent and finest > 0
        unit = carrier.hidden if self.man == 0 else 0
        return "wide" if wide else "grid", Grid(base, top, coarsest, finest, unit, limit, 0)


@dataclass(frozen=True, repr=False)
class BlockFloatingPoint(Number):
    """Block floating point: integers of wl bits that share one exponent, the largest element's.

    With E = floor(log2(max |x|)) over the block, the step is 2^(E - (wl - 2)) and results are clipped to
    +-(2^(wl-1) - 1) steps. Source: QPyTorch; Song et al., "Computation Error Analysis of Block Floating Point
    Arithmetic Oriented Convolution Neural Network Accelerator Design", 2018.

    Args:
        wl: word length in bits, sign included, 2 to 25.
        dim: -1: the whole array is one block; d >= 0: one block for each index along dimension d.

    Raises:
        TypeError: if wl or dim is no integer.
        ValueError: if wl is out of range or dim is below -1.

    Example:
        >>> BlockFloatingPoint(wl=8)
        BlockFloatingPoint (wl=8, dim=-1)
    """

    wl: int
    dim: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "wl", check_int("wl", self.wl, 2, 25))
        object.__setattr__(self, "dim", check_int("dim", self.dim, -1))

    def __repr__(self) -> str:
        return f"BlockFloatingPoint (wl={self.wl}, dim={self.dim})"

    def reduce(self, carrier: Carrier) -> tuple[str, Grid | Block]:
        below = self.wl - 2
        unused = carrier.width - min(below, carrier.mantissa_bits)
        return "block", Block(below, (carrier.hidden - 1) >> unused << unused)

    def axes(self, ndim: int) -> tuple[int, ...]:
        if self.dim >= ndim:
            raise ValueError(f"dim={self.dim}: allowed are -1 and 0 <= dim < {ndim} for an array of {ndim} dimensions")
        return tuple(axis for axis in range(ndim) if axis != self.dim)


def check_number(number: Any) -> Number:
    if not isinstance(number, Number):
        name = type(number).__name__
        raise TypeError(f"number={number!r} is a {name}; allowed is a Number such as FloatingPoint(5, 2)")
    return number


class _Ints:
    """The part of an array namespace that Python's ints need to stand in for arrays."""

    @staticmethod
    def clip(value: int, low: int | None, high: int | None) -> int:
        value = value if low is None else max(value, low)
        return value if high is None else min(value, high)
