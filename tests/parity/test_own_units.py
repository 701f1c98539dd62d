"""Aligned accumulators by their parameters: named instructions as such, their texts, kernels, and wrong arguments."""

import jax
import numpy as np
import pytest
import torch
from designs_support import cases
from products_support import ACCUMULATORS, KINDS, inputs
from support import assert_same_bits

import qcore
import qjax
import qtorch
from qcore import Accumulator, parse
from qcore.linalg import matmul
from qcore.linalg.designs import DESIGNS, EXACT, FUSED, PAIRS

NAMED = [name for name, one in DESIGNS.items() if not one.block and one.law not in (PAIRS, FUSED, EXACT)]
USUAL = ["volta.mma.f16.f16", "hopper.wgmma.e4m3", "blackwell.mma.e4m3_e5m2", "cdna3.mfma.bf16", "cdna3.mfma.fp8"]
NEW = [*ACCUMULATORS][[*ACCUMULATORS].index("aligned as chips") :]


def usually(names, usual):
    return [pytest.param(name, marks=[] if name in usual else pytest.mark.heavy) for name in names]


@pytest.mark.parametrize("name", usually(NAMED, USUAL))
def test_a_named_machine_is_an_accumulator_with_parameters(name):
    design, own = DESIGNS[name], Accumulator.of(name).own
    assert own.design is None
    assert own.instruction is None
    a, b, c = cases(np.random.default_rng(6), name, 8, design.step + 3, 9)
    if "tf32" in design.operands:  # whose low bits the instruction does not read
        a, b = (qcore.quantize(x, "tf32", "toward_zero") for x in (a, b))
    c = np.float32(np.float16(c)) if design.number == "float16" else c
    operands = tuple(None if text == "tf32" else text for text in design.operands)
    found = matmul(a, b, c, operands=operands, accumulator=own)
    expected = matmul(a, b, c, accumulator=name)
    assert_same_bits(*(np.where(np.isnan(x), np.float32(np.nan), x) for x in (found, expected)))


def test_parts_that_are_no_parameters():
    for name in ("blackwell.tcgen05.nvf4", "cdna2.mfma.f16"):
        with pytest.raises(ValueError, match=f"design={name} has parts that are no parameters"):
            _ = Accumulator.of(name).own
    assert Accumulator(chunk=3).own == Accumulator(chunk=3)


@pytest.mark.parametrize("accumulator", [*map(ACCUMULATORS.get, NEW), *(Accumulator.of(x).own for x in USUAL)], ids=str)
def test_texts(accumulator):
    assert parse(accumulator.text) == accumulator
    assert eval(repr(accumulator), vars(qcore)) == accumulator
    assert parse(parse(accumulator.text).text).text == accumulator.text


@pytest.mark.parametrize(
    "name",
    usually(NEW, [name for name in NEW if name not in ("products alone", "aligned in sets", "aligned downward")]),
)
def test_kernels(name):
    """NumPy's bits on inputs of all kinds side by side, with an addend and without."""
    pairs = [inputs(kind, 2, 33, 3) for kind in KINDS]
    a, b = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs], axis=1)
    c, accumulator = np.tile(inputs("special", 7, 7, 7)[0], (2, 3)), ACCUMULATORS[name]
    for addend in (None, c):
        given = None if addend is None else torch.from_numpy(addend)
        found = qtorch.linalg.matmul(torch.from_numpy(a), torch.from_numpy(b), given, accumulator=accumulator)
        assert_same_bits(found, matmul(a, b, addend, accumulator=accumulator))


def test_jax():
    a, b = inputs("special", 4, 19, 5)
    for name in ("aligned in sets", "addend late"):
        accumulator = ACCUMULATORS[name]
        found = jax.jit(lambda a, b: qjax.linalg.matmul(a, b, accumulator=accumulator))(a, b)  # noqa: B023
        assert_same_bits(found, matmul(a, b, accumulator=accumulator))


def test_an_output_in_text():
    """`output=` is what the constructor takes; the accumulator's text has it as its rounding."""
    found = parse("accumulator(float16,chunk=4,fraction_bits=23,output=toward_zero)")
    assert found == Accumulator("float16", chunk=4, fraction_bits=23, output="toward_zero")
    assert found.text == "accumulator(float16,chunk=4,rounding=toward_zero,fraction_bits=23)"


ALIGNED = {"chunk": 4, "fraction_bits": 9}
WRONG = [
    ({"subnormals": "flush"}, "subnormals='flush'; allowed are normalized, least"),
    ({"subnormals": "least", "number": "fixed(8,4)"}, "subnormals=least with fixed(8,4); allowed are floating point"),
    ({"zeros": 1.5}, "zeros=1.5 is a float; allowed is an int from -1000 to 1000"),
    ({"cut": "up"}, "cut='up'; allowed are toward_zero, down"),
    ({"align": "both"}, "align='both'; allowed are all, products, twice"),
    ({"sum_bits": 12}, "sum_bits=12 with align=all; allowed is it with align=twice"),
    ({"sum_cut": "down"}, "sum_cut=down with align=all; allowed is it with align=twice"),
    ({"align": "twice", "sum_bits": 60}, "sum_bits=60; allowed is an int from 1 to 48"),
    ({"sets": 2}, "sets=2 with align=all; allowed is it with align=twice"),
    ({"sets": 2, "align": "twice", "chunk": 3}, "chunk=3 with sets=2; allowed is an even number"),
    ({"overflow": "nan"}, "overflow='nan'; allowed are inf"),
    ({"overflow": "inf", "number": "e4m3fn"}, "overflow=inf with e4m3fn; allowed are formats with infinities"),
    ({"positive_zero": 1}, "positive_zero=1 is a int"),
    ({"order": (0, 2)}, "order=(0, 2); allowed is a permutation of the numbers 0 to n - 1"),
    ({"order": (1, 0, 2)}, "order has 3 places with chunk=4; allowed is a multiple or divisor"),
    ({"fraction_bits": None, "zeros": -133}, "zeros=-133 without fraction_bits; allowed is None"),
    ({"fraction_bits": None, "align": "twice"}, "align=twice without fraction_bits; allowed is all"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_arguments(arguments, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        Accumulator(**ALIGNED | arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words", "at"),
    [
        ("accumulator(chunk=4,output=toward_zero)", "output='toward_zero' without fraction_bits", "toward_zero"),
        ("accumulator(chunk=4,zeros=-133)", "zeros=-133 without fraction_bits; allowed is None", "-133"),
        ("accumulator(chunk=4,fraction_bits=99)", "fraction_bits=99; allowed is an int from 1 to 40", "99"),
        ("accumulator(chunk=4,fraction_bits=9,cut=up)", "allowed here is toward_zero or down", "up"),
        ("accumulator(chunk=4,fraction_bits=9,order=[0.5])", "allowed here are whole numbers", "[0.5]"),
        ("accumulator(chunk=4,fraction_bits=9,bits=3)", "allowed here are number, rounding", "bits=3"),
    ],
)
def test_wrong_texts_show_the_parameter(text, words, at):
    with pytest.raises(ValueError, match="allowed") as caught:
        parse(text)
    message = str(caught.value)
    assert words in message
    _, line, mark = message.splitlines()
    assert line[mark.index("^") :].startswith(at)


def test_operands_without_a_least_exponent():
    with pytest.raises(ValueError, match=r"first is operand\(int8\) with subnormals=least; allowed are floating point"):
        qcore.Product("int8", "e4m3fn", Accumulator(**ALIGNED, subnormals="least"))
