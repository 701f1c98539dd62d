"""Binary floating point numbers."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, replace

from qcore.arguments import check_choice, check_flag, check_int
from qcore.carrier import FLOAT32, Carrier
from qcore.codes import FloatCodes
from qcore.number import Number
from qcore.scale import Scale

_BY_WIDTH = {8: (5, 2), 16: (6, 9)}
SPECIALS = ("ieee", "fn", "fnuz", "finite", "p3109", "p3109_finite")


@dataclass(frozen=True, repr=False)
class BinaryFloat(Number):
    """Binary floating point with an exact place for everything: fields, bias, special codes, overflow.

    Codes are sign | exponent field | mantissa. Field f > 0 holds (1 + mantissa / 2^man) * 2^(f - bias), field 0 zero
    and the subnormal numbers. What the last codes mean, `specials` says:

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
        bias: what the exponent field exceeds the exponent by; None is 2^(exp-1) - 1.
        specials: one of the above.
        subnormals: whether field 0 holds subnormal numbers. Without them the quantum below the smallest normal
            number is that number; and an unsigned format has no zero either, its field 0 is normal.
        signed: whether there is a sign bit.
        overflow: what numbers become that round to more than the largest: "saturate" (the largest), "inf" or "nan";
            None is the first of inf and nan that exists, else saturate.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or the format has not what another argument asks for.

    Example:
        >>> BinaryFloat(exp=4, man=3, specials="fn")
        BinaryFloat (exponent=4, mantissa=3, bias=7, specials=fn, overflow=nan)
    """

    exp: int
    man: int
    bias: int | None = None
    specials: str = "ieee"
    subnormals: bool = True
    signed: bool = True
    overflow: str | None = None

    def __post_init__(self) -> None:
        for name, low, high in (("exp", 0, 31), ("man", 0, 52)):
            object.__setattr__(self, name, check_int(name, getattr(self, name), low, high))
        bias = (1 << self.exp) // 2 - 1 if self.bias is None else check_int("bias", self.bias, -(2**31), 2**31)
        object.__setattr__(self, "bias", bias)
        check_choice("specials", self.specials, SPECIALS)
        check_flag("subnormals", self.subnormals)
        check_flag("signed", self.signed)
        if self.specials == "fnuz" and not self.signed:
            raise ValueError("specials='fnuz' without a sign; allowed are ieee, fn, finite, p3109 and p3109_finite")
        least = 1 if self.subnormals or not self.signed else 1 << self.man
        if self.largest_code < least or (self.specials == "ieee" and self.man == 0):
            raise ValueError(f"exp={self.exp}, man={self.man}; allowed are more bits where specials={self.specials!r}")
        policies = {"inf": self.has_infinity, "nan": self.has_nan, "saturate": True}
        allowed = [name for name, there in policies.items() if there]
        if self.overflow is None:
            object.__setattr__(self, "overflow", allowed[0])
        check_choice("overflow", self.overflow, allowed)

    def __repr__(self) -> str:
        flags = [f", {name}=False" for name in ("subnormals", "signed") if not getattr(self, name)]
        return (
            f"BinaryFloat (exponent={self.exp}, mantissa={self.man}, bias={self.bias}, specials={self.specials}, "
            f"overflow={self.overflow}{''.join(flags)})"
        )

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
    def scale(self) -> Scale:
        first = int(self.has_zero)
        return Scale(repr(self), self.exp, self.man, self.bias or 0, self.largest_code, first, self.subnormals)

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        keeps = self.has_infinity and self.overflow == "nan"  # infinity
        kind, grid = self.scale.grid(carrier)
        beyond = {"saturate": grid.limit, "inf": carrier.infinity, "nan": carrier.quiet_nan}[self.overflow or ""]
        jump = beyond - grid.limit
        grid = grid._replace(jump=jump, keep=carrier.infinity - keeps, signed_zero=-self.has_signed_zero)
        if self.specials.startswith("p3109"):
            grid = grid._replace(unit=0, coded=-int(self.man == 0))  # ties go to even codes there
        if not self.has_zero:
            floor = max(self.scale.lowest_lane(carrier) - grid.base, 0)
            grid = grid._replace(floor=floor, zero=carrier.quiet_nan)
        if keeps or not self.signed:
            kind = "wide"
        elif kind == "grid":
            kind = "general" if not self.has_signed_zero else "overflowing" if jump else "grid"
        if not self.signed:
            negative = 0 if self.overflow == "saturate" and self.has_zero else carrier.quiet_nan
            grid = grid._replace(unsigned=-1, lower=-grid.limit, lower_jump=negative - jump)
        return kind, grid

    @property
    def bits(self) -> int:
        return self.exp + self.man + self.signed

    def codes(self, carrier: Carrier) -> FloatCodes:
        codes = self.scale.codes(carrier, self.signed)
        codes = codes._replace(infinity=self.largest_code + self.has_infinity)
        if self.signed and self.has_nan and not self.has_signed_zero:
            if self.bits > 31:
                raise ValueError(f"{self!r} has codes of 32 bits; allowed are at most 31, as NaN is the sign bit alone")
            return codes._replace(nan=codes.sign, nan_zero=codes.sign)
        quiet = self.largest_code + 1 + (1 << self.man >> 1)
        nan = {"finite": 0, "ieee": quiet}.get(self.specials, codes.mask)
        return codes._replace(nan=nan, nan_sign=codes.sign if self.has_nan else 0)

    @property
    def span(self) -> tuple[int, int, int]:
        return self.scale.span

    def overflowing(self, overflow: str) -> BinaryFloat:
        return replace(self, overflow=overflow)


@dataclass(frozen=True, repr=False)
class FloatingPoint(Number):
    """Binary floating point with subnormals and without codes for infinity and NaN: QPyTorch's grid.

    Exponents run from 1 - bias to 2^exp - 1 - bias, so with the usual bias, 2^(exp-1) - 1, the largest number is
    (2 - 2^-man) * 2^(2^(exp-1)); results saturate there, infinities included. Where that is beyond float32's range
    (usually from exp = 8 on) and the carrier's, the range is the carrier's, and overflow is infinity. `BinaryFloat`
    has formats with infinities and NaN.

    Args:
        exp: exponent bits, 1 to 64.
        man: stored mantissa bits, 0 to 52; 23 for carriers other than float64.
        bias: what the exponent field exceeds the exponent by; None is 2^(exp-1) - 1.
        subnormals: whether there are numbers between 0 and 2^(1-bias); else the quantum there is 2^(1-bias).
        bit: instead of exp and man: 8 is (5, 2) and 16 is (6, 9), QPyTorch's 8- and 16-bit formats.

    Raises:
        TypeError: if exp, man or bias is no integer, or subnormals no bool.
        ValueError: if exp, man or bias is out of range, or bit is not 8 or 16 or comes with exp or man.

    Example:
        >>> FloatingPoint(exp=5, man=2)
        FloatingPoint (exponent=5, mantissa=2)
        >>> FloatingPoint(bit=16)
        FloatingPoint (exponent=6, mantissa=9)
    """

    exp: int = None  # type: ignore[assignment]  # `bit` stands in for both
    man: int = None  # type: ignore[assignment]
    bias: int | None = None
    subnormals: bool = True
    _: KW_ONLY
    bit: InitVar[int | None] = None

    def __post_init__(self, bit: int | None) -> None:
        if bit is not None:
            if bit not in _BY_WIDTH or (self.exp, self.man) != (None, None):
                raise ValueError(f"bit={bit!r}, exp={self.exp}, man={self.man}; allowed are bit=8 and 16, alone")
            for name, value in zip(("exp", "man"), _BY_WIDTH[bit], strict=True):
                object.__setattr__(self, name, value)
        for name, low, high in (("exp", 1, 64), ("man", 0, 52)):
            object.__setattr__(self, name, check_int(name, getattr(self, name), low, high))
        if self.bias is not None:
            usual, bias = (1 << (self.exp - 1)) - 1, check_int("bias", self.bias, -(2**64), 2**64)
            object.__setattr__(self, "bias", None if bias == usual else bias)
        check_flag("subnormals", self.subnormals)

    def __repr__(self) -> str:
        extra = ("" if self.bias is None else f", bias={self.bias}") + ("" if self.subnormals else ", subnormals=False")
        return f"FloatingPoint (exponent={self.exp}, mantissa={self.man}{extra})"

    @property
    def scale(self) -> Scale:
        bias = (1 << (self.exp - 1)) - 1 if self.bias is None else self.bias
        largest_code = (1 << (self.exp + self.man)) - 1
        return Scale(repr(self), self.exp, self.man, bias, largest_code, subnormals=self.subnormals)

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        scale = self.scale
        kind, grid = scale.grid(carrier)
        endless = scale.largest[1] + self.man > max(FLOAT32.max_exponent, carrier.max_exponent)
        return kind, grid._replace(limit=carrier.infinity) if endless else grid

    @property
    def bits(self) -> int:
        return 1 + self.exp + self.man

    def codes(self, carrier: Carrier) -> FloatCodes:
        return self.scale.codes(carrier, signed=True)

    @property
    def span(self) -> tuple[int, int, int]:
        return self.scale.span

    def overflowing(self, overflow: str) -> FloatingPoint:
        check_choice("overflow", overflow, ["saturate"])
        return self
