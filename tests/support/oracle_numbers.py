"""The oracle's formats of single numbers and their codes; see `oracle`, which calls them.

A finite carrier value is a whole number of "units" (the carrier's smallest subnormal): all is exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass
class Rule:
    """What a format does to one element.

    Attributes:
        quantum: (e) -> q.
        settle: (negative, source, m, rounding) -> the result (negative, magnitude), given the magnitude before and
            after rounding. Where that is finite and past the carrier's largest value it means an inf.
        parity_of: (n, q) -> the number whose parity decides in nearest and odd.
    """

    quantum: Callable
    settle: Callable
    parity_of: Callable = lambda n, q: n


def limited(positive_limit, negative_limit):
    """Returns the `settle` of a format that saturates; a limit of INF does not limit."""

    def settle(negative, source, m, rounding):
        return negative, min(m, negative_limit if negative else positive_limit)

    return settle


def wrapped(carrier, wl, fl, signed):
    """Returns the `settle` of a FixedPoint that wraps around."""

    def settle(negative, source, m, rounding):
        if m == INF:
            return negative, NAN
        n = carrier.count(-m if negative else m, -fl)
        left = in_register(n, wl, signed)
        if left == 0:
            return negative and n == 0, 0
        return left < 0, carrier.units(abs(left), -fl)

    return settle


def in_register(n, wl, signed):
    """Returns what n becomes in a register of wl bits."""
    n %= 2**wl
    return n - 2**wl if signed and n >= 2 ** (wl - 1) else n


def fixed_rule(carrier, wl, fl, clamp, symmetric, signed=True, wrap=False):
    """Returns the rule of FixedPoint."""
    if wl < 1 or not carrier.unit <= -fl <= carrier.emax:
        raise ValueError(f"wl must be at least 1 and 2^-fl a carrier value, got wl={wl}, fl={fl}")

    def quantum(e):
        return -fl

    if wrap:
        if symmetric:
            raise ValueError("what wraps around is not symmetric")
        return Rule(quantum, wrapped(carrier, wl, fl, signed))
    if not clamp:
        return Rule(quantum, limited(INF, INF))
    past_hi = Fraction(2) ** (wl - fl - 1 if signed else wl - fl)
    hi = past_hi - Fraction(2) ** -fl
    minus_lo = 0 if not signed else hi if symmetric else past_hi
    return Rule(quantum, limited(carrier.largest(hi, quantum), carrier.largest(minus_lo, quantum)))


def float_quantum(emin, man, subnormals):
    """Returns the `quantum` of a binary floating-point format."""

    def quantum(e):
        return e - man if e >= emin else emin - man if subnormals else emin

    return quantum


def default_bias(exp):
    """Returns the bias of FloatingPoint where none is given."""
    return 2 ** (exp - 1) - 1


def float_rule(carrier, exp, man, bias=None, subnormals=True):
    """Returns the rule of FloatingPoint: saturating, unless its exponents reach past the carrier's."""
    bias = default_bias(exp) if bias is None else bias
    quantum = float_quantum(1 - bias, man, subnormals)
    emax = 2**exp - 1 - bias
    if emax >= max(128, carrier.emax + 1):
        return Rule(quantum, limited(INF, INF))
    limit = carrier.largest((2 - Fraction(2) ** -man) * Fraction(2) ** emax, quantum)
    return Rule(quantum, limited(limit, limit))


def special_codes(exp, man, specials, signed):
    """Returns the codes (largest finite, inf, NaN) of the positive numbers, None for what the format has not."""
    sign_bit = 2 ** (exp + man)
    ones = sign_bit - 1
    if specials == "ieee":
        inf = (2**exp - 1) * 2**man
        return inf - 1, inf, inf + 2**man // 2
    if specials == "fn":
        return ones - 1, None, ones
    if specials == "fnuz":
        return ones, None, sign_bit
    if specials == "finite":
        return ones, None, None
    if specials == "p3109":
        return (ones - 1, ones, sign_bit) if signed else (ones - 2, ones - 1, ones)
    if specials == "p3109_finite":
        return (ones, None, sign_bit) if signed else (ones - 1, None, ones)
    raise ValueError(f"specials: {specials!r}")


class Binary:
    """A binary floating-point format with codes: (sign bit) exponent field, mantissa."""

    def __init__(self, exp, man, bias, specials, subnormals, signed, overflow):
        """Works out the codes and the range of the format."""
        self.man, self.bias, self.specials, self.subnormals, self.signed = man, bias, specials, subnormals, signed
        self.overflow = overflow
        self.sign_bit = 2 ** (exp + man)
        self.largest_code, self.inf_code, self.nan_code = special_codes(exp, man, specials, signed)
        codes_missing = {"ieee": exp < 1 or man < 1, "fnuz": not signed}.get(specials, self.largest_code < 0)
        if codes_missing:
            raise ValueError(f"no {specials} format has exp={exp}, man={man}, signed={signed}")
        if overflow not in ("saturate", "inf", "nan") or (overflow == "inf" and self.inf_code is None):
            raise ValueError(f"overflow: {overflow!r} in a {specials} format")
        self.has_zero = subnormals or signed  # else field 0 is one of normal numbers
        self.has_negative_zero = signed and specials in ("ieee", "fn", "finite")
        self.emin = 1 - bias if self.has_zero else -bias
        self.quantum = float_quantum(self.emin, man, subnormals)

    def number(self, code):
        """Returns (n, q): the finite magnitude code means n * 2^q."""
        field, fraction = divmod(code, 2**self.man)
        if field == 0 and self.has_zero:
            return fraction, self.emin - self.man
        return 2**self.man + fraction, field - self.bias - self.man

    def code(self, n, q):
        """Returns the magnitude code of n * 2^q, q its quantum: the inverse of `number`, but with no upper limit."""
        if n < 2**self.man:  # below 2^emin, where n is 0 if there are no subnormals
            return n
        return (q + self.man + self.bias) * 2**self.man + n - 2**self.man

    def rule(self, carrier):
        """Returns the rule of the format in a carrier."""
        n, q = self.number(self.largest_code)
        bound = n * Fraction(2) ** min(q, carrier.emax + 1)  # the exponent fields may be of any size
        limit = carrier.largest(bound, self.quantum)
        if not self.has_zero and (limit == 0 or carrier.log2(limit) < self.emin):
            raise ValueError("no number of the format is a carrier value")
        parity = {"parity_of": self.code} if self.specials.startswith("p3109") else {}
        return Rule(self.quantum, self.settled(carrier, limit), **parity)

    def settled(self, carrier, limit):
        """Returns the `settle` of the format, whose largest finite value is `limit`."""
        least = 0 if self.has_zero or self.emin < carrier.unit else carrier.units(1, self.emin)

        def magnitude(negative, source, m, rounding):
            if not self.has_zero and (source == 0 or negative):
                return NAN
            m = max(m, least)
            if negative and not self.signed and m != 0:
                return 0 if self.overflow == "saturate" else NAN
            if m <= limit:
                return m
            if self.overflow == "saturate":
                return limit
            if source == INF:
                return NAN if self.inf_code is None else INF
            if rounding in ("toward_zero", "up" if negative else "down"):
                return limit
            return INF if self.overflow == "inf" else NAN

        def settle(negative, source, m, rounding):
            m = magnitude(negative, source, m, rounding)
            return negative and (m != 0 or self.has_negative_zero), m

        return settle

    def encode(self, carrier, negative, m):
        """Returns the code of a number of the format."""
        if m is NAN:
            sign = self.sign_bit if negative and self.signed and self.specials in ("ieee", "fn") else 0
            return 0 if self.nan_code is None else sign + self.nan_code
        if m == 0:
            if not self.has_zero:
                raise ValueError("the format has no zero: the element is not quantized")
            return self.sign_bit if negative and self.has_negative_zero else 0
        if negative and not self.signed:
            raise ValueError("the format has no negative numbers: the element is not quantized")
        sign = self.sign_bit if negative else 0
        if m == INF:
            if self.inf_code is None:
                raise ValueError("the format has no inf")
            return sign + self.inf_code
        q = self.quantum(carrier.log2(m))
        code = self.code(carrier.count(m, q), q)
        if code > self.largest_code or not (self.has_zero or carrier.log2(m) >= self.emin):
            raise ValueError(f"{m} * 2^{carrier.unit} is out of range: the element is not quantized")
        return sign + code

    def decode(self, carrier, code):
        """Returns (negative, magnitude), what a code means in units of the carrier."""
        if not 0 <= code < self.sign_bit * (2 if self.signed else 1):
            raise ValueError(f"no code: {code}")
        sign, magnitude_code = divmod(code, self.sign_bit)
        unused = self.has_zero and not self.subnormals and 0 < magnitude_code < 2**self.man
        if magnitude_code == self.inf_code:
            return sign == 1, INF
        if code == self.nan_code or magnitude_code > self.largest_code or unused:
            return sign == 1 and self.specials in ("ieee", "fn"), NAN
        return sign == 1, carrier.units(*self.number(magnitude_code))


def binary_rule(carrier, *arguments):
    """Returns the rule of a binary float with codes."""
    return Binary(*arguments).rule(carrier)


class FixedCodes:
    """The codes of FixedPoint: n as an integer of wl bits, in two's complement if signed."""

    def __init__(self, wl, fl, clamp, symmetric, signed=True, wrap=False):
        """Keeps what the codes depend on: not what happens out of range."""
        self.wl, self.fl, self.signed = wl, fl, signed

    def encode(self, carrier, negative, m):
        """Returns the code of a number of the format."""
        if m is NAN:
            return 0
        if m == INF:
            raise ValueError("the format has no inf")
        return carrier.count(-m if negative else m, -self.fl) % 2**self.wl

    def decode(self, carrier, code):
        """Returns (negative, magnitude), what a code means in units of the carrier."""
        if not 0 <= code < 2**self.wl:
            raise ValueError(f"no code: {code}")
        n = in_register(code, self.wl, self.signed)
        return n < 0, carrier.units(abs(n), -self.fl)


def float_codes(exp, man, bias=None, subnormals=True):
    """Returns the codes of FloatingPoint: all of them are numbers."""
    return Binary(exp, man, default_bias(exp) if bias is None else bias, "finite", subnormals, True, "saturate")
