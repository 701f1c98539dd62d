"""Formats as values: printed, QPyTorch's as it prints them, hashable, comparable, frozen, picklable."""

import copy
import pickle
from dataclasses import replace

import pytest

import qcore
import qjax
import qtorch
from qcore import NAMED, BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint, Number, Posit, p3109, parse

EXAMPLES = [
    (FixedPoint(8, 4), "FixedPoint(wl=8, fl=4)", "FixedPoint (wl=8, fl=4)"),
    (
        FixedPoint(wl=8, fl=4, clamp=False),
        "FixedPoint(wl=8, fl=4, clamp=False)",
        "FixedPoint (wl=8, fl=4, clamp=False)",
    ),
    (FloatingPoint(5, 2), "FloatingPoint(exp=5, man=2)", "FloatingPoint (exponent=5, mantissa=2)"),
    (BlockFloatingPoint(8), "BlockFloatingPoint(wl=8)", "BlockFloatingPoint (wl=8, dim=-1)"),
    (BlockFloatingPoint(wl=8, dim=0), "BlockFloatingPoint(wl=8, dim=0)", "BlockFloatingPoint (wl=8, dim=0)"),
    (Posit(16), "Posit(bits=16)", "posit16"),
    (Posit(bits=16, es=1), "Posit(bits=16, es=1)", "posit(16,1)"),
    (
        FloatingPoint(5, 2, 14, False),
        "FloatingPoint(exp=5, man=2, bias=14, subnormals=False)",
        "FloatingPoint (exponent=5, mantissa=2, bias=14, subnormals=False)",
    ),
    (NAMED["e4m3fn"][0], "BinaryFloat(exp=4, man=3, bias=7, specials='fn', overflow='nan')", "e4m3fn"),
    (
        NAMED["e8m0fnu"][0],
        "BinaryFloat(exp=8, man=0, bias=127, specials='fn', subnormals=False, signed=False, overflow='nan')",
        "e8m0fnu",
    ),
]


@pytest.mark.parametrize(("number", "call", "text"), EXAMPLES)
def test_text(number, call, text):
    """`repr` is a call; `str` is QPyTorch's for its classes."""
    assert (repr(number), str(number)) == (call, text)


@pytest.mark.parametrize("number", [number for number, *_ in EXAMPLES], ids=repr)
def test_value_semantics(number):
    twin = pickle.loads(pickle.dumps(number))
    assert twin.text is twin.text  # which is kept, and no part of pickles
    assert pickle.dumps(twin) == pickle.dumps(pickle.loads(pickle.dumps(number)))
    assert twin == number == copy.deepcopy(number)
    assert hash(twin) == hash(number)
    assert isinstance(number, Number)
    assert sum(number == other for other, *_ in EXAMPLES) == 1
    with pytest.raises(AttributeError):
        number.wl = 3


# As commits pickled it that had its class there.
GGUF_BEFORE = (
    b"\x80\x02cqcore.formats.gguf\nGGUF\nq\x00)\x81q\x01}q\x02X\x04\x00\x00\x00typeq\x03X\x04\x00\x00\x00q4_0q\x04sb."
)


def test_pickles_of_classes_that_moved():
    assert pickle.loads(GGUF_BEFORE) == parse("gguf(q4_0)")
    for number, before in (
        (parse("nf4(block=64,nested=256)"), b"qcore.formats.doubled"),
        (parse("affine(-8,7)"), b"qcore.formats.affine"),
    ):
        moved = pickle.dumps(number, 2).replace(type(number).__module__.encode(), before)
        assert before in moved
        assert pickle.loads(moved) == number


@pytest.mark.parametrize("name", NAMED)
def test_named_formats(name):
    number, source = NAMED[name]
    assert pickle.loads(pickle.dumps(number)) == number
    assert hash(number) == hash(copy.deepcopy(number))
    assert source
    assert sum(number == other for other, _ in NAMED.values()) == 1


@pytest.mark.parametrize("kind", [FixedPoint, FloatingPoint, BinaryFloat, BlockFloatingPoint, Posit, p3109])
def test_every_kind_says_where_it_comes_from(kind):
    assert "Source: " in kind.__doc__ or "QPyTorch" in kind.__doc__


def test_all_packages_have_the_same_formats():
    own = {"decode", "encode", "pack", "quantize", "unpack"}
    for name in {*qcore.__all__} - own:
        assert getattr(qcore, name) is getattr(qtorch, name) is getattr(qjax, name)


def test_public_names():
    assert sorted(qcore.__all__) == sorted(set(qcore.__all__))
    quant = {"block_quantize", "fixed_point_quantize", "float_quantize", "quantizer"}
    assert set(qtorch.__all__) == set(qjax.__all__) == {*qcore.__all__, *quant}
    qpytorchs = {"Quantizer", "configurable_table_quantize"}  # qjax.nnx.Quantizer needs flax; the other one's is Table
    assert set(qtorch.quant.__all__) - qpytorchs == set(qjax.quant.__all__)


def test_floats_by_width():
    assert [FloatingPoint(bit=8), FloatingPoint(bit=16)] == [FloatingPoint(5, 2), FloatingPoint(6, 9)]
    assert hash(FloatingPoint(bit=8)) == hash(FloatingPoint(5, 2))
    assert pickle.dumps(FloatingPoint(bit=8)) == pickle.dumps(FloatingPoint(5, 2))
    assert replace(FloatingPoint(bit=8), man=3) == FloatingPoint(5, 3)
    for wrong in ({"bit": 12}, {"bit": 8, "exp": 5, "man": 2}, {"bit": 8, "man": 2}, {"bit": "8"}):
        with pytest.raises(ValueError, match=r"bit=.*allowed are bit=8 and 16, alone"):
            FloatingPoint(**wrong)
    with pytest.raises(TypeError, match="exp=None is a NoneType; allowed is an int from 1 to 64"):
        FloatingPoint()
    with pytest.raises(TypeError, match="man=None is a NoneType"):
        FloatingPoint(5)
