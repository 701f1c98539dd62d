"""P3109's blocks and scaled operations, beside its rules in fractions; stochastic modes; kappa."""

import math
from fractions import Fraction
from functools import reduce
from itertools import product

import numpy as np
import pytest
from mpmath import mp
from oracle_p3109 import Format, code_of, decode_block, operation, project, project_block
from support import words

from qcore.arithmetic import p3109

SCALES = [Format(8, 1, False, False), Format(5, 3, True, True), Format(4, 2, False, True)]
ELEMENTS = [Format(4, 2, True, False), Format(5, 2, True, True), Format(5, 3, False, True), Format(4, 1, True, True)]
MODES = [*product(("NearestTiesToEven", "ToOdd", "TowardNegative"), ("SatNone", "SatFinite", "SatPropagate"))]
B = 3


def cases(count, step=1):
    """Formats of scales, elements and results, projections, and codes of blocks for each."""
    rng = np.random.default_rng(0)
    for i, (scale, number, result) in [*enumerate(product(SCALES, ELEMENTS, ELEMENTS))][::step]:
        blocks = [(rng.integers(0, 1 << scale.K, count), rng.integers(0, 1 << number.K, (count, B))) for _ in range(2)]
        yield scale, number, result, MODES[i % len(MODES)], blocks


def numbers(number, codes):
    """The oracle's numbers of codes."""
    return [number.numbers[code] for code in codes]


def check(name, count, step):
    for scale, number, result, modes, ((s, x), (t, y)) in cases(count, step):
        pair, rho = f"{scale.name}, {number.name}", f"({', '.join(modes)})"
        scales = np.roll(s, 1)
        if name == "BlockDotProduct":
            found = p3109.specialization(f"{name}<{B}, {pair}, {pair}, {result.name}, {rho}>")(s, x, t, y)
        elif name == "ConvertToBlock":
            text = f"{name}<{B}, {number.name}, {scale.name}, {result.name}, {rho}>"
            found = p3109.specialization(text)(x, scales)[1]
        elif name.startswith("Block") and "Reduce" not in name:
            text = f"{name}<{B}, ({pair}), ({pair}), {scale.name}, {result.name}, {rho}>"
            kept, found = p3109.specialization(text)(s, x, t, y, scales)
            assert numbers(scale, kept.tolist()) == numbers(scale, scales.tolist())
        else:
            found = p3109.specialization(f"{name}<{B}, {pair}, {result.name}, {rho}>")(s, x)
        for i in range(count):
            one = decode_block(scale.numbers[s[i]], numbers(number, x[i]))
            other = decode_block(scale.numbers[t[i]], numbers(number, y[i]))
            of_result = scale.numbers[scales[i]]
            if name == "BlockReduceAdd":
                expected = project(reduce(lambda a, b: operation("Add", a, b), one, Fraction(0)), result, *modes)
            elif name == "BlockReduceMultiply":
                expected = project(reduce(lambda a, b: operation("Multiply", a, b), one, Fraction(1)), result, *modes)
            elif name == "BlockDotProduct":
                terms = [operation("Multiply", a, b) for a, b in zip(one, other, strict=True)]
                expected = project(reduce(lambda a, b: operation("Add", a, b), terms, Fraction(0)), result, *modes)
            elif name == "ConvertFromBlock":
                expected = [project(a, result, *modes) for a in one]
            elif name == "ConvertToBlock":
                expected = project_block(of_result, numbers(number, x[i]), result, *modes)
            else:
                exact = [operation(name.removeprefix("Block"), a, b) for a, b in zip(one, other, strict=True)]
                expected = project_block(of_result, exact, result, *modes)
            expected = (
                [code_of(result, a) for a in expected] if isinstance(expected, list) else code_of(result, expected)
            )
            assert found[i].tolist() == expected, (name, scale, number, result, modes, i)


NAMES = ["BlockReduceAdd", "BlockReduceMultiply", "BlockDotProduct", "ConvertFromBlock", "ConvertToBlock"]
NAMES += [f"Block{name}" for name in ("Add", "Subtract", "Multiply", "Divide")]


@pytest.mark.parametrize("name", NAMES)
def test_blocks(name):
    check(name, 12, 5)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_many_blocks(name):
    check(name, 1000, 1)


def maximum_finite(x, y):
    """MaximumFinite of magnitudes and "nan"."""
    found = [one for one in (x, y) if not isinstance(one, str)] or [one for one in (x, y) if one == "inf"]
    return max(found) if found else "nan"


def test_blocks_by_their_largest_number():
    for scale, number, result, modes, ((_, x), _) in cases(8, 5):
        x[0], x[1] = number.nan, next(iter(number.infinities.values() or [number.nan]))
        rounding = MODES[::-1][len(scale.name + number.name) % len(MODES)]
        rho = ", ".join(f"({', '.join(one)})" for one in (rounding, modes))
        text = f"ConvertToBlockMaxAbsFinite<{B}, {number.name}, {scale.name}, {result.name}, {rho}>"
        scales, elements = p3109.specialization(text)(x)
        for i, row in enumerate(x):
            given = numbers(number, row)
            sizes = [a.strip("-") if isinstance(a, str) else abs(a) for a in given]
            s = project(reduce(maximum_finite, sizes, "nan"), scale, *rounding)
            assert scales[i] == code_of(scale, s), (text, given)
            expected = [code_of(result, a) for a in project_block(s, given, result, *modes)]
            assert elements[i].tolist() == expected, (text, given)


def test_scaled_operations():
    rng = np.random.default_rng(1)
    scale, number, result = SCALES[0], Format(4, 2, True, False), Format(8, 3, True, True)
    s, x, t, y = (rng.integers(0, 1 << one.K, 400) for one in (scale, number) * 2)
    s, t = s // 16 + 120, t // 16 + 120
    for name in ("Add", "Subtract", "Multiply"):
        text = f"Scaled{name}<({scale.name}, {number.name}), ({scale.name}, {number.name}), {result.name}>"
        found = p3109.specialization(text)(s, x, t, y)
        for *codes, code in zip(s, x, t, y, found, strict=True):
            one, other = (decode_block(scale.numbers[a], [number.numbers[b]])[0] for a, b in (codes[:2], codes[2:]))
            exact = operation(name, one, other)
            assert code == code_of(result, project(exact, result, "NearestTiesToEven", "SatNone"))


def test_terms_that_are_far_apart():
    """Sums of 300 bits and products of 80, which float64 has not: a little more than a middle, or than a number."""
    names, rho = "Binary8p1uf, binary16", "(TowardPositive, SatNone)"
    scales, x = np.uint8([128 - 24, 128]), np.float16([[1.0, 2.0**-24, 0], [1.0, 2**-11, 2.0**-24]]).view(np.uint16)
    total = p3109.specialization(f"BlockReduceAdd<3, {names}, BFloat16, {rho}>")(scales, x)
    assert (total.astype(np.uint32) << 16).view(np.float32).tolist() == [2.0**-24 * 1.0078125, 1.0078125]
    far = p3109.specialization(
        f"BlockDotProduct<2, Binary8p1uf, Binary8p1se, Binary8p1uf, Binary8p1se, binary32, {rho}>"
    )
    pair = np.uint8([[126, 1]])  # 2^62 and 2^-63
    ones = np.uint8([[64, 64]])
    assert far(np.uint8([128]), pair, np.uint8([128]), ones).view(np.float32) == np.float32(2.0**62 * (1 + 2.0**-23))
    many = p3109.specialization(f"BlockReduceMultiply<8, {names}, binary32, {rho}>")
    odd = np.full((1, 8), 1.0009765625, np.float16)
    exact = Fraction(1025, 1024) ** 8
    found = Fraction(float(many(np.uint8([128]), odd.view(np.uint16)).view(np.float32)[0]))
    assert found - Fraction(1, 2**23) < exact < found
    hypot = p3109.specialization(
        f"ScaledHypot<(Binary8p1uf, Binary8p1se), (Binary8p1uf, Binary8p1se), binary32, {rho}>"
    )
    found = hypot(np.uint8([128]), np.uint8([64]), np.uint8([1]), np.uint8([1]))  # 1, and 2^-190
    assert found.view(np.float32) == np.float32(1 + 2.0**-23)


def test_functions_of_blocks():
    """Functions in units of a scale that is no power of two, beside mpmath's numbers of 900 bits."""
    scale, number, result = SCALES[1], ELEMENTS[1], Format(8, 4, True, True)
    finite = [code for code, x in scale.numbers.items() if not isinstance(x, str) and x > 0]
    x = np.arange(1 << number.K)
    for name, function, mode in (("Exp", mp.exp, "TowardPositive"), ("ArcTan", mp.atan, "ToOdd")):
        text = f"Block{name}<1, {scale.name}, {number.name}, {scale.name}, {result.name}, ({mode}, SatFinite)>"
        for own, of_result in zip(finite, finite[::-1], strict=True):
            _, found = p3109.specialization(text)(np.array([own]), x[:, None], np.array([of_result]))
            for code, one in zip(found[:, 0], decode_block(scale.numbers[own], numbers(number, x)), strict=True):
                if isinstance(one, str):
                    continue
                with mp.workprec(900):
                    value = function(mp.mpf(one.numerator) / one.denominator)
                exact = Fraction(int(value * 2**1000), 2**1000) / scale.numbers[of_result] if one else None
                exact = Fraction(name == "Exp") / scale.numbers[of_result] if exact is None else exact
                assert code == code_of(result, project(exact, result, mode, "SatFinite")), (text, one)


@pytest.mark.parametrize("mode", ["StochasticA", "StochasticB", "StochasticC"])
def test_stochastic_modes(mode):
    number, result, bits = Format(5, 3, False, True), Format(4, 2, True, True), 3
    text = f"Multiply<{number.name}, {number.name}, {result.name}, ({mode}, SatFinite)>"
    codes = np.arange(1 << number.K)
    found = p3109.specialization(text)(codes[:, None], codes, key=5, random_bits=bits)
    random = words(5, found.shape) >> (32 - bits)
    for (a, x), (b, y) in product(number.numbers.items(), repeat=2):
        exact = project(operation("Multiply", x, y), result, mode, "SatFinite", int(random[a, b]), bits)
        assert found[a, b] == code_of(result, exact)
    with pytest.raises(ValueError, match="needs a key"):
        p3109.specialization(text)(codes, codes)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["FMA", "FAA"])
def test_all_operands_of_fused_operations(name):
    """Binary4p2sf, Binary4p2sf and binary16: their sums are exact in float64, and NumPy's cast rounds these once."""
    run = p3109.specialization(f"{name}<Binary4p2sf, Binary4p2sf, binary16, binary16>")
    small = [float(x) for x in Format(4, 2, True, False).numbers.values()]
    codes = np.arange(1 << 16, dtype=np.uint16)
    addends = codes.view(np.float16).astype(np.float64)
    for a, b in product(range(16), repeat=2):
        with np.errstate(all="ignore"):
            pair = small[a] * small[b] if name == "FMA" else small[a] + small[b]
            expected = (pair + addends).astype(np.float16) + np.float16(0)
        expected = np.where(np.isnan(expected), np.uint16(0x7E00), expected.view(np.uint16))
        found = run(np.array([a]), np.array([b]), codes)
        assert np.array_equal(found, expected), (a, b)


# Precision, exponent of the least number, largest number, and NaN.
EXTERNAL = {
    "binary16": (11, -24, 65504.0, 0x7E00),
    "BFloat16": (8, -133, (2.0**8 - 1) * 2.0**120, 0x7FC0),
    "binary32": (24, -149, (2.0**24 - 1) * 2.0**104, 0x7FC00000),
}
FACTORS = [Format(4, 2, True, False), Format(8, 4, True, True), Format(8, 3, True, True)]


def external(codes, text):
    """The numbers of codes, in float64."""
    if text == "binary16":
        return codes.view(np.float16).astype(np.float64)
    return (codes.astype(np.uint32) << (16 if text == "BFloat16" else 0)).view(np.float32).astype(np.float64)


def external_codes(x, text):
    if text == "binary16":
        return x.astype(np.float16).view(np.uint16)
    bits = x.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if text == "BFloat16" else bits


def to_nearest(a, b, text):
    """The codes of sums of two float64 numbers, rounded once: what float64 loses of a sum decides ties only."""
    precision, least, largest, nan = EXTERNAL[text]
    total = a + b
    of_b = total - a
    lost = (a - (total - of_b)) + (b - of_b)
    exponent = np.maximum(np.frexp(total)[1] - precision, least)
    quanta = np.ldexp(total, -exponent)
    decided = (abs(quanta) % 1 == 0.5) & (abs(lost) > 0)
    quanta = np.where(decided, np.nextafter(quanta, np.copysign(np.inf, lost)), quanta)
    found = np.ldexp(np.rint(quanta), exponent) + 0.0
    found = np.where(abs(found) > largest, np.copysign(np.inf, found), found)
    return np.where(np.isnan(found), nan, external_codes(found, text))


def addends(rng, pair, text):
    """Codes of all kinds, and those of numbers of which the other term is about half a quantum, or a few."""
    precision, least, largest, _ = EXTERNAL[text]
    codes = rng.integers(0, 1 << (32 if text == "binary32" else 16), pair.size)
    codes = codes.astype(np.uint32 if text == "binary32" else np.uint16)
    quantum = np.maximum(np.frexp(pair)[1] + rng.integers(-2, 2, pair.size), least)
    hard = np.ldexp(rng.integers(-(1 << precision), 1 << precision, pair.size).astype(float), quantum)
    is_hard = (abs(hard) <= largest) & (rng.random(pair.size) < 0.5)
    return np.where(is_hard, external_codes(hard, text), codes).astype(codes.dtype)


def check_fused(name, text, count):
    rng = np.random.default_rng(0)
    for one, other in product(FACTORS, repeat=2):
        x, y = (rng.integers(0, 1 << number.K, count) for number in (one, other))
        a, b = (np.array([float(n) for n in f.numbers.values()])[c] for f, c in ((one, x), (other, y)))
        with np.errstate(all="ignore"):
            pair = a * b if name == "FMA" else a + b  # exact
            z = addends(rng, np.where(np.isfinite(pair), pair, 1.0), text)
            expected = to_nearest(pair, external(z, text), text)
        found = p3109.specialization(f"{name}<{one.name}, {other.name}, {text}, {text}>")(x, y, z)
        assert np.array_equal(found, expected), (one, other, np.flatnonzero(found != expected)[:3])


@pytest.mark.parametrize("text", EXTERNAL)
@pytest.mark.parametrize("name", ["FMA", "FAA"])
@pytest.mark.parametrize("count", [1000, pytest.param(200_000, marks=pytest.mark.heavy)])
def test_operands_of_fused_operations(name, text, count):
    """Ten million in all six, of the formats that the report demands."""
    check_fused(name, text, count)


def test_kappa():
    """The report's example (annex D.1): the exponential of small numbers is 0, or the smallest normal number."""
    exact = p3109.specialization("Exp<binary32, Binary8p4se>")

    def flushed(x):
        found = exact(x)
        return np.where(found < 4, 0, np.where(found < 8, 8, found))

    def over(low, high):
        x = np.linspace(math.log(low) + 1e-5, math.log(high) - 1e-5, 500, dtype=np.float32)
        return p3109.kappa(exact, flushed, x.view(np.uint32))

    assert over(2**-11, 9 * 2**-11) == 4
    assert over(9 * 2**-11, 15 * 2**-11) == 3
    assert over(15 * 2**-11, 1) == 0
    negate = p3109.specialization("Negate<Binary8p4se>")
    assert p3109.kappa(negate, negate) == 0
    assert math.isnan(p3109.kappa(negate, lambda x: x * 0))
    assert p3109.kappa(negate, lambda x: np.where(x == 127, 0, negate(x))) == math.inf
    assert p3109.kappa(negate, lambda x: np.where(x == 5, 1, negate(x))) == 6  # over zero


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "BlockAdd<Binary8p1uf, Binary8p4se, Binary8p1uf, Binary8p4se, Binary8p1uf, Binary8p4se>",
            "allowed is a number",
        ),
        ("Add<2, Binary8p4se, Binary8p4se, Binary8p4se>", "allowed is no number of elements"),
        ("ScaledAdd<Binary8p1uf, Binary8p4se, Binary8p4se>", "has 3 formats; allowed are 5"),
        ("ScaledSqrt<(Binary8p4se, binary32), binary32>", "28 bits with scales; allowed are 24"),
        ("ConvertFromBlock<2, Binary10p1ue, Binary8p1uf, binary32>", "allowed are -300 to 300"),
        ("Exp<Binary8p4se, Binary8p4se, (ToOdd, SatNone), (ToOdd, SatNone)>", "has 2 projections; allowed is 1"),
    ],
)
def test_wrong_texts(text, message):
    with pytest.raises(ValueError, match=message):
        p3109.specialization(text)


def test_wrong_arrays():
    reduction = p3109.specialization("BlockReduceAdd<4, Binary8p1uf, Binary8p4se, binary16>")
    with pytest.raises(ValueError, match=r"elements of blocks have shape \(2, 3\); allowed are 4 along the last axis"):
        reduction(np.zeros(2, np.uint8), np.zeros((2, 3), np.uint8))
    text = "ConvertToBlock<1, binary32, Binary8p4se, binary32, (StochasticA, SatNone)>"
    with pytest.raises(ValueError, match="52 bits decide roundings; allowed are 50"):
        p3109.specialization(text)(np.uint32([[1]]), np.uint8([64]), key=1)
