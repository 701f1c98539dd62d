"""The independent oracle for posits: codes as strings of bits, one element at a time, as the standard draws them.

Like `oracle`, which calls it, it must never import the library. Numbers are pairs (e, f): 2^e * (1 + f), with a
Fraction f from 0 to 1, and so compare as numbers do, whatever the size of their exponents.
"""

from bisect import bisect_left, bisect_right
from fractions import Fraction

from oracle_carrier import UP_BY_CHANCE

NAN = None


def string(e, f, es):
    """The endless code of a number above zero, as far as it has ones: regime, exponent, fraction."""
    k, exponent = divmod(e, 2**es)
    regime = "1" * (k + 1) + "0" if k >= 0 else "0" * -k + "1"
    binary = f"{exponent:b}".zfill(es) if es else ""
    fraction_bits = f.denominator.bit_length() - 1
    return regime + binary + (f"{f.numerator:b}".zfill(fraction_bits) if fraction_bits else "")


def number(code, bits, es):
    """The number that the code of a positive posit means."""
    text = f"{code:b}".zfill(bits - 1)
    run = len(text) - len(text.lstrip(text[0]))
    k = run - 1 if text[0] == "1" else -run
    rest = text[run + 1 :]
    exponent = int(rest[:es] or "0", 2) * 2 ** (es - len(rest[:es]))
    fraction = rest[es:]
    return k * 2**es + exponent, Fraction(int(fraction or "0", 2), 2 ** len(fraction))


def pair(units, unit):
    """A magnitude above zero, given in units of 2^unit."""
    e = units.bit_length() - 1
    return e + unit, Fraction(units, 2**e) - 1


class Posits:
    """Posits, and their codes, in a carrier of `oracle`, whose magnitudes are in units."""

    def __init__(self, bits, es):
        self.bits, self.es, self.nar = bits, es, 2 ** (bits - 1)

    def split(self, m, unit):
        """Returns the integer that a magnitude's code would be if the rest of its string, which comes too, was cut."""
        text = string(*pair(m, unit), self.es).ljust(self.bits - 1, "0")
        return int(text[: self.bits - 1], 2), text[self.bits - 1 :]

    def encode(self, carrier, negative, m):
        """Returns the code of a posit."""
        if m is NAN:
            return self.nar
        code, rest = self.split(m, carrier.unit) if m else (0, "")
        if "1" in rest or not (0 < code < self.nar or m == 0):
            raise ValueError(f"{m} units are no posit: the element is not quantized")
        return self.signed(negative, code)

    def decode(self, carrier, code):
        """Returns (negative, magnitude), what a code means in units of the carrier."""
        if code in (0, self.nar):
            return False, NAN if code else 0
        negative = code > self.nar
        e, f = number(self.signed(negative, code), self.bits, self.es)
        units = (1 + f) * Fraction(2) ** (e - carrier.unit)
        if units.denominator != 1:
            raise ValueError(f"the code {code} is no carrier value")
        return negative, units.numerator

    def signed(self, negative, code):
        return 2**self.bits - code if negative else code


class Rule:
    """How posits are rounded on a carrier: to those that it has, since where it ends they end too."""

    def __init__(self, carrier, up_when, bits, es):
        self.carrier, self.up_when, self.posits = carrier, up_when, Posits(bits, es)
        codes = range(1, self.posits.nar)

        def meaning(code):
            return number(code, bits, es)

        self.first = codes[bisect_left(codes, pair(1, carrier.unit), key=meaning)]
        self.last = codes[bisect_right(codes, pair(carrier.max, carrier.unit), key=meaning) - 1]

    def quantize(self, rounding, negative, m, word, random_bits):
        """Returns (negative, magnitude), what an element that is not NaN becomes."""
        if m in (0, float("inf")):
            return negative and m != 0, NAN if m else 0
        n, rest = self.posits.split(m, self.carrier.unit)
        d, one = int(rest or "0", 2), 2 ** len(rest)
        if rounding in UP_BY_CHANCE:
            up = UP_BY_CHANCE[rounding](word // 2 ** (32 - random_bits), random_bits, d, one)
        else:
            up = self.up_when[rounding](n, 2 * d, one, negative)  # twice, so that one half is a whole number
        code = min(max(n + up, self.first), self.last)
        return self.posits.decode(self.carrier, self.posits.signed(negative, code))
