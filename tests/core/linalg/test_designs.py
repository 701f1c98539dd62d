"""Designs by name: the oracle's bits, Fasi et al.'s checks, all pairs of FP4 numbers, and wrong names and operands."""

import numpy as np
import oracle_designs
import pytest
from designs_support import cases, scales_of
from support import assert_same_bits, bits

import qcore
from benchmarks.published import fasi_checks
from qcore import Accumulator, Operand, Product, Scale, parse
from qcore.linalg import matmul
from qcore.linalg.designs import DESIGNS, least_exponent
from qcore.linalg.law import Sums, multiply
from qcore.linalg.namespace import Float64


def by_law(name, a, b, c, scales):
    """The library's law of elements and scales that are given, without rounding of operands."""
    least = tuple(least_exponent(parse(text)) for text in DESIGNS[name].operands)
    with np.errstate(all="ignore"):
        found = multiply(Float64(), a, b, Sums(Accumulator.of(name), False, least=least), scales, c).astype(np.float32)
    found.view(np.uint32)[np.isnan(found)] = DESIGNS[name].nan
    return found


USUAL = [name for name in DESIGNS if name.startswith("cdna")]
USUAL += ["volta.mma.f16", "volta.mma.f16.f16", "ampere.mma.tf32", "ada.mma.e4m3", "hopper.wgmma.e4m3_e5m2"]
USUAL += ["blackwell.tcgen05.e5m2_e2m1", "blackwell.tcgen05.mxe4m3_mxe2m1", "blackwell.tcgen05.mxf4"]
USUAL += ["blackwell.tcgen05.nvf4", "hopper.mma.bf16", "hopper.mma.e4m3_e5m2", "blackwell.mma.e5m2.f16"]


def usually(names, usual):
    return [pytest.param(name, marks=[] if name in usual else pytest.mark.heavy) for name in names]


@pytest.mark.parametrize("name", usually(DESIGNS, USUAL))
def test_the_oracle(name):
    """Two steps and a part of a third."""
    design, rng = DESIGNS[name], np.random.default_rng(sum(map(ord, name)))
    terms = 2 * design.step + (3 * design.step + 3) // 4
    a, b, c = cases(rng, name, 4, terms, 4)
    if not design.block:
        assert_same_bits(matmul(a, b, c, accumulator=name), oracle_designs.matmul(name, a, b, c))
        return
    of_a, of_b = (
        scales_of(rng, design.scale, (4, terms // design.block)),
        scales_of(rng, design.scale, (terms // design.block, 4)),
    )
    terms = terms // design.block * design.block
    a, b = a[:, :terms], b[:terms]
    least = 2.0**-127 if design.scale == "e8m0" else 0.0
    missing = -(terms // design.block) % (design.step // design.block)
    whole = (
        np.pad(of_a, [(0, 0), (0, missing)], constant_values=least),
        np.pad(of_b, [(0, missing), (0, 0)], constant_values=least),
    )
    assert_same_bits(by_law(name, a, b, c, (of_a, of_b)), oracle_designs.matmul(name, a, b, c, whole))


def test_fasi():
    """The 17 checks of a V100."""
    found = fasi_checks()
    assert len(found) == 17
    assert [name for name, passed in found.items() if not passed] == []


FP4 = [name for name, one in DESIGNS.items() if one.operands == ("e2m1fn", "e2m1fn")]


@pytest.mark.parametrize("name", usually(FP4, ["blackwell.tcgen05.nvf4"]))
def test_all_pairs_of_fp4_numbers(name):
    """Each product of two E2M1 numbers alone, beside 1, and beside the smallest ones of float32."""
    design = DESIGNS[name]
    numbers = qcore.decode(np.arange(16, dtype=np.uint8), "e2m1fn")
    for addend in (0.0, 1.0, -(2.0**-149), 2.0**127):
        c = np.full((16, 16), addend, np.float32)
        if design.number == "float16":
            c = np.float32(np.float16(np.clip(c, -60000, 60000)))
        if not design.block:
            found = matmul(numbers[:, None], numbers[None], c, accumulator=name)
            assert_same_bits(found, oracle_designs.matmul(name, numbers[:, None], numbers[None], c))
            continue
        ones = np.ones((16, design.block), np.float32)
        a, b = (numbers[:, None] * (np.arange(design.block) == 5) for _ in range(2))
        count = design.step // design.block
        scale = np.ones((16, 1), np.float32) * np.float32(2)
        padded = np.pad(scale, [(0, 0), (0, count - 1)], constant_values=2.0**-127 if design.scale == "e8m0" else 0)
        found = by_law(name, np.float32(a), np.float32(b.T), c, (scale, scale.T))
        assert_same_bits(
            found, oracle_designs.matmul(name, np.float32(a * ones), np.float32(b.T), c, (padded, padded.T))
        )


def test_zeros_have_an_exponent():
    """0 * 2^127 in bfloat16 does not count as a term of exponent 1, which would cut off 1.5 * 2^-40."""
    a, b = np.float32([[0, 2.0**-20]]), np.float32([[2.0**127], [1.5 * 2.0**-20]])
    assert matmul(a, b, accumulator="ampere.mma.bf16") == 1.5 * 2.0**-40


@pytest.mark.parametrize(("name", "lost"), [("ampere.mma.bf16", -157), ("hopper.wgmma.bf16", -159)])
def test_zeros_cut_off_tiny_terms(name, lost):
    """Beside an accumulator that is zero, 2^-149 - 2^n and 2^n are 2^-149 if n is above 2^(exponent of zero - bits)."""
    for n, factors, expected in ((lost + 1, {-156: (127, 1), -158: (7, 73)}, 2.0**-149), (lost, None, 0.0)):
        count = 2 ** (-149 - n) - 1  # of 2^n, as a product of two bfloat16 numbers
        first, second = (factors or {-157: (15, 17), -159: (31, 33)})[n]
        assert first * second == count
        a = np.float32([[first * 2.0**-80, 2.0**-80]])
        b = np.float32([[second * 2.0 ** (n + 80)], [2.0 ** (n + 80)]])
        assert float(matmul(a, b, accumulator=name)[0, 0]) == expected


def test_nan_has_the_pattern_of_the_machine():
    a = np.full((1, 4), np.nan, np.float32)
    for name, pattern in (
        ("hopper.wgmma.f16", 0x7FFFFFFF),
        ("volta.mma.f16.f16", 0x7FFFE000),
        ("cdna3.mfma.f16", 0x7FC00000),
    ):
        assert bits(matmul(a, a.T, accumulator=name)) == pattern


def test_a_sum_over_two_calls_has_the_bits_of_one():
    for name in ("hopper.wgmma.e4m3", "volta.mma.f16.f16", "cdna1.mfma.f16", "cdna3.mfma.fp8"):
        a, b, c = cases(np.random.default_rng(3), name, 3, 96, 3)
        first = matmul(a[:, :32], b[:32], c, accumulator=name)
        assert_same_bits(matmul(a[:, 32:], b[32:], first, accumulator=name), matmul(a, b, c, accumulator=name))


def test_operands_without_a_format_get_the_design_s():
    assert Product(None, None, "hopper.wgmma.e4m3") == Product("e4m3fn", "e4m3fn", "hopper.wgmma.e4m3")
    assert Product("e5m2", None, "hopper.wgmma.e4m3_e5m2").second.number == parse("e4m3fn")
    assert Product(None, None, "ampere.mma.tf32").first.rounding.value == "toward_zero"
    assert Product(None, None, "blackwell.tcgen05.nvf4").first.text == "operand(nvfp4,matrix=True)"
    assert Product("e4m3fn:saturate", "e4m3fn", "hopper.wgmma.e4m3").first.number.overflow == "saturate"
    two_levels = Accumulator(chunk=128, inner=Accumulator.of("hopper.wgmma.e4m3"))
    tiled = Operand("e4m3fn", scale=Scale(1, 128))
    assert Product(tiled, tiled, two_levels).accumulator.instruction.name == "hopper.wgmma.e4m3"


@pytest.mark.parametrize("name", ["hopper.wgmma.e4m3", "volta.mma.f16.f16", "blackwell.tcgen05.mxe4m3_mxe2m1"])
def test_texts(name):
    accumulator = Accumulator.of(name)
    assert parse(accumulator.text) == accumulator
    assert parse(Product(None, None, accumulator).text) == Product(None, None, name)


WRONG = [
    (lambda: Accumulator.of("hoper.wgmma.e4m3"), "design='hoper.wgmma.e4m3'; near it are hopper.wgmma.e4m3, "),
    (lambda: Accumulator.of("h100"), "allowed are names that `qbits designs` lists, of volta, turing"),
    (lambda: Accumulator.of(3), "design=3 is a int; allowed is a name such as hopper.wgmma.e4m3"),
    (lambda: Accumulator(chunk=4, design="volta.mma.f16.f16", tree=True), "tree=True with design=volta.mma.f16.f16"),
    (
        lambda: Product("e5m2", "e5m2", "hopper.wgmma.e4m3"),
        "operands are e5m2 and e5m2 with hopper.wgmma.e4m3; allowed",
    ),
    (
        lambda: Product("e5m2", None, "volta.mma.f16"),
        "operands are e5m2 and None with volta.mma.f16; allowed there are f",
    ),
    (
        lambda: Product("scaled(e4m3fn,{-2:32})", None, "blackwell.tcgen05.mxe4m3"),
        "operands are scaled(e4m3fn,{-2:32}) and None with blackwell.tcgen05.mxe4m3; allowed there are mxfp8_e4m3",
    ),
    (
        lambda: Product(Operand("e4m3fn", scale=Scale(1, 32)), None, "hopper.wgmma.e4m3"),
        "first has scale(outer=1,terms=32) with hopper.wgmma.e4m3; allowed are aligned sums as inner accumulator",
    ),
    (lambda: Accumulator(chunk=64, inner="x"), "inner='x' is a str"),
    (
        lambda: Accumulator(chunk=64, inner=Accumulator.of("blackwell.tcgen05.nvf4")),
        "allowed inside are designs without scales of blocks",
    ),
]


@pytest.mark.parametrize(("make", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_names_and_operands(make, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert words in str(caught.value)
