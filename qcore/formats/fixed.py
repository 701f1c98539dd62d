"""Fixed point numbers and integers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qcore.arguments import check_choice, check_flag, check_int, quoted
from qcore.formats.number import Number
from qcore.law.carrier import Carrier
from qcore.law.codes import FixedCodes, SmallCodes
from qcore.law.grid import Grid, uniform_grid
from qcore.namespace import Ints
from qcore.random.threefry import as_lane

_MOST_BITS = 4096  # float64's numbers have 2,098 places


@dataclass(frozen=True, repr=False)
class FixedPoint(Number):
    """Fixed point: the multiples of 2^-fl that wl bits can count, in two's complement or unsigned.

    The range is [-2^(wl-fl-1), 2^(wl-fl-1) - 2^-fl], unsigned [0, 2^(wl-fl) - 2^-fl]. Integers have fl = 0. Source:
    Gupta et al., "Deep Learning with Limited Numerical Precision", 2015; argument names and meaning are QPyTorch's.

    Args:
        wl: word length in bits, 1 to 4096.
        fl: fractional length in bits, from -4096 to 4096: 0, negative, or above wl.
        clamp: True clamps numbers to the range; False simulates the precision only.
        symmetric: True removes the lowest number, so that the range is [-max, max].
        signed: True for formats with negative numbers.
        wrap: True takes numbers outside the range modulo 2^wl steps, as integer registers do; infinity then becomes
            NaN. wl is at most 31, unsigned at most the carrier's significant bits.

    Raises:
        TypeError: if wl or fl is not an integer, or another argument not a bool.
        ValueError: if wl or fl is out of range, or the flags exclude each other.

    Example:
        >>> FixedPoint(wl=8, fl=4)
        FixedPoint(wl=8, fl=4)
    """

    wl: int
    fl: int
    clamp: bool = True
    symmetric: bool = False
    signed: bool = True
    wrap: bool = False

    def __post_init__(self) -> None:
        self._set(wl=check_int("wl", self.wl, 1, _MOST_BITS), fl=check_int("fl", self.fl, -_MOST_BITS, _MOST_BITS))
        for name in ("clamp", "symmetric", "signed", "wrap"):
            check_flag(name, getattr(self, name))
        if self.symmetric and (not self.signed or self.wrap):
            raise ValueError("symmetric=True; allowed is False where signed=False or wrap=True")
        if self.wrap and self.wl > 31:
            raise ValueError(f"wl={self.wl}; allowed is an int from 1 to 31 where wrap=True")

    def __str__(self) -> str:
        """The text of QPyTorch; `text` is the library's."""
        flags = {"clamp": True, "symmetric": False, "signed": True, "wrap": False}
        extra = [f", {name}={not default}" for name, default in flags.items() if getattr(self, name) != default]
        return f"FixedPoint (wl={self.wl}, fl={self.fl}{''.join(extra)})"

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        if not carrier.step_exponent <= -self.fl <= carrier.max_exponent:
            raise ValueError(
                f"fl={self.fl}: the step 2^{-self.fl} is no {carrier.name} number; allowed are "
                f"{-carrier.max_exponent} <= fl <= {-carrier.step_exponent}"
            )
        if self.wrap and not self.signed and self.wl > carrier.mantissa_bits + 1:
            raise ValueError(
                f"wl={self.wl} on {carrier.name}; allowed is wl <= {carrier.mantissa_bits + 1} for {quoted(self)}"
            )
        steps = 1 << min(self.wl - self.signed, 2 << carrier.exponent_bits)  # more than any carrier has
        limit = lower = carrier.infinity
        if self.clamp and not self.wrap:
            limit = carrier.lane_at_most(steps - 1, -self.fl)
            lower = carrier.lane_at_most(steps - self.symmetric if self.signed else 0, -self.fl)
        base, top, coarsest = uniform_grid(Ints, carrier.bias - self.fl, carrier)
        grid = Grid(base, top, coarsest, 0, limit, carrier.infinity, lower - limit)
        if not self.wrap:
            return "grid", grid
        return "normal_wrap" if -self.fl >= carrier.min_exponent else "wrap", (*grid, *self.codes(carrier))

    @property
    def bits(self) -> int:
        if not (self.clamp or self.wrap):
            raise ValueError(
                f"number={quoted(self)}: without a range it has no codes; allowed are clamp=True and wrap=True"
            )
        return self.wl

    def codes(self, carrier: Carrier) -> FixedCodes:
        if self.bits > 32:
            raise ValueError(f"{quoted(self)} has codes of {self.wl} bits; allowed are at most 32")
        half, mask = self.signed << (self.wl - 1), (1 << self.wl) - 1
        if carrier.lane_bits == 32:
            half, mask = as_lane(half), as_lane(mask)
        small = not self.wrap and self.wl - self.signed < carrier.lane_bits and -self.fl >= carrier.min_exponent
        return (SmallCodes if small else FixedCodes)(-self.fl, half, mask, int(self.symmetric))

    @property
    def span(self) -> tuple[int, int, int]:
        digits = self.wl - self.signed
        return digits, -self.fl, digits - 1 - self.fl + self.signed

    def overflowing(self, overflow: str) -> FixedPoint:
        check_choice("overflow", overflow, ["saturate", "wrap"])
        return replace(self, clamp=True, wrap=overflow == "wrap")
