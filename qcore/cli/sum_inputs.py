"""The inputs of vectors for sums: hard rows of several kinds, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arrays import decode, encode
from qcore.cli.properties import exponent_range, has_last_place, properties
from qcore.cli.scaled_inputs import beside_groups, is_grouped, least_sums
from qcore.cli.sums import Operands, Unit
from qcore.formats.fixed import FixedPoint

KINDS = (
    "random",
    "near",
    "cancellation",
    "subnormal",
    "large",
    "special",
    "tie",
    "zero",
    "beside a tie",
    "beside a subnormal",
    "least sums",
)
ANY = KINDS[:8]  # of rows of layers, too: the other kinds are made of a row's addend, or of chosen terms
_FINITE = float(np.finfo(np.float32).max)
_INSIDE = "random", "near", "cancellation"  # of these, every second row stays inside the accumulator's range
# Addends of special rows: zeros, infinities, NaN with one bit and with all bits, nearly 2^128, the smallest number, 1.
_SPECIAL = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7F61B1E6, 1, 0x3F800000], np.uint32)


def draw(unit: Unit, count: int, seed: int) -> tuple[np.ndarray, Operands]:
    """The kinds of the rows, and their inputs: `count` rows, the kinds in turn."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(count) % len(KINDS)
    shape = count, unit.terms
    scales = None
    if unit.product.block:
        scales = _scales(unit, kinds, rng), _scales(unit, kinds, rng)
    with np.errstate(all="ignore"):
        a, b = (_codes(number, kinds, shape, rng) for number in unit.numbers)
        left, right = (decode(x, number).astype(np.float64) for x, number in zip((a, b), unit.numbers, strict=True))
        exponents = rng.integers(-20, 21, count)
        c = np.where(rng.integers(0, 2, count) > 0, np.ldexp(left[:, 0] * right[:, 0], exponents), 0)
        c = np.clip(c, -_FINITE, _FINITE).astype(np.float32)
        half = unit.terms // 2
        rows = kinds == KINDS.index("cancellation")
        a[rows, half : 2 * half] = a[rows, :half]
        negative = encode(-decode(b, unit.numbers[1]), unit.numbers[1], "nearest")
        b[rows, half : 2 * half] = negative[rows, :half]
        if scales is None:
            rows = every_second(kinds)
            x, y = (decode(x[rows], number).astype(np.float64) for x, number in zip((a, b), unit.numbers, strict=True))
            c[rows] *= shrink(a, unit.numbers[0], rows, np.abs(x * y).sum(1) + np.abs(c[rows]), unit.largest)
        c[kinds == KINDS.index("large")] *= np.float32(2.0**100)
        # In half of these rows all products have one sign, so that sums grow; in a quarter they are the largest ones,
        # and the addend does not cut them off.
        rows = np.flatnonzero(kinds == KINDS.index("large"))[::2]
        for x, number in zip((a, b), unit.numbers, strict=True):
            x[rows] = encode(np.abs(decode(x[rows], number)), number, "nearest")
            x[rows[::2]] = encode(np.full(1, float(properties(number).largest), np.float32), number, "nearest")
        c[rows] = 0
        # In the rest some terms are small, so that the growing sum has bits that its rounding drops.
        smaller = np.ldexp(
            1.0, -rng.integers(0, 13, (len(rows[1::2]), unit.terms)) * rng.integers(0, 2, (1, unit.terms))
        )
        x = decode(b[rows[1::2]], unit.numbers[1]) * smaller
        b[rows[1::2]] = encode(x.astype(np.float32), unit.numbers[1], "nearest")
        rows = kinds == KINDS.index("subnormal")
        c[rows] = rng.integers(1, 1 << 23, rows.sum(), np.uint32).view(np.float32)
        # Half of them have only products of zeros, as any other would be far above a subnormal addend.
        a[np.flatnonzero(rows)[::2]] = encode(np.zeros(1, np.float32), unit.numbers[0], "nearest")
        rows = kinds == KINDS.index("special")
        c.view(np.uint32)[rows] = rng.choice(_SPECIAL, rows.sum())
        # Products of zeros, whose exponents count, beside a tiny addend; in a third of the rows the zeros are b's.
        rows = np.flatnonzero(kinds == KINDS.index("zero"))
        for x, number, some in zip((a, b), unit.numbers, (rows[np.arange(len(rows)) % 3 > 0], rows[::3]), strict=True):
            x[some] = encode(np.zeros(1, np.float32), number, "nearest")
        c[rows] = np.ldexp(rng.uniform(-2, 2, len(rows)), rng.integers(-135, -115, len(rows)))
        if unit.fraction_bits is None:
            _draw_negative_zeros(unit, rows, Operands(a, b, None, c))
        for kind, make in (
            ("tie", _ties),
            ("beside a tie", _beside_ties),
            ("beside a subnormal", _beside_subnormals),
            ("least sums", _least_sums),
        ):
            rows = kinds == KINDS.index(kind)
            a[rows], b[rows], c[rows] = make(unit, int(rows.sum()), rng)
        if scales is not None:
            _draw_scaled(unit, kinds, Operands(a, b, scales, c), rng)
        if not unit.addend:
            c[:] = 0
    return kinds, Operands(a, b, scales, c)


def _draw_negative_zeros(unit: Unit, rows: np.ndarray, given: Operands) -> None:
    """Rows with addends that are -0, or count as zero, and products that are -0, or less than all numbers."""
    smallest = [float(known.min_normal or known.smallest or 0) for known in map(properties, unit.numbers)]
    for place, first, addend in ((0, -0.0, -0.0), (1, -smallest[0], -(2.0**-130)), (2, -0.0, -(2.0**-130))):
        some = rows[place::4]
        given.a[some] = encode(np.full(1, first, np.float32), unit.numbers[0])
        given.b[some] = encode(np.full(1, smallest[1], np.float32), unit.numbers[1])
        given.c[some] = addend


def _draw_scaled(unit: Unit, kinds: np.ndarray, given: Any, rng: np.random.Generator) -> None:
    """Replaces the rows in which scales decide what is cut off; and takes the least scale, beside a large one."""
    design: Any = unit.product.accumulator.design
    rows = np.flatnonzero(kinds == KINDS.index("near"))[::4]
    low, high = exponent_range(unit.scale)
    for x, exponent in zip(given.scales, (low, min(-low, high)), strict=True):
        x[rows, 0] = encode(np.ldexp(np.float32(1), [exponent]), unit.scale)
    for kind, make, applies in (
        ("beside a subnormal", beside_groups, is_grouped(unit)),
        ("least sums", least_sums, design.scale == "e8m0"),  # other scales make no product so small
    ):
        rows = kinds == KINDS.index(kind)
        if applies:
            given.a[rows], given.b[rows], found, given.c[rows] = make(unit, int(rows.sum()), rng)
            for x, one in zip(given.scales, found, strict=True):
                x[rows] = one


def _scales(unit: Unit, kinds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Codes of scales: near 1, and of random rows any."""
    shape = len(kinds), unit.terms // unit.product.block
    near = scale_codes(unit.scale, shape, rng)
    anything = rng.integers(0, 1 << unit.scale.bits, shape).astype(near.dtype)
    return np.where((kinds == KINDS.index("random"))[:, None], anything, near)


def scale_codes(scale: Any, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Codes of scales near 1."""
    return encode(np.ldexp(np.float32(1), rng.integers(-4, 5, shape)).astype(np.float32), scale, "nearest")


def row_codes(number: Any, kinds: np.ndarray, terms: int, rng: np.random.Generator, sign: int) -> np.ndarray:
    """Codes of a layer's rows by kind: random ones are finite, and those of cancellation have halves x and sign * x."""
    codes = _codes(number, kinds, (len(kinds), terms), rng, finite=True)
    half, rows = terms // 2, kinds == KINDS.index("cancellation")
    other = encode(sign * decode(codes, number), number, "nearest")
    codes[rows, half : 2 * half] = other[rows, :half]
    codes[kinds == KINDS.index("zero")] = encode(np.zeros(1, np.float32), number, "nearest")
    return codes


def _codes(
    number: Any, kinds: np.ndarray, shape: tuple[int, int], rng: np.random.Generator, finite: bool = False
) -> np.ndarray:
    """Codes of an operand for each row's kind; with `finite`, random rows have numbers only."""
    known = properties(number)
    largest, smallest = float(known.largest), float(known.smallest or known.largest)
    sign = 1.0 - 2.0 * rng.integers(0, 2, shape) if float(known.lowest) < 0 else 1.0
    middle = float(np.clip(1.0, smallest, largest))
    near = np.clip(np.ldexp(middle * rng.uniform(1, 2, shape), rng.integers(-6, 7, shape)), smallest, largest)
    small = np.minimum(smallest * rng.integers(0, 9, shape), largest)
    large = largest * rng.uniform(0.5, 1, shape)
    few = min(0.002, 0.25 / shape[1])  # of many terms one would nearly always be NaN
    odd = rng.choice(
        [0.0, -0.0, np.inf, np.nan, smallest, largest, middle], shape, p=[0.2, 0.1, few, few, 0.2, 0.2, 0.3 - 2 * few]
    )
    chosen = np.choose(kinds[:, None], [near, near, near, small, large, odd, *[near] * 5])
    codes = encode((sign * chosen).astype(np.float32), number, "nearest")
    anything = rng.integers(0, 1 << number.bits, shape).astype(codes.dtype)
    rows = np.flatnonzero(kinds == KINDS.index("random"))
    # For the same reason every second random row has numbers only.
    numbers = rows if finite else rows[::2]
    anything[numbers] = np.where(np.isfinite(decode(anything[numbers], number)), anything[numbers], codes[numbers])
    codes[rows] = anything[rows]
    return codes


def every_second(kinds: np.ndarray) -> np.ndarray:
    """The rows, every second one of a kind, whose sums stay inside the accumulator's range."""
    return np.concatenate([np.flatnonzero(kinds == KINDS.index(kind))[::2] for kind in _INSIDE])


def shrink(codes: np.ndarray, number: Any, rows: np.ndarray, bounds: np.ndarray, largest: float) -> np.ndarray:
    """Makes numbers of rows smaller, so that `bounds` of their sums become at most half of the largest number.

    Returns:
        The factors of the rows.
    """
    factors = np.minimum(1.0, largest / 2 / np.maximum(bounds, 1e-300))
    x = decode(codes[rows], number).astype(np.float64) * factors[:, None]
    codes[rows] = encode(x.astype(np.float32), number, "toward_zero")
    return factors


def _ties(unit: Unit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One product that is a power of two, beside an addend whose last place is twice as much."""
    accumulator = unit.product.accumulator.number
    bits = min(accumulator.span[0] if has_last_place(accumulator) else 24, 24)
    step, highest = accumulator.span[1], min(properties(accumulator).largest.log2, 127)
    ends = [exponent_range(number) for number in unit.numbers]
    (low, high), (low_b, high_b) = ends
    # The exponents of products: of half a step of the accumulator, or more for floats, as far as the addend is inside.
    bottom, top = step - 1, step - 1 if isinstance(accumulator, FixedPoint) else highest - bits - 1
    bottom, top = (min(max(end, low + low_b), high + high_b) for end in (bottom, max(bottom, top)))
    exponents = rng.integers(max(bottom, top - 40), top + 1, count)
    of_a = rng.integers(np.maximum(low, exponents - high_b), np.minimum(high, exponents - low_b) + 1)
    factors = []
    for number, powers in zip(unit.numbers, (of_a, exponents - of_a), strict=True):
        x = np.zeros((count, unit.terms), np.float32)
        x[:, 0] = np.ldexp(1.0, powers)
        factors.append(encode(x, number, "nearest"))
    a, b = (decode(x[:, 0], number).astype(np.float64) for x, number in zip(factors, unit.numbers, strict=True))
    # A power of two has smaller steps below it, where the product is no tie.
    significand = rng.integers((1 << (bits - 1)) + (bits > 1), 1 << bits, count)
    c = significand * a * b * 2 * (1 - 2 * rng.integers(0, 2, count))
    c = np.clip(c, -unit.largest, unit.largest).astype(np.float32)  # beyond it if no product is so small
    return factors[0], factors[1], c


def _beside_ties(unit: Unit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ties that a second product of either sign, far below the first one, decides.

    In a third of the rows the addend is far above its product instead, with the other sign.
    """
    a, b, c = _ties(unit, count, rng)
    if unit.terms > 1:
        # Where nothing is cut off, it is in half of the rows so far below that float64 does not hold the sum.
        far = np.where((rng.integers(0, 2, count) > 0) & (unit.fraction_bits is None), 15, 0)
        signs = 1.0 - 2.0 * rng.integers(0, 2, count)
        for x, number, sign, least in ((a, unit.numbers[0], signs, 2), (b, unit.numbers[1], 1.0, 0)):
            exponents = np.frexp(decode(x[:, 0], number))[1] - 1
            below = np.maximum(
                exponents - far - np.where(far + least, rng.integers(least, 16, count), 0), exponent_range(number)[0]
            )
            x[:, 1] = encode(np.ldexp(sign, below).astype(np.float32), number)
        a[::3, 1] = encode(np.zeros(1, np.float32), unit.numbers[0], "nearest")
    if unit.product.accumulator.chunk == 1:  # in others the product itself is less than the tie, by as little as can be
        for x, number, sign in zip((a, b), unit.numbers, (1, -1), strict=True):
            last = 2.0 ** (1 - min(number.span[0], 24)) if has_last_place(number) else 0.0
            x[1::3, 0] = encode((decode(x[1::3, 0], number) * (1 + sign * last)).astype(np.float32), number)
    y = np.sign(decode(b[::3, 0], unit.numbers[1]))
    c[::3] = np.clip(np.ldexp(-y * abs(c[::3]), rng.integers(1, 7, len(y))), -unit.largest, unit.largest)
    return a, b, c


def _beside_subnormals(unit: Unit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A product of a subnormal number and a large one, whose exponent is the largest by some laws, beside smaller ones.

    The bits of the smaller products lie where the laws of a subnormal number's exponent cut off differently.
    """
    shape, kept = (count, unit.terms), (unit.fraction_bits or 24) + 3
    turned = rng.integers(0, 2, count) > 0  # in half of the rows it is b's number that is subnormal
    made = []
    for first, second in (unit.numbers, unit.numbers[::-1]):
        digits, step = (first.span[0], first.span[1]) if has_last_place(first) else (1, exponent_range(first)[0])
        least, (low, top) = step + digits - 1, exponent_range(second)
        exponents = least + top - rng.integers(1, kept + 1, shape)
        exponents[::4] = least + top - rng.integers(max(kept - 12, 1), kept + 1, exponents[::4].shape)
        of_first = np.minimum(least + rng.integers(0, digits + 1, shape), exponent_range(first)[1])
        x = np.ldexp(rng.uniform(1, 2, shape), of_first)
        y = np.ldexp(
            rng.uniform(1, 2, shape) * (1 - 2 * rng.integers(0, 2, shape)), np.clip(exponents - of_first, low, top)
        )
        x[:, 0] = np.ldexp(rng.integers(1, max(1 << (digits - 1), 2), count).astype(float), step)
        y[:, 0] = np.ldexp(1.0, top)
        if unit.terms > 2:  # in half of the rows it is cancelled, so that the others' bits are the result's
            x[::2, 1], y[::2, 1] = x[::2, 0], -y[::2, 0]
            x[::8, 2:] = 0  # or the addend's alone
        c = np.where(rng.integers(0, 2, count) > 0, np.ldexp(rng.uniform(-2, 2, count), exponents[:, -1]), 0)
        c[::8] = np.ldexp(rng.uniform(-2, 2, len(c[::8])), least + top - rng.integers(kept - 12, kept, len(c[::8])))
        made.append((x, y, c))
    (x, y, c), (v, u, d) = made
    rows = turned[:, None]
    a, b = np.where(rows, u, x), np.where(rows, v, y)
    c = np.where(turned, d, c)
    if (
        unit.product.accumulator.inner is not None
        and unit.product.accumulator.innermost.fraction_bits
        and unit.terms > 2
    ):
        _draw_inside(unit, a[1::2], b[1::2], rng)
        c[1::2] = 0
    codes = (encode(z.astype(np.float32), number, "nearest") for z, number in zip((a, b), unit.numbers, strict=True))
    return *codes, c.astype(np.float32)


def _draw_inside(unit: Unit, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> None:
    """Numbers of rows for accumulators that align inside of chunks: large products that cancel, beside small ones.

    In half of the rows the large ones are in two steps, so that the first step's sum has the largest exponent.
    """
    accumulator = unit.product.accumulator
    inner, places = accumulator.innermost, [*accumulator.order] or [*range(unit.terms)]
    kept, step = inner.fraction_bits or 24, inner.length(unit.terms)
    (low_a, top_a), (low_b, top_b) = map(exponent_range, unit.numbers)

    def factors(exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        of_a = np.clip(exponents // 2, np.maximum(low_a, exponents - top_b), np.minimum(top_a, exponents - low_b))
        return of_a, exponents - of_a

    for row in range(len(a)):
        first, second, top = places[:1], places[1:2], top_a + top_b - 1
        if split := row % 2 and len(places) >= 2 * step:
            first, second = places[: step - 1], places[step : 2 * step - 1]
            # The format inside of chunks has to hold the first step's sum.
            top = min(top, properties(inner.number).largest.log2 - int(np.log2(step)) - 1)
        exponents = np.maximum(top - kept + rng.integers(-3, 9, unit.terms), low_a + low_b)
        of_a, of_b = factors(exponents)
        a[row] = np.ldexp(rng.uniform(1, 2, unit.terms), of_a)
        b[row] = np.ldexp(1.0 - 2.0 * rng.integers(0, 2, unit.terms), of_b)
        if split:
            a[row, [*{*range(unit.terms)} - {places[2 * step - 1]}]] = 0
        of_a, of_b = factors(np.array([top]))
        a[row, [*first, *second]] = np.ldexp(1.0, of_a)
        b[row, first], b[row, second] = np.ldexp(1.0, of_b), np.ldexp(-1.0, of_b)


def _least_sums(unit: Unit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of a few steps of the accumulator, of an addend and of products as small as the operands allow.

    In half of the rows the sum of three products is a multiple of half a step if nothing is cut off: where the exponent
    of zeros is the largest, it says whether something is.
    """
    number = unit.product.accumulator.number
    step, digits = number.span[1], number.span[0] if has_last_place(number) else 24
    shape = count, unit.terms
    (low, high), (low_b, high_b) = (exponent_range(one) for one in unit.numbers)
    exponents = np.clip(rng.integers(step - 14, step + 4, shape), low + low_b, high + high_b)
    of_a = np.clip(exponents // 2, np.maximum(low, exponents - high_b), np.minimum(high, exponents - low_b))
    a, b = (np.ldexp(rng.uniform(1, 2, shape), one) for one in (of_a, exponents - of_a))
    b *= (1 - 2 * rng.integers(0, 2, shape)) * (rng.integers(0, 4, shape) > 0)
    b[1::4, :-1], b[1::4, -1] = 0, -abs(b[1::4, -1])  # a negative product alone, which may be less than a step
    c = np.ldexp(rng.integers(-(1 << min(digits, 20)), 1 << min(digits, 20), count).astype(float), step)
    c[rng.integers(0, 3, count) == 0] = np.ldexp(-1.0, step - 1)  # a negative sum that becomes zero
    c[1::4] = 0
    if low + low_b > step:  # no product is so small
        a[:] = 0
    zeros, bits = unit.product.accumulator.zeros, min(one.span[0] if has_last_place(one) else 1 for one in unit.numbers)
    least = (-126 if zeros is None else zeros) - (unit.fraction_bits or 0)  # the last place that is kept then
    if unit.fraction_bits and unit.terms > 2 and low + low_b < least - 2 and 0 < step - least <= 2 * bits - 3:
        for row in range(0, count, 2):
            last = least - int(rng.integers(-1, 3))
            half = 1 << max(step - 1 - last, 1)
            # Three halves, seven .. are ties that go up to an even number; four, eight .. are whole steps.
            halves = 4 * int(rng.integers(0, max((1 << 2 * bits - 3) // half, 1))) + int(rng.integers(3, 5))
            x, y, z = _split(half * halves, bits, rng)
            a[row], b[row], c[row] = 0, 0, 0
            a[row, :3], b[row, :3] = np.ldexp([x, z, 1.0], last // 2), np.ldexp([y, 1.0, 1.0], last - last // 2)
    codes = (encode(z.astype(np.float32), one, "nearest") for z, one in zip((a, b), unit.numbers, strict=True))
    return *codes, np.clip(c, -unit.largest, unit.largest).astype(np.float32)


def _split(total: int, digits: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """x, y and z of at most so many bits with x y + z + 1 = total."""
    x = int(rng.integers(min(-(-total >> digits), (1 << digits) - 1), 1 << digits))
    return x, (total - 1) // x, (total - 1) % x
