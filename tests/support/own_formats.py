"""Formats as a user defines them: a float with a given largest number, and any number of levels."""

from dataclasses import dataclass, replace

import qcore
from qcore.law.grid import Grid, uniform_grid
from qcore.namespace import Ints


@dataclass(frozen=True)
class Capped(qcore.Number):
    """Floats of a sign, exp and man bits, with subnormals, whose codes end at `last`."""

    exp: int
    man: int
    last: int

    @property
    def magnitudes(self):
        return replace(qcore.BinaryFloat(self.exp, self.man, specials="finite").magnitudes, largest_code=self.last)

    def reduce(self, carrier):
        return self.magnitudes.grid(carrier)

    def codes(self, carrier):
        return self.magnitudes.codes(carrier, signed=True)

    bits = property(lambda self: 1 + self.exp + self.man)
    span = property(lambda self: self.magnitudes.span)


@dataclass(frozen=True)
class Levels(qcore.Number):
    """The integers from -most to most, times 2^exponent."""

    most: int
    exponent: int = 0

    def reduce(self, carrier):
        base, top, coarsest = uniform_grid(Ints, carrier.bias + self.exponent, carrier)
        limit = carrier.lane_at_most(self.most, self.exponent)
        return "grid", Grid(base, top, coarsest, finest=0, limit=limit, keep=carrier.infinity)


qcore.register_format("capped", Capped)
qcore.register_format("levels", Levels)
