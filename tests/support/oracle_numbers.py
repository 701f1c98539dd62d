"""The oracle's formats of single numbers and their codes; see `oracle`, which calls them.

A finite carrier value is a whole number of "units" (the carrier's smallest subnormal): all is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from oracle_carrier import INF, NAN


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
        self.is_p3109 = specials.startswith("p3109")
        infinite = self.is_p3109 or self.inf_code is not None
        if overflow not in ("saturate", "nan", *(("inf", "propagate") if infinite else ())):
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
        parity = {"parity_of": self.code} if self.is_p3109 else {}
        return Rule(self.quantum, self.settled(carrier, limit), **parity)

    def settled(self, carrier, limit):
        """Returns the `settle` of the format, whose largest finite value is `limit`."""
        least = 0 if self.has_zero or self.emin < carrier.unit else carrier.units(1, self.emin)

        def magnitude(negative, source, m, rounding):
            if not self.has_zero and (source == 0 or negative):
                return NAN
            m = max(m, least)
            satnone = self.is_p3109 and self.overflow == "inf"
            if negative and not self.signed and m != 0:
                to_zero = satnone and source != INF and rounding in ("toward_zero", "up")
                return 0 if self.overflow in ("saturate", "propagate") or to_zero else NAN
            if m <= limit:
                return m
            if self.overflow == "propagate" and source == INF and self.inf_code is not None:
                return INF
            if self.overflow in ("saturate", "propagate") or (satnone and self.inf_code is None):
                return limit
            if source == INF:
                return NAN if self.inf_code is None else INF
            if rounding in ("toward_zero", "up" if negative else "down"):
                return limit
            if rounding == "odd" and not (satnone and self.signed):
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
