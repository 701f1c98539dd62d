"""Properties of formats as the command line shows them."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cli_support import OTHERS

import qcore
from qcore import NAMED, BlockFloatingPoint, BlockScaled, Posit, parse
from qcore.cli import tables
from qcore.cli.properties import Dyadic, properties
from qcore.formats.block import BlockNumber

ELEMENTWISE = [name for name in (*NAMED, *OTHERS, "posit(2,5)") if not isinstance(parse(name), BlockNumber)]


@pytest.mark.parametrize("text", sorted({*ELEMENTWISE} - {"posit32"}))
def test_properties_are_those_of_all_codes(text):
    """The properties come from the fields of a format, what they are compared with from decoding every code."""
    number = parse(text)
    known = properties(number)
    values = qcore.decode(np.arange(1 << number.bits), number, np.float64)
    numbers = values[np.isfinite(values)]
    assert (float(known.largest), float(known.lowest)) == (numbers.max(), numbers.min())
    positive = numbers[numbers > 0]
    assert float(known.smallest or 0) == (positive.min() if len(positive) else 0)
    found = {
        "inf": np.isinf(values).any(),
        "NaR" if isinstance(number, Posit) else "NaN": np.isnan(values).any(),
        "-0": (np.signbit(values) & (values == 0)).any(),
        "no zero": not (values == 0).any(),
        "no sign": not np.signbit(numbers).any(),
    }
    assert known.specials == tuple(name for name, there in found.items() if there)
    assert sum(known.fields) == known.bits
    beyond = qcore.quantize(np.array([2 * float(known.largest) + 1]), number, "nearest")[0]
    assert known.overflow == ("inf" if np.isinf(beyond) else "nan" if np.isnan(beyond) else "saturate")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        *((name, getattr(ml_dtypes, f"float8_{name}")) for name in ("e4m3", "e4m3fn", "e4m3fnuz", "e5m2", "e3m4")),
        ("e2m1fn", ml_dtypes.float4_e2m1fn),
        ("e3m2fn", ml_dtypes.float6_e3m2fn),
    ],
)
def test_properties_are_those_of_ml_dtypes(name, dtype):
    known, info = properties(parse(name)), ml_dtypes.finfo(dtype)
    assert known.min_normal
    assert known.min_subnormal
    assert float(known.largest) == float(info.max)
    assert float(known.min_normal) == float(info.smallest_normal)
    assert float(known.min_subnormal) == float(info.smallest_subnormal)
    assert known.split == f"{info.nexp}, {info.nmant}"


def test_properties_of_blocks_are_those_of_their_elements():
    known, element = properties(parse("mxfp6_e2m3")), properties(parse("e2m3fn"))
    assert known == replace(element, specials=(*element.specials, "2^k per 32"))
    assert properties(BlockScaled("int8", {-2: 16, -1: 16})).specials == ("2^k per {-2: 16, -1: 16}",)
    known = properties(BlockFloatingPoint(5))
    assert (str(known.largest), str(known.lowest), known.smallest, known.specials) == (
        "1.875",
        "-1.875",
        Dyadic(1, -3),
        ("2^k per array",),
    )
    assert properties(BlockFloatingPoint(5, 1)).specials == ("2^k per index of axis 1",)


def test_properties_where_something_is_missing():
    assert properties(parse("e8m0fnu")).min_normal == Dyadic(1, -127)
    for name in ("e8m0fnu", "dlfloat16", "p3109(3,1)"):
        assert properties(parse(name)).min_subnormal is None
    assert properties(parse("p3109(8,8)")).min_normal is None
    assert properties(parse("float(8,7)")).overflow == "saturate, inf on float32"
    assert properties(parse("float(64,3)")).largest.exact == "15 * 2^9223372036854775805"


@pytest.mark.parametrize(
    ("number", "text", "exact"),
    [
        (Dyadic(7, 13), "57344", "7 * 2^13"),
        (Dyadic(0, 5), "0", "0"),
        (Dyadic(-3, -1), "-1.5", "-3 * 2^-1"),
        (Dyadic(12, 0), "12", "3 * 2^2"),
        (Dyadic(-8, 0), "-8", "-2^3"),
        (Dyadic(255, 120), "3.3895e+38", "255 * 2^120"),
        (Dyadic(1, -1074), "2^-1074", "2^-1074"),
        (Dyadic(1, 10**20), f"2^{10**20}", f"2^{10**20}"),
    ],
)
def test_dyadic_numbers_as_text(number, text, exact):
    assert (str(number), number.exact) == (text, exact)


def test_special_values():
    named = {
        name: code for code, (names, _) in tables.special_values(properties(parse("float16"))).items() for name in names
    }
    assert named == {
        "zero": 0,
        "smallest": 1,
        "largest subnormal": 0x3FF,
        "smallest normal": 0x400,
        "below one": 0x3BFF,
        "one": 0x3C00,
        "above one": 0x3C01,
        "largest": 0x7BFF,
        "inf": 0x7C00,
        "NaN": 0x7E00,
        "-0": 0x8000,
        "minus smallest": 0x8001,
        "minus one": 0xBC00,
        "lowest": 0xFBFF,
        "-inf": 0xFC00,
    }
