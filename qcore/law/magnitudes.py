"""The numbers of a floating point format, without signs and special codes, on a carrier."""

from __future__ import annotations

from dataclasses import dataclass

from qcore.law.carrier import FLOAT32, Carrier
from qcore.law.codes import FloatCodes, NormalCodes, PowerCodes
from qcore.law.grid import Grid, uniform_grid
from qcore.namespace import Ints
from qcore.random.threefry import as_lane


@dataclass(frozen=True)
class Magnitudes:
    """Magnitudes (field, mantissa) of `man` bits of mantissa, up to a largest code field << man | mantissa.

    Attributes:
        name: of the format, for messages.
        exp, man, bias: as in `BinaryFloat`.
        largest_code: the code of the largest magnitude.
        first: the exponent field of the smallest normal number, 1 or 0.
        subnormals: True if field 0 has subnormal numbers.
    """

    name: str
    exp: int
    man: int
    bias: int
    largest_code: int
    first: int = 1
    subnormals: bool = True

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number."""
        return self.first - self.bias

    @property
    def largest(self) -> tuple[int, int]:
        """The largest magnitude, as count and exponent: count * 2^exponent."""
        field, mantissa = divmod(self.largest_code, 1 << self.man)
        count = mantissa + ((1 << self.man) if field >= self.first else 0)
        return count, max(field, self.first) - self.bias - self.man

    @property
    def smallest(self) -> tuple[int, int]:
        """The smallest magnitude above zero, in the same form."""
        return 1, self.lowest - (self.man if self.subnormals else 0)

    @property
    def span(self) -> tuple[int, int, int]:
        """See `Number.span`."""
        count, exponent = self.largest
        return self.man + 1, self.lowest - self.man, exponent + count.bit_length() - 1

    def lowest_lane(self, carrier: Carrier) -> int:
        """The lane of the smallest normal number; 0 if that is below all numbers of the carrier."""
        return carrier.lane_at_most(1, max(self.lowest, carrier.step_exponent - 1))

    def grid(self, carrier: Carrier) -> tuple[str, Grid]:
        """The kind of the format, and its grid, saturating."""
        width, least = carrier.width, self.smallest[1]
        if self.man > (most := max(width, FLOAT32.width)):
            raise ValueError(f"{self.name} on {carrier.name}: man={self.man}; allowed is man <= {most}")
        if least > carrier.max_exponent:
            raise ValueError(f"{self.name} on {carrier.name}: its numbers are all beyond the largest {carrier.name}")
        base, top, coarsest = uniform_grid(Ints, max(least, carrier.min_exponent - width) + carrier.bias, carrier)
        count, exponent = self.largest
        if exponent + self.man > (last := max(carrier.max_exponent, self.lowest)):
            count, exponent = (2 << self.man) - 1, last - self.man
        limit = carrier.lane_at_most(count, exponent)
        unit = carrier.hidden if self.man == 0 else 0
        slope = 0 if self.subnormals else 6
        lowest, shift = self.lowest_lane(carrier), (self.bias - carrier.bias + (base >> width)) % 2
        finest, keep = max(width - self.man, 0), carrier.infinity
        grid = Grid(base, top, coarsest, finest, limit, keep, unit=unit, slope=slope, lowest=lowest, shift=shift)
        if self.lowest < carrier.min_exponent or self.man == 0:
            return "wide", grid
        return "grid" if self.subnormals else "general", grid

    def codes(self, carrier: Carrier, signed: bool) -> FloatCodes:
        """The codes of the magnitudes, with a sign bit, without infinity and NaN."""
        size = self.exp + self.man
        if size > 31:
            allowed = "at most 32, without a sign 31"
            raise ValueError(f"{self.name} has codes of {size + signed} bits; allowed are {allowed}")
        if size > carrier.lane_bits - 2 and self.lowest < carrier.min_exponent:
            raise ValueError(
                f"{self.name} on {carrier.name} has codes of {size + signed} bits; allowed only on float64"
            )
        normal = self.smallest[1] >= carrier.min_exponent
        kind = PowerCodes if self.man == 0 else NormalCodes if normal else FloatCodes
        return kind(
            man=self.man,
            mask=as_lane((1 << size) - 1),
            sign=as_lane(signed << size),
            first=self.first,
            lowest=self.lowest + carrier.bias,
            least=1 if self.subnormals else self.first << self.man,
            largest=self.largest_code,
            infinity=self.largest_code,
            nan=0,
            nan_sign=0,
            nan_zero=-1,
        )
