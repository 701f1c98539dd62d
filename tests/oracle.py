"""The independent oracle: laws.md in exact integer arithmetic, one element at a time.

It must never import the library, nor borrow a trick from it: comparing the two means something only because they
share nothing. A finite carrier value is a whole number of "units" (the carrier's smallest subnormal): all is exact.
"""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

INF = math.inf  # compares exactly with ints of any size
NAN = None  # the magnitude of a NaN

# Up exactly when: n and d are floor(t) and t - n, with d and a half both counted in units.
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
        """Reads the layout of `dtype`: float32, float16 or bfloat16."""
        layouts = {
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
        if magnitude == INF:
            return sign + (2**self.exp - 1) * 2**self.man
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


def fixed_rule(carrier, wl, fl, clamp, symmetric):
    """Returns the rule (quantum, positive limit, negative limit) of FixedPoint; a limit of INF does not limit."""
    if wl < 1 or not carrier.unit <= -fl <= carrier.emax:
        raise ValueError(f"wl must be at least 1 and 2^-fl a carrier value, got wl={wl}, fl={fl}")

    def quantum(e):
        return -fl

    if not clamp:
        return quantum, INF, INF
    hi = Fraction(2) ** (wl - fl - 1) - Fraction(2) ** -fl
    minus_lo = hi if symmetric else Fraction(2) ** (wl - fl - 1)
    return quantum, carrier.largest(hi, quantum), carrier.largest(minus_lo, quantum)


def float_rule(carrier, exp, man):
    """Returns the rule of FloatingPoint: saturating, except that from exp = 8 on the carrier's own range decides."""
    emin, emax = 2 - 2 ** (exp - 1), 2 ** (exp - 1)

    def quantum(e):
        return max(e, emin) - man

    if exp >= 8:
        return quantum, INF, INF
    limit = carrier.largest((2 - Fraction(2) ** -man) * Fraction(2) ** emax, quantum)
    return quantum, limit, limit


def block_rule(carrier, wl, magnitudes):
    """Returns the rule of one block of BlockFloatingPoint, given the magnitudes of all its elements."""
    exponents = [carrier.emax if m == INF else carrier.log2(m) for m in magnitudes if m is not NAN and m > 0]
    q = max(exponents, default=0) - (wl - 2)  # in a block of zeros and NaN nothing is ever rounded

    def quantum(e):
        return q

    clip = carrier.largest((2 ** (wl - 1) - 1) * Fraction(2) ** q, quantum)
    return quantum, clip, clip


def block_numbers(shape, dim):
    """Returns, in row-major order, the number of the block that each element belongs to."""
    if not -1 <= dim < len(shape):
        raise ValueError(f"dim must be -1 or one of the {len(shape)} dimensions, got {dim}")
    if dim == -1:
        return [0] * math.prod(shape)
    return np.indices(shape)[dim].ravel().tolist()


def rules_of(carrier, spec, shape, magnitudes):
    """Returns the rule of every element, in row-major order (most of them the same object)."""
    kind, *arguments = spec
    if kind in ("fixed", "float"):
        rule = (fixed_rule if kind == "fixed" else float_rule)(carrier, *arguments)
        return [rule] * len(magnitudes)
    if kind != "block":
        raise ValueError(f"spec: {spec!r} is neither fixed, float nor block")
    wl, dim = arguments
    if not 2 <= wl <= 25:
        raise ValueError(f"wl must be in 2..25, got {wl}")
    numbers, blocks = block_numbers(shape, dim), {}
    for number, m in zip(numbers, magnitudes, strict=True):
        blocks.setdefault(number, []).append(m)
    rules = {number: block_rule(carrier, wl, block) for number, block in blocks.items()}
    return [rules[number] for number in numbers]


def quantize_element(carrier, rule, rounding, negative, m, word, random_bits):
    """Returns the magnitude that the non-zero magnitude m (never NAN) becomes."""
    quantum, positive_limit, negative_limit = rule
    q = carrier.unit if m == INF else quantum(carrier.log2(m))
    if q > carrier.unit:  # else every carrier value is a multiple of 2^q: d = 0, nothing moves
        step = 2 ** (q - carrier.unit)
        n, d = divmod(m, step)
        if rounding == "stochastic":
            u = word // 2 ** (32 - random_bits)
            up = u + d * 2**random_bits // step >= 2**random_bits
        else:
            up = UP_WHEN[rounding](n, d, step // 2, negative)
        m = (n + 1 if up else n) * step
    m = min(m, negative_limit if negative else positive_limit)
    return INF if m > carrier.max else m


def quantize(x, spec, rounding, words=None, random_bits=24):
    """Quantizes every element of x as laws.md says.

    Args:
        x: numpy array of dtype float32, float16 or ml_dtypes.bfloat16, of any shape.
        spec: ("fixed", wl, fl, clamp, symmetric), ("float", exp, man) or ("block", wl, dim).
        rounding: a key of UP_WHEN, or "stochastic".
        words: for "stochastic", a uint32 array of x's shape: the elements' random words.
        random_bits: how many of a word's top bits "stochastic" uses, 1 to 32.

    Returns:
        A new array of x's dtype and shape.
    """
    if rounding not in UP_WHEN and rounding != "stochastic":
        raise ValueError(f"rounding: {rounding!r} is neither stochastic nor one of {list(UP_WHEN)}")
    if rounding == "stochastic" and (words is None or words.dtype != np.uint32 or words.shape != x.shape):
        raise ValueError("stochastic rounding needs uint32 words of the shape of x")
    carrier = Carrier(x.dtype)
    patterns = np.ascontiguousarray(x).view(carrier.pattern_dtype).ravel().tolist()
    numbers = [carrier.decode(pattern) for pattern in patterns]
    rules = rules_of(carrier, spec, x.shape, [m for _, m in numbers])
    words = words.ravel().tolist() if rounding == "stochastic" else [0] * len(patterns)
    for i, (negative, m) in enumerate(numbers):
        if m is not NAN and m != 0:  # a NaN keeps its bits, a zero its sign
            m = quantize_element(carrier, rules[i], rounding, negative, m, words[i], random_bits)
            patterns[i] = carrier.encode(negative, m)
    return np.array(patterns, carrier.pattern_dtype).view(x.dtype).reshape(x.shape)
