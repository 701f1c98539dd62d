"""The oracle's carriers, the dtypes of tensors, and when a mode goes up; see `oracle`."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

INF = math.inf  # compares exactly with ints of any size
NAN = None  # the magnitude of a NaN

# Up exactly when: n and d are floor(t) and t - n, with d and a half both counted in units. Of n only the parity is
# asked, so that where the law says "parity of the code" n is the code of the lower neighbour instead.
UP_WHEN = {
    "nearest": lambda n, d, half, negative: d > half or (d == half and n % 2 == 1),
    "nearest_away": lambda n, d, half, negative: d >= half,
    "nearest_zero": lambda n, d, half, negative: d > half,
    "nearest_up": lambda n, d, half, negative: d > half or (d == half and not negative),
    "nearest_down": lambda n, d, half, negative: d > half or (d == half and negative),
    "toward_zero": lambda n, d, half, negative: False,
    "away": lambda n, d, half, negative: d > 0,
    "up": lambda n, d, half, negative: d > 0 and not negative,
    "down": lambda n, d, half, negative: d > 0 and negative,
    "odd": lambda n, d, half, negative: d > 0 and n % 2 == 0,
}


# Up exactly when: R and n are a random number and its bits, d / one the distance from the neighbour nearer to zero.
UP_BY_CHANCE = {
    "stochastic": lambda R, n, d, one: R + d * 2**n // one >= 2**n,
    "stochastic_b": lambda R, n, d, one: 2 * R + 1 + d * 2 ** (n + 1) // one >= 2 ** (n + 1),
    "stochastic_c": lambda R, n, d, one: R + round(Fraction(d * 2**n, one)) >= 2**n,  # round: ties to even
}


class Carrier:
    """The dtype of the tensor: its IEEE 754 fields, and the way from a bit pattern to a number and back."""

    def __init__(self, dtype):
        """Reads the layout of `dtype`: float64, float32, float16 or bfloat16."""
        layouts = {
            np.dtype(np.float64): (11, 52, np.uint64),
            np.dtype(np.float32): (8, 23, np.uint32),
            np.dtype(np.float16): (5, 10, np.uint16),
            np.dtype(ml_dtypes.bfloat16): (8, 7, np.uint16),
        }
        if np.dtype(dtype) not in layouts:
            raise ValueError(f"no carrier: {dtype}")
        self.exp, self.man, self.pattern_dtype = layouts[np.dtype(dtype)]
        self.emax = 2 ** (self.exp - 1) - 1
        self.unit = 1 - self.emax - self.man  # the exponent of the smallest subnormal
        self.max = (2 ** (self.man + 1) - 1) * 2 ** (self.emax - self.man - self.unit)  # largest finite value, in units

    def decode(self, pattern):
        """Returns (negative, magnitude): a magnitude is an int in units, INF or NAN."""
        sign, rest = divmod(pattern, 2 ** (self.exp + self.man))
        field, fraction = divmod(rest, 2**self.man)
        if field == 2**self.exp - 1:
            return sign == 1, NAN if fraction else INF
        if field == 0:
            return sign == 1, fraction
        return sign == 1, (2**self.man + fraction) * 2 ** (field - 1)

    def encode(self, negative, magnitude):
        """Returns the bit pattern of a number that is a carrier value (anything else is a fault of the oracle)."""
        sign = 2 ** (self.exp + self.man) if negative else 0
        inf = (2**self.exp - 1) * 2**self.man
        if magnitude is NAN:
            return sign + inf + 2 ** (self.man - 1)  # the quiet one
        if magnitude == INF:
            return sign + inf
        assert 0 <= magnitude <= self.max
        if magnitude < 2**self.man:  # subnormal or zero
            return sign + magnitude
        field = self.log2(magnitude) - self.unit - self.man + 1
        significand, lost = divmod(magnitude, 2 ** (field - 1))
        assert lost == 0, "the result is no carrier value"
        return sign + field * 2**self.man + (significand - 2**self.man)

    def log2(self, magnitude):
        """Returns e = floor(log2 m), exactly, of a finite magnitude above zero."""
        return magnitude.bit_length() - 1 + self.unit

    def units(self, n, q):
        """Returns n * 2^q (n >= 0) in units, or raises ValueError if that is no carrier value."""
        if n == 0:
            return 0
        e = n.bit_length() - 1 + q
        if self.unit <= e <= self.emax:  # else not even 2^e is one, and q may be a number of any size
            units, lost = divmod(n * 2 ** max(q - self.unit, 0), 2 ** max(self.unit - q, 0))
            if lost == 0 and units % 2 ** max(e - self.man - self.unit, 0) == 0:
                return units
        raise ValueError(f"{n} * 2^{q} is no carrier value")

    def count(self, units, q):
        """Returns the n of a finite number of units n * 2^q, or raises ValueError if there is none."""
        n, lost = divmod(units * 2 ** max(self.unit - q, 0), 2 ** max(q - self.unit, 0))
        if lost != 0:
            raise ValueError(f"{units} * 2^{self.unit} is no multiple of 2^{q}: the element is not quantized")
        return n

    def largest(self, bound, quantum):
        """Returns, in units, the largest number up to `bound` that is both a carrier value and on the format's grid.

        Args:
            bound: the Fraction not to exceed.
            quantum: the function from e to q that describes the grid.
        """
        units = min(math.floor(bound / Fraction(2) ** self.unit), self.max)
        if units == 0:
            return 0
        e = self.log2(units)
        step = 2 ** (max(quantum(e), e - self.man, self.unit) - self.unit)  # both grids around e: the coarser one
        return units // step * step
