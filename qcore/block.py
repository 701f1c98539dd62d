"""Numbers that share an exponent."""

from __future__ import annotations

from dataclasses import dataclass

from qcore.arguments import check_int
from qcore.carrier import Carrier
from qcore.law import Block
from qcore.number import Number


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

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        below = self.wl - 2
        unused = carrier.width - min(below, carrier.mantissa_bits)
        return "block", Block(below, (carrier.hidden - 1) >> unused << unused)

    def axes(self, ndim: int) -> tuple[int, ...]:
        if self.dim >= ndim:
            raise ValueError(f"dim={self.dim}: allowed are -1 and 0 <= dim < {ndim} for an array of {ndim} dimensions")
        return tuple(axis for axis in range(ndim) if axis != self.dim)
