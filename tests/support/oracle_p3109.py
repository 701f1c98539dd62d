"""IEEE P3109, interim report v4.0, in exact fractions: decoding (4.3), rounding (4.7.4), saturation (4.7.5), encoding.

It must never import the library. A number is a Fraction, or one of the strings "nan", "inf" and "-inf".
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import floor

NEAREST = ("NearestTiesToEven", "NearestTiesToAway")
MODES = (*NEAREST, "TowardZero", "TowardPositive", "TowardNegative", "ToOdd")
STOCHASTIC = ("StochasticA", "StochasticB", "StochasticC")
SATURATIONS = ("SatFinite", "SatPropagate", "SatNone")


@dataclass(frozen=True)
class Format:
    """Binary{K,P,S,D}: its width, its precision, if it is signed, and if it is extended."""

    K: int
    P: int
    signed: bool
    extended: bool

    @property
    def name(self):
        """The format's name in the report."""
        return f"Binary{self.K}p{self.P}{'s' if self.signed else 'u'}{'e' if self.extended else 'f'}"

    @property
    def bias(self):
        """The exponent bias B."""
        return 2 ** (self.K - self.P - 1) if self.signed else 2 ** (self.K - self.P)

    @property
    def nan(self):
        """The code of NaN."""
        return 2 ** (self.K - 1) if self.signed else 2**self.K - 1

    @property
    def infinities(self):
        """The codes of the infinities, by name."""
        if not self.extended:
            return {}
        if self.signed:
            return {"inf": 2 ** (self.K - 1) - 1, "-inf": 2**self.K - 1}
        return {"inf": 2**self.K - 2}

    def decode(self, code):
        """The number of a code."""
        specials = {self.nan: "nan"} | {code: name for name, code in self.infinities.items()}
        if code in specials:
            return specials[code]
        if self.signed and code > self.nan:
            return -self.decode(code - self.nan)
        exponent, trailing = divmod(code, 2 ** (self.P - 1))
        fraction = trailing * Fraction(2) ** (1 - self.P)
        if exponent == 0:
            return fraction * Fraction(2) ** (1 - self.bias)
        return (1 + fraction) * Fraction(2) ** (exponent - self.bias)

    @cached_property
    def numbers(self):
        """All numbers by their codes."""
        return {code: self.decode(code) for code in range(2**self.K)}

    @cached_property
    def ends(self):
        """The least and the largest finite number."""
        finite = [x for x in self.numbers.values() if not isinstance(x, str)]
        return min(finite), max(finite)


def floor_log2(x):
    """The integer e with 2^e <= x < 2^(e + 1)."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def to_even(x):
    """The nearest integer, ties to even."""
    below = floor(x)
    rest = x - below
    return below + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1))


def rounds_away(mode, x, m, nu, even, R, N):
    """True if a number moves away from zero; m is its magnitude in quanta, nu the part below one quantum."""
    half = Fraction(1, 2)
    if mode == "StochasticA":
        return floor(nu * 2**N) + R >= 2**N
    if mode == "StochasticB":
        return floor(nu * 2 ** (N + 1)) + 2 * R + 1 >= 2 ** (N + 1)
    if mode == "StochasticC":
        return to_even(nu * 2**N) + R >= 2**N
    return {
        "TowardZero": False,
        "TowardPositive": nu > 0 and x > 0,
        "TowardNegative": nu > 0 and x < 0,
        "NearestTiesToAway": nu >= half,
        "NearestTiesToEven": nu > half or (nu == half and not even),
        "ToOdd": nu > 0 and even,
    }[mode]


def rounded(x, P, B, mode, R=0, N=0):
    """RoundToPrecision: a number on the format's grid, without limits."""
    if isinstance(x, str) or x == 0:
        return x
    Q = max(floor_log2(abs(x)), 1 - B) - P + 1
    m = abs(x) / Fraction(2) ** Q
    even = floor(m) % 2 == 0 if P > 1 else floor(m) == 0 or (Q + B) % 2 == 0
    away = rounds_away(mode, x, m, m - floor(m), even, R, N)
    return (floor(m) + away) * Fraction(2) ** Q * (1 if x > 0 else -1)


def saturated(x, number, mode, saturation):
    """Saturate: the number of a format for a rounded one."""
    low, high = number.ends
    signed, extended = number.signed, number.extended
    if x == "nan" or (not isinstance(x, str) and low <= x <= high):
        return x
    above = x == "inf" or (x != "-inf" and x > high)
    if saturation == "SatFinite":
        return high if above else low
    if saturation == "SatPropagate":
        if x == "inf":
            return "inf" if extended else high
        if x == "-inf":
            return "-inf" if signed and extended else low
        return high if above else low
    if x == "inf":
        return "inf" if extended else high
    if x == "-inf":
        return "-inf" if signed and extended else low if signed else "nan"
    if mode == "ToOdd" and not signed and extended and above:
        return high
    if mode in ("TowardZero", "TowardNegative") and above:
        return high
    if mode in ("TowardZero", "TowardPositive") and not above:
        return low
    if not above:
        return "-inf" if signed and extended else low if signed else "nan"
    return "inf" if extended else high


def project(x, number, mode, saturation, R=0, N=0):
    """Project: rounding first, saturation after it."""
    return saturated(rounded(x, number.P, number.bias, mode, R, N), number, mode, saturation)


def operation(name, x, y):
    """The rules of Add, Subtract, Multiply and Divide on extended real numbers (4.8)."""
    infinite = [isinstance(one, str) for one in (x, y)]
    if "nan" in (x, y):
        return "nan"
    if name in ("Add", "Subtract"):
        other = y if name == "Add" else {"inf": "-inf", "-inf": "inf"}.get(y, y) if infinite[1] else -y
        if all(infinite):
            return x if x == other else "nan"
        return x if infinite[0] else other if infinite[1] else x + other
    signs = [-1 if one == "-inf" or (not isinstance(one, str) and one < 0) else 0 if one == 0 else 1 for one in (x, y)]
    sign = signs[0] * signs[1]
    if name == "Multiply":
        if not any(infinite):
            return x * y
        return "nan" if sign == 0 else "inf" if sign > 0 else "-inf"
    if y == 0 or all(infinite):
        return "nan"
    if infinite[1]:
        return Fraction(0)
    return ("inf" if sign > 0 else "-inf") if infinite[0] else x / y


def code_of(number, value):
    """The code of a number of a format."""
    return next(code for code, one in number.numbers.items() if one == value)


def decode_block(s, xs):
    """ωBlockDecode: the numbers of a block (5.1)."""
    return [operation("Multiply", s, x) for x in xs]


def project_block(s, xs, number, mode, saturation):
    """ωBlockProject: a block's elements with a given scale (5.1)."""
    found = []
    for x in xs:
        if "nan" in (s, x):
            quotient = "nan"
        elif s == 0:
            quotient = Fraction(0)
        elif isinstance(s, str):
            quotient = Fraction(0) if x == 0 else sign(x) * sign(s)
        else:
            quotient = operation("Divide", x, s)
        found.append(project(quotient, number, mode, saturation))
    return found


def sign(x):
    """1 or -1 as a fraction; of zero 0."""
    return Fraction({"inf": 1, "-inf": -1}.get(x, 0) if isinstance(x, str) else (x > 0) - (x < 0))
