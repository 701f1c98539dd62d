"""What every number format is: an immutable description that reduces itself to a few integers for each carrier."""

from __future__ import annotations

from abc import ABC, abstractmethod

from qcore.carrier import Carrier
from qcore.codes import Codes
from qcore.tiles import Sizes


class Number(ABC):
    """A number format. Formats are immutable, hashable, comparable and picklable."""

    @abstractmethod
    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        """The kind of this format (see `Program`) and its integers on a carrier.

        Raises:
            ValueError: when the carrier cannot hold the format's numbers at all.
        """

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The axes along which an element's result depends on others, in an array of `ndim` dimensions."""
        return ()

    def block_sizes(self, ndim: int) -> Sizes:
        """How many elements along each axis share a scale; None is all of them."""
        return (1,) * ndim

    @property
    def bits(self) -> int:
        """The width of a code.

        Raises:
            ValueError: if the format's numbers have no codes.
        """
        raise ValueError(f"number={self!r} has no codes for single numbers")

    def codes(self, carrier: Carrier) -> Codes:
        """The integers of this format's codes on a carrier.

        Raises:
            ValueError: if the format's numbers have no codes, or codes of more than 32 bits.
        """
        raise ValueError(f"number={self!r} has no codes for single numbers")

    @property
    def span(self) -> tuple[int, int, int]:
        """Significant bits of the numbers, and the exponents of the smallest step and of the largest number.

        Raises:
            ValueError: if the numbers have no codes.
        """
        raise ValueError(f"number={self!r} has no codes for single numbers")

    def check_exact(self, carrier: Carrier) -> None:
        """Raises ValueError unless the carrier has all the format's numbers."""
        bits, step, largest = self.span
        allowed = (carrier.mantissa_bits + 1, carrier.step_exponent, carrier.max_exponent)
        if bits > allowed[0] or step < allowed[1] or largest > allowed[2]:
            raise ValueError(
                f"dtype={carrier.name}; {self!r} has numbers of {bits} bits from 2^{step} to 2^{largest}, allowed is a "
                f"dtype that has them all ({carrier.name} has {allowed[0]} bits, 2^{allowed[1]} to 2^{allowed[2]})"
            )

    def overflowing(self, overflow: str) -> Number:
        """This format with another policy for numbers beyond its range; see `quantize`.

        Raises:
            ValueError: if the format has nothing that the policy asks for.
        """
        raise ValueError(f"overflow={overflow!r}; {self!r} has no other policy than its own")


class Ints:
    """The part of an array namespace that Python's ints need to stand in for arrays."""

    @staticmethod
    def clip(value: int, low: int | None, high: int | None) -> int:
        value = value if low is None else max(value, low)
        return value if high is None else min(value, high)
