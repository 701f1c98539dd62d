"""Posits."""

from __future__ import annotations

from dataclasses import dataclass

from qcore.arguments import check_choice, check_int
from qcore.formats.number import Number
from qcore.law.carrier import Carrier
from qcore.law.tapered import PositCodes, Taper
from qcore.namespace import Ints
from qcore.random.threefry import as_lane

_MOST_EXPONENT_BITS = 64  # from there on no carrier has a posit with more than the shortest regime


@dataclass(frozen=True, repr=False)
class Posit(Number):
    """Posits: floating point whose exponents far from 0 take bits from the fraction, and then from themselves.

    A code is sign | regime | exponent | fraction, negative numbers in two's complement. The regime k is a run of k + 1
    ones, or of -k zeros, and the bit that ends it; with the es exponent bits E the number is
    (1 + fraction) * 2^(k * 2^es + E), and bits that have no place in the code are 0. There is one zero, and NaR (not a
    real number) for NaN and infinity. The largest posit is 2^((bits - 2) * 2^es), the smallest its reciprocal.

    Rounding drops the last bits of an infinitely long code. So between neighbours whose exponents differ by more than
    1, midpoints, distances and probabilities are those of the code, not of the number. In all modes numbers beyond the
    range become the smallest or the largest posit, never zero or NaR; on a dtype with a shorter range the smallest or
    the largest posit of that dtype. Source: Standard for Posit Arithmetic (2022), where es = 2; Gustafson and
    Yonemoto, "Beating Floating Point at its Own Game: Posit Arithmetic", 2017.

    Args:
        bits: the width of a code, 2 to 32.
        es: the most exponent bits, 0 to 64.

    Raises:
        TypeError: if bits or es is not an integer.
        ValueError: if bits or es is out of range.

    Example:
        >>> Posit(bits=16)
        Posit(bits=16)
        >>> import numpy as np
        >>> from qcore import quantize
        >>> quantize(np.float32([3.14159, -1e-9, 1e9]), Posit(8), "nearest")
        array([ 3.2500000e+00, -5.9604645e-08,  1.6777216e+07], dtype=float32)
    """

    bits: int = None  # type: ignore[assignment]  # otherwise the inherited property would be its default
    es: int = 2

    def __post_init__(self) -> None:
        self._set(bits=check_int("bits", self.bits, 2, 32), es=check_int("es", self.es, 0, _MOST_EXPONENT_BITS))

    @property
    def largest_exponent(self) -> int:
        """The exponent of the largest posit, and of the smallest one's reciprocal."""
        return (self.bits - 2) << self.es

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        below, last = self.es + carrier.width, carrier.last
        drop = below + 3 - self.bits
        least, largest = self._ends(carrier, below, drop)
        parity = (self.bits - 1) % 2 << below if below < last else 0
        bias = carrier.bias << carrier.width
        taper = Taper(min(below, last), drop, min(below, last - 1), least + bias, largest + bias, parity)
        return "posit" if least + bias >= carrier.hidden else "wide_posit", taper

    def _ends(self, carrier: Carrier, below: int, drop: int) -> tuple[int, int]:
        """The carrier's smallest and largest posit, as magnitudes less the bias."""
        reach = self.largest_exponent
        smallest = max(carrier.step_exponent, -reach) << carrier.width
        largest = min(((carrier.max_exponent + 1) << carrier.width) - 1, reach << carrier.width)
        dropped = [Ints.clip(max(m >> below, ~(m >> below)) + drop, 0, below) for m in (smallest, largest)]
        return -(-smallest >> dropped[0] << dropped[0]), largest >> dropped[1] << dropped[1]

    def codes(self, carrier: Carrier) -> PositCodes:
        taper = Taper(*self.reduce(carrier)[1])
        nar = 1 << (self.bits - 1)
        signed = as_lane(nar) if carrier.lane_bits == 32 else nar
        return PositCodes(self.bits - 3, min(taper.drop, carrier.last), nar - 1, signed)

    @property
    def span(self) -> tuple[int, int, int]:
        return max(self.bits - 3 - self.es, 0) + 1, -self.largest_exponent, self.largest_exponent

    def overflowing(self, overflow: str) -> Posit:
        check_choice("overflow", overflow, ["saturate"])
        return self
