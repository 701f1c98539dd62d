"""Carriers: the floating point types that hold the numbers, and the functions that take their bits apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qcore.arguments import quoted

KeepLanes = Callable[[Sequence[Any]], Any]  # an identity of several lanes, see `Program.run`


@dataclass(frozen=True)
class Carrier:
    """The layout of a binary floating point type: sign | exponent | mantissa, and the lanes that hold its bits.

    The law reads a number's bits as an integer and never does float arithmetic. That integer is the number's LANE: the
    bit pattern, shifted to the left by `padding`. So every 16- or 32-bit carrier has a mantissa of 23 bits in its
    lanes, and all bits of a random word count. A lane without its sign is a magnitude. Exponent fields are biased,
    field = exponent + bias, and field 0 is that of zero and the subnormal numbers.

    Attributes:
        lane_bits: 32 for int32 lanes, 64 for int64 lanes, 16 for `narrow` ones.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    lane_bits: int = 32

    @property
    def width(self) -> int:
        """Mantissa bits of a lane."""
        return {16: self.mantissa_bits, 32: 23, 64: 52}[self.lane_bits]

    @property
    def last(self) -> int:
        """The index of a lane's highest bit. A shift to the right by it gives -1 for negative lanes, else 0."""
        return self.lane_bits - 1

    @property
    def padding(self) -> int:
        """Zero bits that a lane has below the stored mantissa."""
        return self.width - self.mantissa_bits

    @property
    def hidden(self) -> int:
        """The hidden bit, just above the mantissa: the leading one of normal numbers, which is not stored."""
        return 1 << self.width

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.width

    @property
    def quiet_nan(self) -> int:
        return self.infinity | self.hidden >> 1

    @property
    def stored_bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def narrow(self) -> Carrier:
        """The same type in lanes of its own width: vectors hold twice as many of 16 bits. Random words do not fit."""
        return replace(self, lane_bits=self.stored_bits)

    @property
    def magnitude_mask(self) -> int:
        return (self.hidden << self.exponent_bits) - 1

    @property
    def lane_bias(self) -> int:
        """The bias of the float that is as wide as a lane: float32, float64, or of 16 bits the carrier itself."""
        return {16: self.bias, 32: 127, 64: 1023}[self.lane_bits]

    @property
    def negative(self) -> int:
        """The bits above the magnitude, all set in negative numbers: the sign, extended to the lane's highest bit."""
        return ~self.magnitude_mask

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        return self.bias

    @property
    def step_exponent(self) -> int:
        """The exponent of the smallest subnormal number."""
        return self.min_exponent - self.mantissa_bits

    def lane_at_most(self, count: int, exponent: int) -> int:
        """The lane of the largest carrier value that is a multiple of 2^exponent and at most count * 2^exponent."""
        # All of it in integers: `low` is a unit of which the count's step and the carrier's are multiples.
        low = min(exponent, self.step_exponent)
        largest = ((2 << self.mantissa_bits) - 1) << (self.max_exponent - self.mantissa_bits - low)
        shift = exponent - low
        steps = min(count, largest >> shift) << shift  # in units of 2^low
        steps >>= self.step_exponent - low
        # A normal number's hidden bit adds one to the field, so one formula holds for subnormal numbers, too.
        field = max(steps.bit_length() - self.mantissa_bits - 1, 0)
        return ((field << self.mantissa_bits) + (steps >> field)) << self.padding


FLOAT32 = Carrier("float32", 8, 23)
FLOAT16 = Carrier("float16", 5, 10)
BFLOAT16 = Carrier("bfloat16", 8, 7)
FLOAT64 = Carrier("float64", 11, 52, lane_bits=64)
CARRIERS = {carrier.name: carrier for carrier in (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)}


def check_dtype(name: str, argument: str = "x") -> Carrier:
    """The carrier of an argument's dtype."""
    if name not in CARRIERS:
        raise TypeError(f"{argument} has dtype {name}; allowed are {', '.join(CARRIERS)}")
    return CARRIERS[name]


def check_result_dtype(dtype: Any) -> tuple[np.dtype, Carrier]:
    """The argument `dtype`, and its carrier."""
    try:
        dtype = np.dtype(dtype)
    except (TypeError, ValueError):  # the latter for very long ints
        raise TypeError(f"dtype={quoted(dtype)} is none; allowed are {', '.join(CARRIERS)}") from None
    return dtype, check_dtype(dtype.name, "dtype")


def leading_bit(xp: Any, value: Any, carrier: Carrier) -> Any:
    """floor(log2 value) of lanes above 0 with at most `width` + 1 significant bits; 0 for 0."""
    # With so few bits the conversion is exact, so it cannot round up to the next power of two.
    return xp.clip((xp.float_bits(value) >> carrier.width) - carrier.lane_bias, 0, None)


def field_and_significand(xp: Any, magnitude: Any, carrier: Carrier) -> tuple[Any, Any]:
    """Exponent fields and significands. A subnormal number's significand is doubled, as its field 0 stands for 1."""
    return magnitude >> carrier.width, (magnitude & (carrier.hidden - 1)) + xp.clip(magnitude, None, carrier.hidden)


def from_count(
    xp: Any, count: Any, exponent: Any, carrier: Carrier, normal: bool = False, scale: tuple[Any, Any] | None = None
) -> Any:
    """The magnitudes count * 2^exponent, for counts >= 0 with at most as many significant bits as the carrier.

    Args:
        xp: the array namespace.
        count, exponent: of magnitudes that the carrier represents.
        carrier: their layout.
        normal: for magnitudes that are all zero or normal numbers of the carrier.
        scale: the results of `power` for exponents by which magnitudes are scaled: beyond the carrier's range they
            become infinity, below its smallest step they are rounded toward zero. None as the first result is for
            magnitudes that are all zero or normal numbers.
    """
    # The conversion of an integer to a float normalizes it; the exponent is then a plain sum.
    absolute = xp.float_bits(count) + ((exponent + (carrier.bias - carrier.lane_bias)) << carrier.width)
    if scale is not None:
        most, shift = scale
        # Clipped before the sum: the sum of two large exponents would leave the lane.
        absolute, normal = (absolute if most is None else xp.clip(absolute, None, most)) + shift, most is None
    xp.named("from_count", absolute=absolute)
    # The last factor is 0 for a count of zero, whose conversion has no leading bit, and -1 for all others.
    return (absolute if normal else without_hidden_bits(xp, absolute, carrier)) & (-count >> carrier.last)


def power(xp: Any, exponent: Any, carrier: Carrier) -> tuple[Any, Any]:
    """To multiply by 2^exponent: the magnitude from which on the result is infinity, and the number to add below it.

    Magnitudes are those of `with_hidden_bits`, whose fields may lie below 1.
    """
    return carrier.infinity - (xp.clip(exponent, 0, None) << carrier.width), exponent << carrier.width


def with_hidden_bits(xp: Any, magnitude: Any, carrier: Carrier) -> Any:
    """Magnitudes with subnormal numbers normalized: they get the fields 0, -1, ... Zero is below all of them."""
    # A subnormal magnitude is an integer in units of the smallest step, and its conversion finds the leading bit.
    subnormal = xp.float_bits(magnitude) + ((1 - carrier.width - carrier.lane_bias) << carrier.width)
    xp.named("with_hidden_bits", subnormal=subnormal)
    return xp.where(magnitude < carrier.hidden, subnormal, magnitude)


def without_hidden_bits(xp: Any, absolute: Any, carrier: Carrier) -> Any:
    """The inverse of `with_hidden_bits`, for magnitudes that the carrier can represent."""
    width, hidden = carrier.width, carrier.hidden
    significand = (absolute & (hidden - 1)) | hidden
    # Clipped to `last`: a shift by the lane's width or more is not defined in C, and here all bits are gone anyway.
    subnormal = significand >> xp.clip(1 - (absolute >> width), 0, carrier.last)
    xp.named("without_hidden_bits", significand=significand, subnormal=subnormal)
    return xp.where(absolute < hidden, subnormal, absolute)


def quiet(bits: Any, carrier: Carrier) -> Any:
    """Turns infinities into NaNs; `bits` are infinities and NaNs only. A NaN keeps its payload."""
    infinite = ((bits & carrier.magnitude_mask) - (carrier.infinity + 1)) >> carrier.last
    return bits | (infinite & (carrier.hidden >> 1))
