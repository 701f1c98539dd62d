"""The text form of formats: what is written is read as the same format, and errors point at the place."""

from dataclasses import replace
from itertools import product

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from support import assert_same_bits, to_torch

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import BLOCKS, FORMATS, MORE
from qcore import (
    NAMED,
    NVFP4,
    BinaryFloat,
    BlockFloatingPoint,
    BlockScaled,
    FixedPoint,
    FloatingPoint,
    Number,
    Posit,
    Quantization,
    p3109,
    parse,
)
from qcore.affine.integers import FORMS, INT8, AffineInteger
from qcore.formats.block import RULES
from qcore.formats.floating import SPECIALS
from qcore.formats.number import check_number
from qcore.formats.text import MOST_NESTED

WRITTEN = {
    "float(5,3)": FloatingPoint(5, 3),
    "float(5,2,bias=3,subnormals=False)": FloatingPoint(5, 2, 3, False),
    "fixed(8,4)": FixedPoint(8, 4),
    "fixed(8,-4,clamp=False,symmetric=True)": FixedPoint(8, -4, False, True),
    "fixed(8,4,signed=False,wrap=True)": FixedPoint(8, 4, signed=False, wrap=True),
    "e4m3fn:saturate": BinaryFloat(4, 3, specials="fn", overflow="saturate"),
    "e5m2:nan": BinaryFloat(5, 2, overflow="nan"),
    "binary(4,4,overflow=nan)": BinaryFloat(4, 4, overflow="nan"),
    "int8:wrap": FixedPoint(8, 0, wrap=True),
    "binary(5,2,bias=-3,specials=finite,subnormals=False,signed=False)": BinaryFloat(5, 2, -3, "finite", False, False),
    "posit(16,1)": Posit(16, 1),
    "posit(6)": Posit(6),
    "p3109(8,4)": p3109(8, 4),
    "p3109(8,4,signed=False,extended=False)": p3109(8, 4, False, False),
    "binary(4,3,bias=8,specials=p3109,overflow=saturate)": replace(p3109(8, 4), overflow="saturate"),
    "block(8,dim=-1)": BlockFloatingPoint(8),
    "block(8,dim=0)": BlockFloatingPoint(8, 0),
    "scaled(e4m3fn,{-1:64})": BlockScaled("e4m3fn", {-1: 64}),
    "scaled(e4m3fn,{-2:128,-1:128},rule=rceil)": BlockScaled("e4m3fn", {-1: 128, -2: 128}, "rceil"),
    "scaled(fixed(6,4,symmetric=True),{0:1,...:None})": BlockScaled(FixedPoint(6, 4, True, True), {0: 1, ...: None}),
    "scaled(p3109(6,3),{})": BlockScaled(p3109(6, 3), {...: 1}),
    "nvfp4({-2:16,-1:16})": NVFP4({-2: 16, -1: 16}),
    "affine(-128,127)": INT8,
    "affine(0,255,middle=128)": AffineInteger.of_width(8, signed=False),
    "affine(0,127,signed=True)": AffineInteger(0, 127, True),
    "e4m3fn": BinaryFloat(4, 3, specials="fn"),
    "float(5,2)": parse("qpytorch8"),
    "float(6,9)": FloatingPoint(bit=16),
    "int8": FixedPoint(8, 0),
    "mxfp4": BlockScaled("e2m1fn", {-1: 32}),
    "nvfp4": NVFP4(),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_written_and_read(text):
    assert WRITTEN[text].text == text
    assert parse(text) == WRITTEN[text]


def test_named_formats_are_written_as_their_names():
    others = {"qpytorch8": "float(5,2)", "qpytorch16": "float(6,9)"}
    for name, (number, _) in NAMED.items():
        assert parse(name) == number
        assert number.text == others.get(name, name)


def test_qpytorchs_classes_are_read_as_they_are_printed():
    for text in ("FixedPoint (wl=8, fl=4, symmetric=True)", "FloatingPoint (exponent=5, mantissa=2)"):
        assert str(parse(text)) == text
    assert parse(str(BlockFloatingPoint(8))) == BlockFloatingPoint(8)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" float ( 5 , man = 2 ) ", FloatingPoint(5, 2)),
        ("fixed(fl=4,wl=8)", FixedPoint(8, 4)),
        ("fixed(+8,04,True,False)", FixedPoint(8, 4)),
        ("block(8)", BlockFloatingPoint(8)),
        ("nvfp4()", NVFP4()),
        ("scaled( e4m3fn, {-1: 32}, floor )", NAMED["mxfp8_e4m3"][0]),
        ("scaled(binary(4,3,specials=fn,overflow=saturate),{-1:32,0:1})", BlockScaled("e4m3fn", {-1: 32, 0: 1})),
        ("p3109(bits=8,precision=3)", p3109(8, 3)),
        ("binary(4,3,specials=fn,overflow=saturate)", BinaryFloat(4, 3, specials="fn", overflow="saturate")),
        ("binary(4,3,specials=fn) : saturate", BinaryFloat(4, 3, specials="fn", overflow="saturate")),
        ("E4M3FN:saturate", BinaryFloat(4, 3, specials="fn", overflow="saturate")),
        ("scaled(e4m3fn:nan,{-1:32})", NAMED["mxfp8_e4m3"][0]),  # elements saturate anyway
        ("fixed(8,4):wrap", FixedPoint(8, 4, wrap=True)),
        ("float(5,2):saturate", FloatingPoint(5, 2)),
        ("bf16", NAMED["bfloat16"][0]),
        ("fp16", NAMED["float16"][0]),
        ("fp4", NAMED["e2m1fn"][0]),
        ("float32", BinaryFloat(8, 23)),
        ("float8_e4m3fn", NAMED["e4m3fn"][0]),
        ("int3", FixedPoint(3, 0)),
        ("uint7", FixedPoint(7, 0, signed=False)),
    ],
)
def test_other_spellings(text, number):
    assert parse(text) == number


# Round trips


@st.composite
def made(draw, make, *arguments):
    """A format of drawn arguments that its class accepts."""
    try:
        return make(*map(draw, arguments))
    except ValueError:
        reject()


FLAGS, INTS = st.booleans(), st.integers(-4096, 4096)
FIXED = made(FixedPoint, st.integers(1, 99), INTS, FLAGS, FLAGS, FLAGS, FLAGS)
FLOATING = made(FloatingPoint, st.integers(1, 64), st.integers(0, 52), st.none() | INTS, FLAGS)
POLICIES = st.sampled_from([None, "saturate", "inf", "nan"])
BIASES = st.none() | st.integers(-20, 20) | INTS
BINARY = made(
    BinaryFloat, st.integers(0, 31), st.integers(0, 52), BIASES, st.sampled_from(SPECIALS), FLAGS, FLAGS, POLICIES
)
P3109 = made(p3109, st.integers(2, 16), st.integers(1, 16), FLAGS, FLAGS)
ELEMENTS = FIXED | FLOATING | BINARY | P3109
TILES = st.dictionaries(st.integers(-9, 9) | st.just(...), st.none() | st.integers(1, 2**40), max_size=4)
NUMBERS = st.one_of(
    ELEMENTS,
    made(Posit, st.integers(2, 32), st.integers(0, 64)),
    made(BlockFloatingPoint, st.integers(2, 25), st.integers(-1, 63)),
    made(BlockScaled, ELEMENTS, TILES, st.sampled_from(list(RULES))),
    made(NVFP4, TILES),
)


@st.composite
def ranges(draw):
    """Affine integers of drawn ends, all of them allowed."""
    qmin, qmax = draw(st.integers(-(2**15), 0)), draw(st.integers(1, 2**15 - 1))
    signed = draw(st.none() | (st.just(True) if qmin < 0 else FLAGS))
    return AffineInteger(qmin, qmax, signed, draw(st.none() | st.integers(qmin, qmax)))


@given(NUMBERS)
def test_every_format_is_read_as_it_is_written(number):
    assert parse(number.text) == parse(str(number)) == number == check_number(number.text)
    assert parse(number.text).text == number.text
    assert " " not in number.text


@given(ranges())
def test_affine_integers_are_read_as_they_are_written(form):
    assert parse(form.text) == parse(str(form)) == form


def test_all_p3109_formats():
    for bits, signed, extended in product(range(3, 17), (True, False), (True, False)):
        for precision in range(1, bits + 1):
            number = p3109(bits, precision, signed, extended)
            assert parse(number.text) == number
            assert number.text.startswith(f"p3109({bits},{precision}")


def test_different_formats_have_different_texts():
    numbers = {*FORMATS, *MORE, *BLOCKS, *WRITTEN.values(), *FORMS.values(), *(number for number, _ in NAMED.values())}
    for exp, man, bias, specials, subnormals, signed, overflow in product(
        (2, 4), (1, 3), (None, 5), SPECIALS, (True, False), (True, False), ("saturate", "inf", "nan")
    ):
        try:
            numbers.add(BinaryFloat(exp, man, bias, specials, subnormals, signed, overflow))
        except ValueError:
            continue
    numbers |= {FixedPoint(8, 4, *flags) for flags in product((True, False), (False,), (True, False), (True, False))}
    assert len({number.text for number in numbers}) == len(numbers) > 250


# Errors


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", 0, "allowed here are float(exp,man), fixed(wl,fl)"),
        ("e9m9", 0, "the names float16,"),
        ("float:5,2", 0, "allowed here are float(exp,man)"),
        ("float", 0, "allowed here are"),
        ("e4m3fn(3)", 0, "allowed here are"),
        ("e4m3fn,", 6, "allowed here is the end"),
        ("float(5,2) x", 11, "allowed here is the end"),
        ("float(5", 7, "allowed here is , or )"),
        ("float(5)", 7, "missing here is man"),
        ("float()", 6, "missing here is exp"),
        ("float(5,x)", 8, "allowed here is an int"),
        ("float(5,2.5)", 8, "allowed here is an int"),
        ("float(5,2,)", 10, "allowed here is an int"),
        ("float(5,2,bia=3)", 10, "allowed here are bias, subnormals"),
        ("float(5,exp=3)", 8, "allowed here are man, bias, subnormals"),
        ("float(exp=5,2)", 12, "allowed here are man, bias, subnormals"),
        ("float(5,2,3,True,1)", 17, "allowed here is )"),
        ("fixed(8,4,wrap=1)", 15, "allowed here is False or True"),
        ("binary(4,3,specials=fm)", 20, "allowed here is ieee or fn or fnuz"),
        ("binary(4,3,specials=fn,overflow=inf)", 32, "overflow='inf'; allowed are nan, saturate"),
        ("fixed(0,4)", 6, "wl=0; allowed is an int from 1 to 4096"),
        ("p3109(8, 9)", 9, "precision=9; allowed is an int from 1 to 8"),
        ("float(5,2,bias=10000000000)", 15, "bias=10000000000; allowed is an int from -4096 to 4096"),
        ("fixed(10000000000,4)", 6, "wl=10000000000; allowed is an int from 1 to 4096"),
        ("fixed(8,-4097)", 8, "fl=-4097; allowed is an int from -4096 to 4096"),
        ("posit(8,65)", 8, "es=65; allowed is an int from 0 to 64"),
        ("block(8,dim=64)", 12, "dim=64; allowed is an int from -1 to 63"),
        ("scaled(e4m3fn,{-1:99999999999999})", 14, "block[-1]=99999999999999; allowed is an int from 1 to"),
        ("scaled(e4m3fn,{99:1})", 14, "block's axis=99; allowed is an int from -64 to 63"),
        ("scaled(float(16,4),{-1:32})", 7, "allowed are exponents from -32768 to 32768"),
        ("accumulator(chunk=99999999999999)", 18, "chunk=99999999999999; allowed is an int from 1 to"),
        ("scale(history=99999999)", 14, "history=99999999; allowed is an int from 1 to"),
        ("e4m3fn:", 7, "allowed here is saturate or propagate or inf or nan or wrap"),
        ("e4m3fn:inf", 7, "overflow='inf'; allowed are nan, saturate"),
        ("float(5,2):nan", 11, "overflow='nan'; allowed are saturate"),
        ("affine(-8,7):nan", 13, "allowed after affine(-8,7) is no overflow policy"),
        ("fp8", 0, "fp8 may mean e4m3fn or e4m3fnuz (AMD CDNA 3) or e5m2; allowed here are"),
        ("mxfp8", 0, "mxfp8 may mean mxfp8_e4m3 (OCP) or mxfp8_e5m2 (OCP); allowed here are"),
        ("e4m3fm", 0, "e4m3fm may mean e4m3fn or"),
        ("scaled(posit8,{-1:32})", 7, "element=Posit(bits=8); allowed are a FixedPoint"),
        ("scaled(mxfp4,{-1:32})", 7, "element=BlockScaled"),
        ("scaled(scaled(e4m3fn,{-1:32}),{-1:32})", 7, "allowed here are float(exp,man), fixed(wl,fl), binary(exp,man)"),
        ("scaled(float(5,x),{-1:32})", 15, "allowed here is an int"),
        ("scaled(e4m3fn)", 13, "missing here is block"),
        ("scaled(e4m3fn,-1:32)", 14, "allowed here is {"),
        ("scaled(e4m3fn,{-1:0})", 14, "block[-1]=0; allowed is an int from 1 to"),
        ("scaled(e4m3fn,{-1:32,-1:16})", 21, "allowed is each axis once"),
        ("scaled(e4m3fn,{-1 32})", 18, "allowed here is :"),
        ("nvfp4({-1:16)", 12, "allowed here is , or }"),
        ("nvfp4({x:16})", 7, "allowed here is an int"),
        ("affine(1,2)", 7, "qmin=1; allowed is an int from"),
        ("float(5,\n2", 10, "allowed here is , or )"),
        ("__import__('os')", 0, "allowed here are"),
    ],
)
def test_errors_point_at_the_place(text, place, message):
    with pytest.raises(ValueError, match=r"^text=") as caught:
        parse(text)
    first, line, caret = str(caught.value).split("\n")
    assert first.startswith(f"text={text!r}: ")
    assert message in first
    assert line == "    " + text.replace("\n", " ")
    assert caret == " " * (4 + place) + "^"


@pytest.mark.parametrize("wrong", [None, 5, b"e4m3fn", FloatingPoint(5, 2)])
def test_what_is_no_text(wrong):
    with pytest.raises(TypeError, match=r"text=.* is a .*; allowed is a str such as 'float\(5,2\)'"):
        parse(wrong)


def test_a_class_without_a_text():
    class Other(Number):
        def reduce(self, carrier):
            raise NotImplementedError

    with pytest.raises(TypeError, match="has no text; allowed are FloatingPoint, FixedPoint"):
        _ = Other().text


# At the public edge

TEXTS = [
    "float(5,2)",
    "fixed(8,4,symmetric=True)",
    "p3109(8,4)",
    "posit(16,1)",
    "block(8,dim=-1)",
    "nvfp4({-2:2,-1:4})",
]
X = np.float32([[0.3, -1.7, 40, 5e-3], [7, 0, -0.25, 1e9]])


@pytest.mark.parametrize("text", TEXTS)
def test_every_package_takes_texts(text):
    expected = qcore.quantize(X, parse(text), "nearest")
    for result in (
        qcore.quantize(X, text, "nearest"),
        qtorch.quantize(to_torch(X), text, "nearest").numpy(),
        np.asarray(qjax.quantize(jnp.asarray(X), text, "nearest")),
    ):
        assert_same_bits(result, expected)


@pytest.mark.parametrize("package", [qcore, qtorch, qjax])
def test_wrong_texts_at_the_edge(package):
    x = {qcore: X, qtorch: to_torch(X), qjax: jnp.asarray(X)}[package]
    with pytest.raises(ValueError, match=r"^number='float\(5,x\)': allowed here is an int\n"):
        package.quantize(x, "float(5,x)", "nearest")
    with pytest.raises(ValueError, match=r"^number='affine\(-8,7\)': allowed here are float"):
        package.quantize(x, "affine(-8,7)", "nearest")


def test_elements_and_rules_take_texts():
    assert BlockScaled("float(4,3)", {-1: 32}) == BlockScaled(FloatingPoint(4, 3), {-1: 32})
    assert Quantization("fixed(8,4)").forward_number == FixedPoint(8, 4)
    assert qcore.Rule(weight_number="block(8)").weight_number == BlockFloatingPoint(8)
    with pytest.raises(ValueError, match=r"forward_number='fixed\(8\)': missing here is fl"):
        Quantization("fixed(8)")
    assert Quantization("e4m3fn", "e5m2", overflow="saturate") == Quantization("e4m3fn:saturate", "e5m2:saturate")


@pytest.mark.parametrize("overflow", ["saturat", 3])
def test_overflow_of_a_quantization_is_checked(overflow):
    with pytest.raises((TypeError, ValueError), match="overflow="):
        Quantization(overflow=overflow)


@pytest.mark.parametrize("text", ["float(4,2)", "scaled(e4m3fn,{-1:2})"])
def test_texts_in_programs_of_torch(text):
    compiled = torch.compile(lambda x: qtorch.quantize(x, text, "nearest"), fullgraph=True, backend="eager")
    assert torch.equal(compiled(to_torch(X)), qtorch.quantize(to_torch(X), text, "nearest"))


DTYPES = [torch.float8_e4m3fn, jnp.float8_e4m3fn, ml_dtypes.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_package_takes_dtypes(dtype):
    expected = qcore.quantize(X, "e4m3fn")
    assert_same_bits(qcore.quantize(X, dtype), expected)
    assert_same_bits(qtorch.quantize(to_torch(X), dtype).numpy(), expected)
    assert_same_bits(np.asarray(qjax.quantize(jnp.asarray(X), dtype)), expected)


@pytest.mark.parametrize("dtype", [float, torch.bool, np.complex64, torch.complex64, jnp.bool_])
def test_dtypes_without_a_format(dtype):
    with pytest.raises((TypeError, ValueError), match=r"^number="):
        qcore.quantize(X, dtype)


def test_long_texts_are_quoted_in_part():
    for text, problem in (
        ("posit(" + "9" * 5000 + ")", "allowed here is , or )"),
        ("accumulator(inner=" * 400 + "accumulator()" + ")" * 400, "allowed are 24 kinds inside each other"),
    ):
        with pytest.raises(ValueError, match=r"^text=") as caught:
            parse(text)
        first, line, caret = str(caught.value).split("\n")
        assert problem in first
        assert len(first) < 300
        assert len(line) <= 204
        assert len(caret) <= 105


def test_accumulators_inside_each_other_have_a_bound():
    found = parse("accumulator(chunk=1)")
    for _ in range(MOST_NESTED):
        found = replace(found, inner=found)
    with pytest.raises(ValueError, match="inner has 25 accumulators inside each other; allowed are 24"):
        replace(found, inner=found)


@pytest.mark.parametrize("make", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, float])
def test_numbers_are_arrays_without_dimensions(make):
    array = np.asarray(make(0.3))
    assert_same_bits(qcore.quantize(make(0.3), "e5m2"), qcore.quantize(array, "e5m2"))
    assert qcore.encode(make(0.3), "e5m2") == qcore.encode(array, "e5m2") == 53


def test_a_class_of_the_result():
    assert parse("mxfp4", BlockScaled) == parse("mxfp4") == parse("mxfp4", Number)
    for text, kind in (("e5m2", BlockScaled), ("affine(-8,7)", Number)):
        with pytest.raises(ValueError, match=f"allowed is the text of a {kind.__name__}$"):
            parse(text, kind)
    with pytest.raises(TypeError, match=r"^kind is a str; allowed is a class$"):
        parse("e5m2", "float")
