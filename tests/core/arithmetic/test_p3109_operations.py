"""P3109's operations: all that the report demands are there, and their results are those of its rules in fractions."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from oracle_p3109 import Format, code_of, operation, project

from qcore.arithmetic import p3109

F4, F8 = ["Binary4p2sf"], ["Binary8p4se", "Binary8p3se"]
FX = ["binary32", "binary16", "BFloat16"]
SMALL = F4 + F8
EXTREMA = [
    f"{side}{kind}"
    for side in ("Minimum", "Maximum")
    for kind in ("", "Number", "Magnitude", "MagnitudeNumber", "Finite")
]
QUERIES = [
    f"{name}Of" for name in "Bitwidth Precision Signedness Domain ExponentBitwidth TrailingSignificandBitwidth".split()
]
QUERIES += [f"{name}Of" for name in "ExponentBias MaxFinite MinFinite MinPositive MaxSubnormal MinNormal".split()]
PREDICATES = [f"Is{name}" for name in "Zero One NaN Infinite Finite SignMinus Normal Subnormal".split()]


def demanded():
    """What an implementation must have (4.5)."""
    for name in ("Convert", "Recip"):
        yield from (f"{name}<{a}, {b}>" for a, b in product(SMALL + FX, SMALL + FX))
    for name in ("Negate", "Abs", *PREDICATES, "NextGreaterThan", "NextLessThan", *EXTREMA):
        yield from (f"{name}<{a}>" for a in SMALL)
    for name in ("Less", "LessEqual", "Equal", "Greater", "GreaterEqual"):
        yield from (f"Compare{name}<{a}>" for a in SMALL)
    for name in ("Add", "Subtract", "Multiply"):
        yield from (f"{name}<{a}, {b}, {c}>" for a, b, c in product(SMALL, SMALL, F8 + FX))
    for name in ("FMA", "FAA"):
        yield from (f"{name}<{a}, {b}, {c}, {c}>" for a, b, c in product(SMALL, SMALL, FX))
    for name in QUERIES:
        yield from (f"{name}<{a}>" for a in SMALL + FX)
    for name in ("Add", "Subtract", "Multiply"):
        scaled = product(SMALL, SMALL, F8 + FX)
        yield from (f"Scaled{name}<(Binary8p1uf, {a}), (Binary8p1uf, {b}), {c}>" for a, b, c in scaled)


def test_what_the_report_demands_is_provided():
    texts = [*demanded()]
    provided = [text for text in texts if p3109.is_provided(text)]
    print(f"{len(provided)} of {len(texts)} specializations")
    assert (len(provided), len(set(texts))) == (549, 549)
    assert not p3109.is_provided("ScaledAdd<Binary8p4se>")


def real(x):
    """A number of the oracle as a float, which has all numbers here."""
    return float(x)


FORMATS = [Format(4, 2, True, False), Format(5, 2, True, True), Format(5, 3, False, True), Format(4, 1, True, True)]
MODES = [*product(("NearestTiesToEven", "ToOdd", "TowardPositive"), ("SatNone", "SatFinite", "SatPropagate"))]


@pytest.mark.parametrize("name", ["Add", "Subtract", "Multiply", "Divide"])
def test_arithmetic(name):
    for i, (number, result) in [*enumerate(product(FORMATS, FORMATS))][::3]:
        mode, saturation = MODES[(i + len(name)) % len(MODES)]
        run = p3109.specialization(f"{name}<{number.name}, {number.name}, {result.name}, ({mode}, {saturation})>")
        codes = np.arange(2**number.K, dtype=np.uint8)
        found = run(codes[:, None], codes)
        for (a, x), (b, y) in product(number.numbers.items(), repeat=2):
            expected = code_of(result, project(operation(name, x, y), result, mode, saturation))
            assert found[a, b] == expected, (run, x, y)


def test_functions_where_rules_differ():
    def codes(text, *numbers):
        convert = p3109.specialization("Convert<binary32, Binary8p3se>")
        given = [convert(np.float32([x]).view(np.uint32)) for x in numbers]
        back = p3109.specialization("Convert<Binary8p3se, binary32>")
        return back(p3109.specialization(text)(*given)).view(np.float32)[0]

    one, two = (f"{{}}<{', '.join(['Binary8p3se'] * count)}>".format for count in (2, 3))
    inf = np.inf
    assert all(np.isnan(codes(one(name), 0.0)) for name in ("Recip", "RSqrt"))
    assert codes(one("Log"), 0.0) == -inf
    assert np.isnan(codes(one("TanPi"), 0.5))
    assert all(np.isnan(codes(two("ArcTan2"), *pair)) for pair in ((0, 0), (inf, inf), (-inf, inf)))
    assert [codes(two("ArcTan2"), *pair) for pair in ((-1, -inf), (0, -1), (-1, 0), (-2, inf))] == [3, 3, -1.5, 0]
    assert codes(two("ArcTan2Pi"), -1, -inf) == 1
    assert np.isnan(codes(two("Hypot"), inf, np.nan))
    assert codes(one("Exp"), -inf) == 0
    assert np.signbit(codes(one("Sin"), -0.0)) == 0


def test_choices():
    number = Format(4, 2, True, True)
    codes = np.arange(16, dtype=np.uint8)
    values = [float(x) for x in number.numbers.values()]

    def results(name):
        found = p3109.specialization(f"{name}<{number.name}>")(codes[:, None], codes)
        return {(a, b): values[found[a, b]] for a, b in product(codes.tolist(), repeat=2)}

    for name, first in (("Minimum", min), ("Maximum", max)):
        plain, without, magnitude, finite = (results(name + kind) for kind in ("", "Number", "Magnitude", "Finite"))
        for a, b in product(codes.tolist(), repeat=2):
            x, y = values[a], values[b]
            numbers = [one for one in (x, y) if one == one]
            inside = [one for one in numbers if abs(one) < np.inf]
            if len(numbers) == 2:
                assert plain[a, b] == without[a, b] == first(x, y)
                assert magnitude[a, b] == first(x, y, key=lambda one: (abs(one), one))
            else:
                assert np.isnan(plain[a, b])
                assert np.isnan(magnitude[a, b])
                assert without[a, b] == numbers[0] if numbers else np.isnan(without[a, b])
            right = inside or numbers
            assert finite[a, b] == first(right) if right else np.isnan(finite[a, b])
    clamp = p3109.specialization(f"Clamp<{number.name}>")
    assert [values[i] for i in clamp(codes[[values.index(1.0)]], codes[:1], codes[[values.index(0.5)]])] == [0.5]


def test_order_neighbours_and_classes():
    for number in FORMATS:
        codes = np.arange(2**number.K, dtype=np.uint8)
        values = [float(x) for x in number.numbers.values()]
        order = p3109.specialization(f"TotalOrder<{number.name}>")(codes[:, None], codes)
        ranked = sorted(codes.tolist(), key=lambda code: (values[code] == values[code], values[code]))
        assert all(order[a, b] == (i <= j) for i, a in enumerate(ranked) for j, b in enumerate(ranked))
        after = p3109.specialization(f"NextGreaterThan<{number.name}>")(codes)
        before = p3109.specialization(f"NextLessThan<{number.name}>")(codes)
        for a, b in pairwise(ranked[1:]):
            assert (after[a], before[b]) == (b, a)
        assert after[ranked[-1]] == after[number.nan] == before[ranked[1]] == before[number.nan] == number.nan
        names = p3109.specialization(f"Class<{number.name}>")(codes).tolist()
        normal = p3109.specialization(f"MinNormalOf<{number.name}>")()
        assert names[number.nan] == "ClsNaN"
        assert names[0] == "ClsZero"
        for x, name in zip(values, names, strict=True):
            if x == x and x != 0:
                size = "Infinity" if abs(x) == np.inf else "Normal" if abs(x) >= normal else "Subnormal"
                assert name == f"Cls{'Negative' if x < 0 else 'Positive'}{size}"


def test_queries():
    for number in [*FORMATS, Format(8, 1, False, False)]:
        finite = [x for x in number.numbers.values() if not isinstance(x, str)]
        expected = {
            "BitwidthOf": number.K,
            "PrecisionOf": number.P,
            "SignednessOf": "Signed" if number.signed else "Unsigned",
            "DomainOf": "Extended" if number.extended else "Finite",
            "ExponentBitwidthOf": number.K - number.P + (not number.signed),
            "TrailingSignificandBitwidthOf": number.P - 1,
            "ExponentBiasOf": number.bias,
            "MaxFiniteOf": max(finite),
            "MinFiniteOf": min(finite),
            "MinPositiveOf": min(x for x in finite if x > 0),
            "MinNormalOf": Fraction(2) ** (1 - number.bias),
        }
        for name, right in expected.items():
            assert p3109.specialization(f"{name}<{number.name}>")() == right, (name, number)
    assert p3109.specialization("MaxSubnormalOf<binary16>")() == 2.0**-14 - 2.0**-24
    assert p3109.specialization("MaxFiniteOf<binary32>")() == float(np.finfo(np.float32).max)
    assert np.isnan(p3109.specialization("MaxSubnormalOf<Binary8p1se>")())


def test_external_formats_have_one_nan_and_no_negative_zero():
    negate = p3109.specialization("Multiply<binary16, binary16, binary16>")
    assert negate(np.uint16([0xBC00, 0x8000, 0xFE01]), np.uint16([0, 0x3C00, 0x3C00])).tolist() == [0, 0, 0x7E00]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Add", "allowed is an operation with formats"),
        ("Plus<Binary8p4se>", "allowed operations are Abs, Add"),
        ("Add<Binary8p4se, Binary8p4se>", "has 2 formats; allowed are 3"),
        ("Abs<e4m3fn>", "allowed formats are Binary8p4se"),
        ("Abs<Binary8p4se, (ToOdd, SatNone)>", "rounds nothing"),
        ("Exp<Binary8p4se, Binary8p4se, (Nearest, SatNone)>", "allowed projections are a pair of"),
        ("Minimum<Binary8p4se, Binary8p3se>", "allowed is one format for Minimum"),
    ],
)
def test_wrong_texts(text, message):
    with pytest.raises(ValueError, match=message):
        p3109.specialization(text)
    assert not p3109.is_provided(text)


def test_wrong_arrays():
    with pytest.raises(ValueError, match="Negate has 2 arrays; allowed are 1"):
        p3109.specialization("Negate<Binary8p4se>")(np.uint8([0]), np.uint8([0]))
