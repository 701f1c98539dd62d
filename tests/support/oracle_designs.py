"""The oracle of matrix instructions: one element at a time, in Python's fractions. It never imports the library.

Its table is written from the tables of papers (MMA-Sim, arXiv:2511.10909, and its version 2.1.1; Khattak and Mikaitis,
arXiv:2512.07004), not from `qcore.linalg.designs`.
"""

import math
import struct
from fractions import Fraction

import numpy as np

LEAST = {  # exponents of the least normal numbers
    "f32": -126,
    "tf32": -126,
    "xf32": -126,
    "bf16": -126,
    "f16": -14,
    "e4m3": -6,
    "e5m2": -14,
    "e2m1": 0,
    "e2m3": 0,
    "e3m2": -2,
    "fp8": -7,
    "bf8": -15,
}
BITS = {"volta": 23, "turing": 24, "ampere": 24, "ada": 24}  # of fraction; later chips have 25
# Exponents of zero terms and accumulators, of float32 and of float16 results; in steps of 64 terms it is -139
ZEROS = {"volta": (-131, -19), "turing": (-132, -20), "ampere": (-132, -20), "ada": (-132, -20)}
WHOLE_STEP = {"f16": 16, "bf16": 16, "tf32": 8}  # of the longest shape; 32 for narrower operands
NAN = float("nan")


def row(name):
    """(law, fraction bits, step, output, the operands' least exponents, the block) of a design."""
    chip, instruction, operands, *half = name.split(".")
    kind, _, length = instruction.partition("_k")
    if operands in ("mxf4", "mxf4_16", "nvf4", "nvf4_32"):
        return "grouped", 35, 64, "f32", (0, 0), {"mxf4": 32, "mxf4_16": 16, "nvf4": 16, "nvf4_32": 32}[operands]
    scaled = operands.startswith("mx")
    first, second = [one.removeprefix("mx") for one in (operands.removesuffix("_1k") + "_" + operands).split("_")][:2]
    least = LEAST[first], LEAST[second if second in LEAST else second.removeprefix("mx")]
    if chip.startswith("cdna"):
        if first == "f32":
            return "fused", 0, 1, "f32", least, 0
        if chip == "cdna1":
            return "exact", 0, 2 if operands == "bf16" else 4, "f32", least, 0
        if chip == "cdna2":
            return "pairs", 0, 2 if operands == "bf16" else 4, "f32", least, 0
        if first in ("fp8", "bf8"):
            return "parity", 24, 16, "f32", least, 0
        return "floor", 24, 4 if first == "xf32" or length else 8, "f32", least, 0
    bits, step, output = BITS.get(chip, 25), int(length) if length else WHOLE_STEP.get(first, 32), "f32"
    if chip == "volta":
        step = 4
    elif chip in ("turing", "ampere", "ada") and not length:
        step //= 2  # Turing's shape is half as long; Ampere and Ada add in two steps
    elif chip == "turing":
        bits = 23  # Volta's shape
    if kind == "mma" and chip in ("hopper", "blackwell") and first in ("e4m3", "e5m2"):
        return "halves", 25, 32, "f16" if half else "f32", (-14, -14), 0
    if first in ("e4m3", "e5m2") and (chip == "ada" or kind == "wgmma"):
        bits, output = 13, "e8m13"
    return "aligned", bits, step, "f16" if half else output, least, 32 if scaled else 0


def exponent(x, least, zero=-126):
    """Of a number with this least exponent."""
    return max(math.frexp(x)[1] - 1, least) if x else zero


def zero_of(name, law, output):
    """The exponent of terms and accumulators that are zero."""
    if law == "grouped":
        return -139
    chip, instruction = name.split(".")[:2]
    chip = "volta" if chip == "turing" and instruction == "mma_k4" else chip
    return ZEROS.get(chip, (-133, -21))[output == "f16"]


def cut(x, at, down=False):
    """x, cut off to a multiple of 2^at: toward zero, or downward."""
    unit = Fraction(2) ** at
    return (math.floor if down else math.trunc)(Fraction(x) / unit) * unit


def special(terms, c):
    """The float64 sum where it is infinite or NaN; else None."""
    with np.errstate(all="ignore"):
        total = np.float64(0)
        for a, b in terms:
            total = total + np.float64(a) * np.float64(b)
        total = total + np.float64(c)
    return None if math.isfinite(total) else float(total)


def toward_zero(x, bits):
    """A fraction in a format of 8 bits of exponent; beyond it infinite, and never -0."""
    if x == 0:
        return 0.0
    top = top_of(x)
    if top >= 128:
        return math.copysign(math.inf, x)
    return float(cut(x, max(top, -126) - bits)) + 0.0


def top_of(x):
    """floor(log2 |x|) of a fraction."""
    n, d = abs(x).numerator, abs(x).denominator
    found = n.bit_length() - d.bit_length()
    return found if Fraction(2) ** found <= abs(x) else found - 1


def nearest(x, bits=23, least=-126, most=127):
    """A fraction, to nearest even, with the sign of a number that becomes zero."""
    if x == 0:
        return 0.0
    unit = Fraction(2) ** (max(top_of(x), least) - bits)
    found = round(x / unit) * unit  # Python rounds fractions to even
    if abs(found) >= Fraction(2) ** (most + 1):
        return math.copysign(math.inf, x)
    return math.copysign(float(found), x)


def aligned(terms, exponents, c, bits, output, zero):
    """Products, and their exponents, with the accumulator; the largest exponent decides where all are cut off."""
    largest = max([exponent(c, -14 if output == "f16" else -126, zero), *exponents])
    found = sum([cut(x, largest - bits) for x in (c, *terms)], Fraction(0))
    return nearest(found, 10, -14, 15) + 0.0 if output == "f16" else toward_zero(found, 13 if output == "e8m13" else 23)


def float32(x, flushes=False):
    """A float64 number in float32; with flushing, a zero of its sign where it is subnormal."""
    with np.errstate(all="ignore"):
        found = float(np.float32(x))
    return math.copysign(0.0, found) if flushes and abs(found) < 2.0**-126 else found


def pairs(terms, c, flushes):
    sums = [float32(a * b + 0.0, flushes) for a, b in terms]
    while len(sums) > 1:
        sums = [float32(x + y, flushes) for x, y in zip(sums[::2], sums[1::2], strict=True)]
    return float32(c + sums[0], flushes)


def fused(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return nearest(exact) if exact else a * b + c  # IEEE 754's sign of zero


def halves(terms, c, bits, output, zero):
    """Two aligned steps from +0 on; their sum, then the addend, to nearest."""
    total = 0.0
    for first in (0, 2):
        own = [pair for k, pair in enumerate(terms) if k % 4 - first in (0, 1)]
        exponents = [exponent(x, -14) + exponent(y, -14) if x * y else zero for x, y in own]
        found = special(own, total)
        exact = [Fraction(x) * Fraction(y) for x, y in own] if found is None else []
        total = aligned(exact, exponents, total, bits, output, zero) if found is None else found
    if not math.isfinite(total) or not math.isfinite(c):
        return total + c
    found = Fraction(total) + Fraction(c)
    return nearest(found, 10, -14, 15) if output == "f16" else nearest(found)


def exact_sum(terms, c):
    """Rounded once; a sum of zero is +0."""
    if not all(math.isfinite(x) for pair in terms for x in pair) or not math.isfinite(c):
        return special(terms, c)
    return nearest(sum([Fraction(a) * Fraction(b) for a, b in terms], Fraction(c)))


def downward(terms, least, c, sets):
    large = [a * b for a, b in terms if abs(a * b) >= 2.0**128]
    if large:
        return large[0] * math.inf if len({x > 0 for x in large}) == 1 else NAN
    parts = []
    for first in range(sets):
        own = terms[first::sets]
        top = max(exponent(a, least[0]) + exponent(b, least[1]) if a * b else -999 for a, b in own)
        parts.append((top, sum(cut(Fraction(a) * Fraction(b), top - 24) for a, b in own)))
    top = max(top for top, _ in parts)
    total = parts[0][1] if sets == 1 else sum(cut(x, top - 24, True) for _, x in parts)
    of_c = exponent(c, -126)
    largest = max(top, of_c)
    kept = cut(c, largest - 24, True) if sets == 1 or of_c >= largest - 25 else 0
    return nearest(cut(total, largest - 31, True) + kept)


def by_pairs(a, b, c):
    """VDPBF16PS: the odd term of a pair first, each a fused multiply-add; subnormal numbers are zeros of their sign."""

    def normal(x):
        return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x

    a, b, c = [normal(x) for x in a], [normal(x) for x in b], normal(c)
    for k in range(0, len(a), 2):
        for x, y in ((0.0, 0.0) if k + 1 == len(a) else (a[k + 1], b[k + 1]), (a[k], b[k])):
            finite = all(map(math.isfinite, (x, y, c)))
            c = normal(fused(x, y, c) if finite else float32(x * y + c))
    return c


def dot(name, a, b, c, scales=None):
    """One element: rows of operands, the addend, and the scales of the blocks of both."""
    if name == "x86.avx512_bf16":
        return by_pairs(a, b, c)
    law, bits, step, output, least, block = row(name)
    zero = zero_of(name, law, output)
    flushes = name.startswith("cdna2") and law == "pairs"
    if flushes:
        a, b = ([0.0 if abs(x) < 2.0**one else x for x in row] for row, one in zip((a, b), least, strict=True))
        c = 0.0 if abs(c) < 2.0**-126 else c
    for begin in range(0, len(a), step):
        terms = list(zip(a[begin : begin + step], b[begin : begin + step], strict=True))
        terms += [(0.0, 0.0)] * (step - len(terms))
        factors = [(1.0, 1.0)]
        if block:
            first, count = begin // block, step // block
            factors = list(zip(*(one[first : first + count] for one in scales), strict=True))
        of_terms = [factors[k // (block or step)] for k in range(step)]
        whole = [(x * s, y * t) for (x, y), (s, t) in zip(terms, of_terms, strict=True)]
        found = special(whole, c)
        if found is not None and law in ("aligned", "grouped", "floor", "parity"):
            c = found
            continue
        if law == "grouped":
            groups = [sum(Fraction(x) * Fraction(y) for x, y in terms[at : at + 16]) for at in range(0, step, 16)]
            pair = [factors[at // block] for at in range(0, step, 16)]
            bottom = -127 if name.split(".")[2].startswith("mx") else -6
            none = [all(x * y == 0 for x, y in terms[at : at + 16]) for at in range(0, step, 16)]
            exponents = [
                zero if empty or s * t == 0 else exponent(s, bottom) + exponent(t, bottom)
                for empty, (s, t) in zip(none, pair, strict=True)
            ]
            exact = [g * Fraction(s) * Fraction(t) for g, (s, t) in zip(groups, pair, strict=True)]
            c = aligned(exact, exponents, c, bits, output, zero)
        elif law == "aligned":
            shift = sum(exponent(x, -127) for x in factors[0]) if block else 0
            exponents = [exponent(x, least[0]) + exponent(y, least[1]) + shift if x * y else zero for x, y in terms]
            c = aligned([Fraction(x) * Fraction(y) for x, y in whole], exponents, c, bits, output, zero)
        elif law == "halves":
            c = halves(terms, c, bits, output, zero)
        elif law == "exact":
            c = exact_sum(terms, c)
        elif law == "pairs":
            c = pairs(terms, c, flushes)
        elif law == "fused":
            c = (
                fused(*terms[0], c)
                if all(map(math.isfinite, (*terms[0], c)))
                else float32(terms[0][0] * terms[0][1] + c)
            )
        else:
            c = downward(terms, least, c, 2 if law == "parity" else 1)
    return c


def nan_bits(name):
    """The bits of a NaN in the result, as float32."""
    if name.startswith(("cdna", "x86")):
        return 0x7FC00000
    return 0x7FFFE000 if name.endswith(".f16") and name.count(".") == 3 else 0x7FFFFFFF


def matmul(name, a, b, c, scales=None):
    """float32 arrays (M, K), (K, N) and (M, N), and the scales (M, blocks) and (blocks, N)."""
    result = np.empty(c.shape, np.uint32)
    if "tf32" in name or "xf32" in name:  # the low 13 bits are not read; NaN stays one
        a, b = (np.where(np.isnan(x), x, (x.view(np.uint32) & 0xFFFFE000).view(np.float32)) for x in (a, b))
    for i, j in np.ndindex(*c.shape):
        given = None if scales is None else (scales[0][i].tolist(), scales[1][:, j].tolist())
        with np.errstate(all="ignore"):
            found = dot(name, a[i].tolist(), b[:, j].tolist(), float(c[i, j]), given)
        result[i, j] = nan_bits(name) if math.isnan(found) else struct.unpack("I", struct.pack("f", found))[0]
    return result.view(np.float32)
