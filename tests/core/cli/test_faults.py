"""Files of vectors see faults of a unit that adds products, and `check` names them."""

import json

import numpy as np
import pytest
from cli_support import refused

from qcore.__main__ import main
from qcore.cli.faults import Fault, _by_parameters, faults, likely, unseen
from qcore.cli.layouts import read_rows
from qcore.cli.sum_files import read
from qcore.cli.sum_inputs import draw
from qcore.cli.sums import Operands, Unit

# Faults that are none: they have the right result for all inputs. Exponents of zeros matter where others may be less.
ZEROS = {
    "does not count zeros",
    "counts zeros with the exponent -126",
    "counts zeros one exponent too high",
    "counts zeros one exponent too low",
}
# Products are 2^-48 at least, and addends count as 2^-126 at least: more than the exponent of zeros, -133 or -132. An
# addend near 2^128 cuts off all products, which are below 2^33. No sum lies between 0 and the result's last place.
NARROW = ZEROS | {"returns the largest number for sums beyond it", "keeps the sign of sums that become zero"}
# Products are multiples of 2^-20 below 2^30, and no addend beside them leaves less than 2^-149.
NVFP4 = NARROW | {"counts zeros with the exponent -126"}
# Inside, products are multiples of 2^-18, of e5m2 2^-32, and nothing below 2^-34 is cut off. All numbers of e4m3 are
# normal in float16, whose least exponent e5m2 has. Sums are in the range, or rounding makes them infinite; signs of
# zeros vanish in the sum outside.
INSIDE = {
    f"{words} inside of a chunk" for words in NARROW | {"aligns subnormal numbers by their format's least exponent"}
}
INSIDE |= {"normalizes subnormal numbers inside of a chunk"}
EQUAL = {  # operands of own accumulators stand behind their texts
    "hopper.wgmma.e4m3": NARROW,
    "ada.mma.e4m3": NARROW,
    "ada.mma.e5m2": NARROW,
    "ampere.mma.f16": NARROW,
    "ampere.mma.bf16": set(),
    "hopper.mma.bf16": set(),
    "hopper.mma.tf32": set(),
    # Products are multiples of 2^-157, and nothing above 2^-158 is cut off where zeros have the largest exponent.
    "blackwell.tcgen05.f16_bf16": ZEROS - {"counts zeros with the exponent -126"},
    # Results are float16, and so are addends before the sum, which are normal float32 numbers or zeros.
    "hopper.mma.e4m3.f16": INSIDE | {"counts subnormal results as zeros", "counts subnormal addends as zeros"},
    "blackwell.mma.e5m2": INSIDE - {"normalizes subnormal numbers inside of a chunk"},
    "cdna3.mfma.bf16": set(),
    # Its zeros do not count; -126 is less than the exponents of all products and addends.
    "cdna3.mfma.fp8": {"counts zeros with the exponent -126"},
    # Rounding to nearest makes an infinity itself. Results and rounded addends of float16 are normal in float32, and
    # subnormal float32 addends become 0.
    "volta.mma.f16.f16": {
        "returns the largest number for sums beyond it",
        "counts subnormal results as zeros",
        "counts subnormal addends as zeros",
    },
    "blackwell.tcgen05.mxe4m3": set(),
    "blackwell.tcgen05.mxe2m1": set(),
    "blackwell.tcgen05.mxf4": set(),
    "blackwell.tcgen05.nvf4": NVFP4,
    "rtx_blackwell.mma.nvf4_32": NVFP4,
    "cdna1.mfma.f16": set(),
    "cdna1.mfma.bf16": set(),
    "cdna1.mfma.f32": set(),
    # Operands that are not zeros are normal numbers, and so are products, whose sums are never -0: +0 takes the sign of
    # an addend away.
    "cdna2.mfma.f16": {"gives zeros of subnormal numbers the other sign"},
    "cdna2.mfma.bf16": set(),
    "x86.avx512_bf16": set(),
    "accumulator(float32,chunk=1)": set(),
    "accumulator(float32,chunk=8,tree=True) bfloat16 bfloat16": set(),
    # Products are multiples of 2^-48: an addend of less than 2^-126 is lost beside them in float64, as without them.
    "accumulator(float16,chunk=4,tree=True) float16 float16": {
        "counts subnormal results as zeros",
        "counts subnormal addends as zeros",
    },
    # A saturating format has no infinity, and its least number is far above float32's subnormal ones.
    "accumulator(float(6,9),chunk=16)": {
        "counts subnormal results as zeros",
        "returns the largest number for infinity",
        "counts subnormal addends as zeros",
    },
}


def rows_of(text, count=1000, **options):
    accumulator, first, second = (*text.split(), None, None)[:3]
    # Two steps; those of FP4 have 64 terms.
    unit = Unit(accumulator, first, second, 128 if "f4" in accumulator else 64, None, **options)
    given = draw(unit, count, 0)[1]
    return unit, given, unit.columns(given)[0]["result"].astype(np.uint32)


# An ordinary run takes one unit of each law.
HEAVY = """
ada.mma.e5m2 ampere.mma.f16 hopper.mma.bf16 volta.mma.f16.f16 blackwell.mma.e5m2 blackwell.tcgen05.mxe4m3
rtx_blackwell.mma.nvf4_32 cdna1.mfma.f16 cdna1.mfma.f32 cdna2.mfma.f16 cdna1.mfma.bf16 ada.mma.e4m3 hopper.mma.tf32
""".split()


@pytest.mark.parametrize("text", [pytest.param(one, marks=[pytest.mark.heavy] * (one in HEAVY)) for one in EQUAL])
def test_every_fault_is_seen(text):
    """In 1,000 rows, unless it changes no result at all."""
    unit, given, right = rows_of(text)
    assert (Fault("", _by_parameters(unit.product.accumulator)).results(unit, given) == right).all()
    count, words = unseen(unit, given, right)
    assert {*words} == EQUAL[text]
    assert count >= (56 if unit.product.block else 39 if unit.product.accumulator.innermost.fraction_bits else 28)


def test_faults_that_are_none_have_the_right_results_for_other_inputs():
    """Random codes of operands and bits of addends, of which the rows above are not chosen."""
    rng = np.random.default_rng(1)
    for text in ("hopper.wgmma.e4m3", "cdna3.mfma.fp8", "blackwell.tcgen05.nvf4", "cdna2.mfma.f16"):
        unit, given, _ = rows_of(text, 2000)
        for codes, number in zip((given.a, given.b), unit.numbers, strict=True):
            codes[:] = rng.integers(0, 1 << number.bits, codes.shape)
            codes[::2] &= (1 << (number.bits - 3)) - 1  # small numbers
        for codes in given.scales or ():
            codes[:] = rng.integers(0, 256, codes.shape)
        given.c.view(np.uint32)[:] = rng.integers(0, 2**32, len(given.c), np.uint64)
        right = unit.columns(given)[0]["result"].astype(np.uint32)
        for one in faults(unit):
            if one.words in EQUAL[text]:
                assert (one.results(unit, given) == right[:2000]).all(), one.words


def test_check_names_the_fault(capsys, tmp_path):
    path = tmp_path / "v.json"
    assert main(["vectors", "hopper.wgmma.e4m3", "--count", "300", "-o", str(path)]) == 0
    assert "42 of 48 faults of a unit change a result; not that it " in capsys.readouterr().out
    vectors, text = read(read_rows(path)), json.loads(path.read_text())
    place = list(text["columns"]).index("result")
    for words in ("normalizes subnormal numbers", "rounds sums nearest", "cuts the addend to bfloat16"):
        fault = next(one for one in faults(vectors.unit) if one.words == words)
        for row, bits in zip(text["rows"], fault.results(vectors.unit, vectors.given).tolist(), strict=True):
            row[place] = f"{bits:08x}"
        path.write_text(json.dumps(text))
        assert main(["check", str(path)]) == 1
        assert f"the results are those of a unit that {words}\n" in capsys.readouterr().out
    assert likely(vectors.unit, vectors.given, np.zeros(300, np.uint32)) == ""


def test_units_without_a_port_for_an_addend(capsys, tmp_path):
    path = tmp_path / "v.csv"
    assert main(["vectors", "ada.mma.e4m3", "--no-addend", "--count", "60", "--terms", "8", "-o", str(path)]) == 0
    vectors = read(read_rows(path))
    assert "c" not in vectors.law.inputs
    assert (vectors.given.c == 0).all()
    assert "addend" not in str([one.words for one in faults(vectors.unit)])
    assert main(["check", str(path)]) == 0
    unit = Unit("ada.mma.e4m3", None, None, 8, None)
    assert (unit.columns(vectors.given)[0]["result"] == vectors.found["result"].values).all()
    error = refused(capsys, "vectors", "e5m2", "--rounding", "nearest", "--no-addend", "-o", str(path))
    assert "--no-addend with e5m2; allowed is --no-addend with an accumulator" in error


def test_stochastic_units_have_no_known_faults(tmp_path, capsys):
    text = "accumulator(float16,chunk=4,rounding=stochastic)"
    assert faults(Unit(text, None, None, 64, 0)) == []
    assert main(["vectors", text, "--count", "20", "-o", str(tmp_path / "v.csv")]) == 0
    assert "faults of a unit" not in capsys.readouterr().out


def test_check_names_a_fault_of_scales(capsys, tmp_path):
    """And the sign bit of NVFP4's scales is not read, as mmasim 2.1.1 has it."""
    path = tmp_path / "v.json"
    assert main(["vectors", "blackwell.tcgen05.nvf4", "--count", "110", "-o", str(path)]) == 0
    vectors, text = read(read_rows(path)), json.loads(path.read_text())
    assert any((codes >= 128).any() for codes in vectors.given.scales)
    unsigned = Operands(vectors.given.a, vectors.given.b, tuple(x & 127 for x in vectors.given.scales), vectors.given.c)
    assert (vectors.unit.columns(unsigned)[0]["result"] == vectors.found["result"].values).all()
    fault = next(one for one in faults(vectors.unit) if one.words == "cuts scales to powers of two")
    place = list(text["columns"]).index("result")
    for row, bits in zip(text["rows"], fault.results(vectors.unit, vectors.given).tolist(), strict=True):
        row[place] = f"{bits:08x}"
    path.write_text(json.dumps(text))
    assert main(["check", str(path)]) == 1
    assert "a unit that cuts scales to powers of two\n" in capsys.readouterr().out
