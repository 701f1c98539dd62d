"""Sequential sums in float32 that have the bits of float64 ones, where `qcore.accumulate.sums.exactness` says so.

In the place of one float64 addition and `round_to_grid` stand a few operations on float32 numbers: twice as many fit in
a register, and no number of bits to drop has to be found. With E the exponent of a number, or the least one of the
format if that is larger, the format's steps there are 2^(E - man). All powers of two here are float32 numbers, and
so are all results but those that are meant to be rounded.
"""

from __future__ import annotations

from typing import Any

from qcore.accumulate.accumulator import Accumulator, rounding_program
from qcore.law.carrier import FLOAT32
from qcore.law.grid import Grid
from qcore.law.rounding import Rounding
from qcore.random.threefry import as_lane

_MAGNITUDE, _SIGN = 0x7FFFFFFF, -0x80000000
_WIDTH, _FIELDS = 23, 0x7F800000
_KINDS = ("grid", "overflowing")  # of floats with subnormal numbers, whose zeros have signs


class NarrowRule:
    """How a sequential accumulator adds and rounds in float32.

    Args:
        accumulator: the accumulator.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator, self._mode = accumulator, accumulator.rounding
        self._program, self._constants = rounding_program(accumulator.number, self._mode, FLOAT32)
        grid = Grid(*self._constants) if self._program.kind in _KINDS else None
        if grid is None or grid.finest == 0 or grid.lower != 0 or self._mode not in _BY_FLOATS:
            self._grid = None
        else:
            self._grid = grid

    def plus(self, xp: Any, total: Any, term: Any) -> Any:
        """A sum of which `rounded` makes what it would make of the exact one."""
        return total + term if self._mode.to_nearest else truncated_sum(xp, total, term)

    def rounded(self, xp: Any, law_names: Any, x: Any, word: Any = None) -> Any:
        """R of such a sum.

        Args:
            xp: the array namespace of products.
            law_names: that of the law of rounding.
            x: float32 array.
            word: see `round_to_grid`.
        """
        if self._grid is None:
            return xp.float32_from(self._program.run(law_names, xp.float32_bits(x), self._constants, (), word))
        noise, random_bits = None, self._accumulator.random_bits
        if word is not None:
            noise = xp.float32_from(law_names.float_bits(word >> (31 - random_bits)))
        return by_floats(xp, x, self._grid, self._mode, noise, random_bits)


_BY_FLOATS = (Rounding.NEAREST, Rounding.TOWARD_ZERO, Rounding.STOCHASTIC)


def truncated_sum(xp: Any, total: Any, term: Any) -> Any:
    """The exact sum, toward zero to float32: what its nearest float32 number leaves out says where that is beyond it.

    Source: Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
    """
    found = total + term
    part = found - total
    rest = (total - (found - part)) + (term - part)
    bits = xp.float32_bits(found)
    beyond = (bits ^ xp.float32_bits(rest)) >> 31
    return xp.float32_from(bits + xp.where(abs(rest) > 0, beyond, 0))  # the rest of an infinity is NaN


def by_floats(xp: Any, x: Any, grid: Grid, mode: Rounding, noise: Any, random_bits: int) -> Any:
    """`round_to_grid` of float32 numbers, for the grid of a float with subnormal numbers.

    Args:
        xp: the array namespace of products.
        x: float32 array; for stochastic rounding, numbers with at most random_bits bits below the format's.
        grid, mode: the format's integers, and a rounding of `_BY_FLOATS`.
        noise: stochastic rounding's random bits as integers from 0 on, in float32.
        random_bits: how many these are.
    """
    man = _WIDTH - grid.finest
    bits = xp.float32_bits(x)
    magnitude = bits & _MAGNITUDE
    finite = xp.clip(magnitude, None, grid.limit + (1 << _WIDTH))  # which overflows as all above it
    field = xp.clip(finite & _FIELDS, (grid.base >> _WIDTH) + 1 + man << _WIDTH, None)
    if mode is Rounding.NEAREST:
        large = xp.float32_from(field + (grid.finest << _WIDTH))  # 2^(E + 23 - man): a sum with it has the same steps
        found = (xp.float32_from(finite) + large) - large
    else:
        parts = random_bits if noise is not None else 0  # of steps / 2^parts
        found = xp.trunc(xp.float32_from(finite) * xp.float32_from(as_lane(254 + man + parts << _WIDTH) - field))
        if noise is not None:
            found = xp.trunc((found + noise) * 2.0**-parts)
        found = found * xp.float32_from(field - (man << _WIDTH))
    found = xp.float32_bits(found)
    if grid.jump:
        beyond = grid.limit + grid.jump
        if mode is Rounding.TOWARD_ZERO:  # finite numbers stay so
            beyond = grid.limit + (((_FIELDS - 1 - magnitude) >> 31) & grid.jump)
        found = xp.where(found > grid.limit, beyond, found)
    else:
        found = xp.clip(found, None, grid.limit)
    return xp.float32_from(xp.where(magnitude > grid.keep, bits, found | (bits & _SIGN)))
