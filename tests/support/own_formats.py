"""Formats as a user defines them: floats with a given largest number, any number of levels, and logarithms."""

from dataclasses import dataclass, replace
from functools import cache

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


@cache
def powers(exp, man):
    last = 2 ** (exp + man - 1)
    above = [2 ** (power / 2**man) for power in range(1 - last, last)]
    return qcore.Table([0, *above, 0, *(-one for one in above)])


@dataclass(frozen=True)
class Logarithmic(qcore.Number):
    """A sign, and the logarithm to base 2 with exp bits before and man bits after its point: a table's members."""

    exp: int
    man: int

    def program(self, mode, carrier, coded):
        return powers(self.exp, self.man).program(mode, carrier, coded)

    def reduce(self, carrier):
        return powers(self.exp, self.man).reduce(carrier)

    def codes(self, carrier):
        return powers(self.exp, self.man).codes(carrier)

    def decoding(self, carrier):
        return powers(self.exp, self.man).decoding(carrier)

    bits = property(lambda self: powers(self.exp, self.man).bits)
    span = property(lambda self: powers(self.exp, self.man).span)


qcore.register_format("log_numbers", Logarithmic)
