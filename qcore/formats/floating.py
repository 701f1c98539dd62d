"""Binary floating point numbers."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field, replace

from qcore.arguments import check_choice, check_flag, check_int, quoted
from qcore.formats.number import Number
from qcore.law.carrier import FLOAT32, Carrier
from qcore.law.codes import FloatCodes, NormalCodes, PowerCodes
from qcore.law.grid import Grid, uniform_grid
from qcore.namespace import Ints
from qcore.random.threefry import as_lane

_FARTHEST = 4096  # exponents that any bias may reach; float64's lie within 1,100
_BY_WIDTH = {8: (5, 2), 16: (6, 9)}
SPECIALS = ("ieee", "fn", "fnuz", "finite", "p3109", "p3109_finite")


def _check_bias(bias: object, exp: int) -> int:
    """Checks a bias. With a bias far beyond every dtype's, exact numbers would be integers of gigabytes."""
    return check_int("bias", bias, -_FARTHEST, max(_FARTHEST, 1 << exp))


@dataclass(frozen=True, repr=False)
class BinaryFloat(Number):
    """Binary floating point with every property given: fields, bias, special codes, overflow.

    Codes are sign | exponent field | mantissa. Field f > 0 stands for (1 + mantissa / 2^man) * 2^(f - bias), field 0
    for zero and the subnormal numbers. `specials` gives the last codes their meaning:

    | specials | infinity | NaN | largest number's field and mantissa |
    | --- | --- | --- | --- |
    | "ieee" | field of ones, mantissa 0 | field of ones, other mantissas | last but one field, mantissa of ones |
    | "fn" | none | all ones | all ones but the last |
    | "fnuz" | none | the code of -0, which does not exist | all ones |
    | "finite" | none | none | all ones |
    | "p3109" | all ones but the sign; unsigned: one less | the code of -0; unsigned: all ones | before infinity |
    | "p3109_finite" | none | the code of -0; unsigned: all ones | all ones; unsigned: one less |

    Source: IEEE 754-2019; OCP 8-bit Floating Point Specification 1.0 ("fn"); Noune et al., "8-bit Numerical Formats
    for Deep Neural Networks", 2022 ("fnuz"); IEEE P3109 interim report.

    Args:
        exp: bits of the exponent field, 0 to 31.
        man: bits of the mantissa, 0 to 52.
        bias: the exponent field minus the exponent, from -4096 to the larger of 4096 and 2^exp; None is 2^(exp-1) - 1.
        specials: one of the above.
        subnormals: True if field 0 has subnormal numbers. Otherwise the smallest normal number is also the quantum
            below it, and field 0 of an unsigned format is a normal one, so that the format has no zero.
        signed: True if codes have a sign bit.
        overflow: the result of numbers that round to more than the largest, and of infinities: "saturate" (the
            largest), "propagate" (the largest for finite numbers; infinities stay), "inf" or "nan". IEEE P3109 calls
            the first three SatFinite, SatPropagate and SatNone, and its formats without infinity have the largest
            number instead of it. None is "inf" if the format has infinity or is one of P3109's, else "nan" if it has
            NaN, else "saturate".

    Raises:
        ValueError: if an argument is out of range, or contradicts another.

    Example:
        >>> BinaryFloat(exp=4, man=3, specials="fn")
        BinaryFloat(exp=4, man=3, bias=7, specials='fn', overflow='nan')
    """

    exp: int
    man: int
    bias: int | None = None
    specials: str = "ieee"
    subnormals: bool = True
    signed: bool = True
    overflow: str | None = None

    def __post_init__(self) -> None:
        self._set(exp=check_int("exp", self.exp, 0, 31), man=check_int("man", self.man, 0, 52))
        self._set(bias=(1 << self.exp) // 2 - 1 if self.bias is None else _check_bias(self.bias, self.exp))
        check_choice("specials", self.specials, SPECIALS)
        check_flag("subnormals", self.subnormals)
        check_flag("signed", self.signed)
        if self.specials == "fnuz" and not self.signed:
            raise ValueError("specials='fnuz' without a sign; allowed are ieee, fn, finite, p3109 and p3109_finite")
        least = 1 if self.subnormals or not self.signed else 1 << self.man
        if self.largest_code < least or (self.specials == "ieee" and self.man == 0):
            raise ValueError(
                f"exp={self.exp}, man={self.man}; allowed are more bits where specials={quoted(self.specials)}"
            )
        infinite = self.has_infinity or self._is_p3109
        policies = {"inf": infinite, "nan": self.has_nan, "saturate": True, "propagate": infinite}
        allowed = [name for name, exists in policies.items() if exists]
        if self.overflow is None:
            self._set(overflow=allowed[0])
        check_choice("overflow", self.overflow, allowed)

    @property
    def _is_p3109(self) -> bool:
        return self.specials.startswith("p3109")

    @property
    def has_infinity(self) -> bool:
        return self.specials in ("ieee", "p3109")

    @property
    def has_nan(self) -> bool:
        return self.specials != "finite"

    @property
    def has_zero(self) -> bool:
        return self.subnormals or self.signed

    @property
    def has_signed_zero(self) -> bool:
        return self.signed and self.specials in ("ieee", "fn", "finite")

    @property
    def largest_code(self) -> int:
        """The code of the largest finite number."""
        last = (1 << (self.exp + self.man)) - 1
        if self.specials == "ieee":
            return last - (1 << self.man)
        if self.signed:
            return last - (self.specials in ("fn", "p3109"))
        return last - {"finite": 0, "p3109": 2}.get(self.specials, 1)

    @property
    def magnitudes(self) -> Magnitudes:
        first = int(self.has_zero)
        return Magnitudes(self, self.exp, self.man, self.bias or 0, self.largest_code, first, self.subnormals)

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        keeps_infinity = self.has_infinity and self.overflow in ("nan", "propagate")
        kind, grid = self.magnitudes.grid(carrier)
        beyond = {"nan": carrier.quiet_nan, "inf": carrier.infinity if self.has_infinity else grid.limit}
        jump = beyond.get(self.overflow or "", grid.limit) - grid.limit
        grid = grid._replace(jump=jump, keep=carrier.infinity - keeps_infinity, signed_zero=-self.has_signed_zero)
        if self._is_p3109:
            # Codes decide there, not significands. The infinity of signed formats has an odd one.
            to_infinity = self.signed and self.overflow == "inf" and self.has_infinity
            grid = grid._replace(unit=0, coded=-int(self.man == 0), ends_odd=int(to_infinity) - 1)
        if not self.has_zero:
            floor = max(self.magnitudes.lowest_lane(carrier) - grid.base, 0)
            grid = grid._replace(floor=floor, zero=carrier.quiet_nan)
        propagates = keeps_infinity and self.has_signed_zero and not jump
        if not self.signed or (keeps_infinity and not (propagates and kind == "grid")):
            kind = "wide"
        elif kind == "grid":
            usual = "propagating" if propagates else "overflowing" if jump else "grid"
            kind = usual if self.has_signed_zero else "general"
        if not self.signed:
            saturates = self.overflow in ("saturate", "propagate")
            negative = 0 if saturates and self.has_zero else carrier.quiet_nan
            # P3109 has no negative numbers below zero in modes toward it.
            to_zero = self._is_p3109 and self.overflow == "inf"
            grid = grid._replace(lower=-grid.limit, lower_jump=negative - jump, unsigned=int(to_zero) - 1)
        return kind, grid

    @property
    def bits(self) -> int:
        return self.exp + self.man + self.signed

    def codes(self, carrier: Carrier) -> FloatCodes:
        codes = self.magnitudes.codes(carrier, self.signed)
        codes = codes._replace(infinity=self.largest_code + self.has_infinity)
        if self.signed and self.has_nan and not self.has_signed_zero:
            if self.bits > 31:
                raise ValueError(
                    f"{quoted(self)} has codes of 32 bits; allowed are at most 31, as NaN is the sign bit alone"
                )
            return codes._replace(nan=codes.sign, nan_zero=codes.sign)
        quiet = self.largest_code + 1 + (1 << self.man >> 1)
        nan = {"finite": 0, "ieee": quiet}.get(self.specials, codes.mask)
        return codes._replace(nan=nan, nan_sign=codes.sign if self.has_nan else 0)

    @property
    def span(self) -> tuple[int, int, int]:
        return self.magnitudes.span

    def overflowing(self, overflow: str) -> BinaryFloat:
        return replace(self, overflow=overflow)


@dataclass(frozen=True, repr=False)
class FloatingPoint(Number):
    """Binary floating point with subnormals and without codes for infinity and NaN: QPyTorch's grid.

    Exponents run from 1 - bias to 2^exp - 1 - bias. With the default bias, 2^(exp-1) - 1, the largest number is
    (2 - 2^-man) * 2^(2^(exp-1)). Results saturate there, infinities included. If that is beyond the ranges of float32
    (by default from exp = 8 on) and of the carrier, the range is the carrier's, and overflow is infinity.
    `BinaryFloat` has formats with infinities and NaN.

    Args:
        exp: exponent bits, 1 to 64.
        man: stored mantissa bits, 0 to 52; 23 for carriers other than float64.
        bias: the exponent field minus the exponent, from -4096 to the larger of 4096 and 2^exp; None is 2^(exp-1) - 1.
        subnormals: True for numbers between 0 and 2^(1-bias); otherwise the quantum there is 2^(1-bias).
        bit: instead of exp and man: 8 is (5, 2) and 16 is (6, 9), QPyTorch's 8- and 16-bit formats.

    Raises:
        TypeError: if exp, man or bias is not an integer, or subnormals not a bool.
        ValueError: if exp, man or bias is out of range, or bit is not 8 or 16 or comes with exp or man.

    Example:
        >>> FloatingPoint(exp=5, man=2)
        FloatingPoint(exp=5, man=2)
        >>> FloatingPoint(bit=16)
        FloatingPoint(exp=6, man=9)
    """

    exp: int = None  # type: ignore[assignment]  # `bit` stands in for both
    man: int = None  # type: ignore[assignment]
    bias: int | None = None
    subnormals: bool = True
    _: KW_ONLY
    bit: InitVar[int | None] = None

    def __post_init__(self, bit: int | None) -> None:
        if bit is not None:
            if not isinstance(bit, int) or bit not in _BY_WIDTH or (self.exp, self.man) != (None, None):
                raise ValueError(f"bit={quoted(bit)}, exp={self.exp}, man={self.man}; allowed are bit=8 and 16, alone")
            self._set(exp=_BY_WIDTH[bit][0], man=_BY_WIDTH[bit][1])
        self._set(exp=check_int("exp", self.exp, 1, 64), man=check_int("man", self.man, 0, 52))
        if self.bias is not None:
            default, bias = (1 << (self.exp - 1)) - 1, _check_bias(self.bias, self.exp)
            self._set(bias=None if bias == default else bias)
        check_flag("subnormals", self.subnormals)

    def __str__(self) -> str:
        """The text of QPyTorch; `text` is the library's."""
        extra = ("" if self.bias is None else f", bias={self.bias}") + ("" if self.subnormals else ", subnormals=False")
        return f"FloatingPoint (exponent={self.exp}, mantissa={self.man}{extra})"

    @property
    def magnitudes(self) -> Magnitudes:
        bias = (1 << (self.exp - 1)) - 1 if self.bias is None else self.bias
        largest_code = (1 << (self.exp + self.man)) - 1
        return Magnitudes(self, self.exp, self.man, bias, largest_code, subnormals=self.subnormals)

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        kind, grid = self.magnitudes.grid(carrier)
        unbounded = self.magnitudes.largest[1] + self.man > max(FLOAT32.max_exponent, carrier.max_exponent)
        return kind, grid._replace(limit=carrier.infinity) if unbounded else grid

    @property
    def bits(self) -> int:
        return 1 + self.exp + self.man

    def codes(self, carrier: Carrier) -> FloatCodes:
        return self.magnitudes.codes(carrier, signed=True)

    @property
    def span(self) -> tuple[int, int, int]:
        return self.magnitudes.span

    def overflowing(self, overflow: str) -> FloatingPoint:
        check_choice("overflow", overflow, ["saturate"])
        return self


@dataclass(frozen=True)
class Magnitudes:
    """Magnitudes (field, mantissa) of `man` bits of mantissa, up to a largest code field << man | mantissa.

    Attributes:
        number: the format, for messages; equal magnitudes may be those of different formats.
        exp, man, bias: as in `BinaryFloat`.
        largest_code: the code of the largest magnitude.
        first: the exponent field of the smallest normal number, 1 or 0.
        subnormals: True if field 0 has subnormal numbers.
    """

    number: Number = field(compare=False)
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
        """The smallest magnitude above zero, as count and exponent."""
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
            raise ValueError(f"{quoted(self.number)} on {carrier.name}: man={self.man}; allowed is man <= {most}")
        if least > carrier.max_exponent:
            raise ValueError(
                f"{quoted(self.number)} on {carrier.name}: its numbers are all beyond the largest {carrier.name}"
            )
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
            raise ValueError(f"{quoted(self.number)} has codes of {size + signed} bits; allowed are {allowed}")
        if size > carrier.lane_bits - 2 and self.lowest < carrier.min_exponent:
            raise ValueError(
                f"{quoted(self.number)} on {carrier.name} has codes of {size + signed} bits; allowed only on float64"
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
