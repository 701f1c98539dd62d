"""`qbits vectors` of accumulators and instructions: the bits of each step, restated in fractions."""

import json
import math
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from cli_support import refused
from covering import some
from support import words

from qcore import linalg, parse
from qcore.__main__ import main
from qcore.arrays import decode
from qcore.cli.layouts import read_rows
from qcore.cli.sum_files import read
from qcore.cli.sum_inputs import KINDS

ONE = Fraction(1)


def write(path, *arguments):
    assert main(["vectors", *arguments, "-o", str(path)]) == 0
    return path


def rows(path):
    """The header, and for each row of a CSV file its fields by name."""
    header, *lines = path.read_text().splitlines()
    header = json.loads(header)
    fields = ([int(text, 16) for text in line.split(",")] for line in lines)
    return header, [dict(zip(header["columns"], row, strict=True)) for row in fields]


def number(bits, dtype, unsigned):
    return float(np.array(bits, unsigned).view(dtype))


def exponent(x, least=-(10**6)):
    """floor(log2 |x|), at least `least`."""
    x = abs(Fraction(x))
    found = x.numerator.bit_length() - x.denominator.bit_length()
    found -= x < ONE * 2**found if found >= 0 else x * 2**-found < 1
    return max(found, least)


def split(x, last):
    """|x| in units of 2^last, cut off, and its guard, round and sticky bit."""
    quotient, rest = divmod(abs(x) / Fraction(2) ** last, 1)
    two, rest = divmod(rest * 4, 1)
    return int(quotient), int(two) >> 1, int(two) & 1, int(rest > 0)


def test_steps_of_an_instruction(tmp_path):
    """Hopper's FP8: 32 products and the accumulator cut off at 13 bits of fraction, the sum to E8M13."""
    _, found = rows(write(tmp_path / "v.csv", "hopper.wgmma.e4m3", "--count", "140", "--terms", "64"))
    checked = cut_off = 0
    for row in found:
        a, b = ([number(row[f"{x}{k}"], ml_dtypes.float8_e4m3fn, np.uint8) for k in range(64)] for x in "ab")
        total = number(row["c"], np.float32, np.uint32)
        if not np.isfinite([*a, *b, total]).all():
            assert row["result"] in (0x7FFFFFFF, 0x7F800000, 0xFF800000)
            continue
        total = Fraction(total)
        for step in range(2):
            terms = [(Fraction(x), Fraction(y)) for x, y in zip(a, b, strict=True)][32 * step : 32 * step + 32]
            parts = [(x * y, sum(exponent(f, -6) for f in (x, y)) if x * y else -133) for x, y in terms]
            parts.append((total, exponent(total, -126) if total else -133))
            top = max(e for _, e in parts)
            assert row[f"exponent{step}"] == top % 2**16
            unit = Fraction(2) ** (top - 13)
            whole = [math.trunc(x / unit) for x, _ in parts]
            assert row[f"cut{step}"] == any(n * unit != x for n, (x, _) in zip(whole, parts, strict=True))
            cut_off += row[f"cut{step}"]
            exact = sum(whole) * unit
            assert number(row[f"sum{step}"], np.float64, np.uint64) == exact
            last = max(exponent(exact) if exact else -126, -126) - 13
            quotient, *bits = split(exact, last)
            assert [row[f"{name}{step}"] for name in ("guard", "round", "sticky")] == bits
            total = (-1 if exact < 0 else 1) * quotient * Fraction(2) ** last
            if abs(total) >= 2**128:
                break
            assert decode(np.array([row[f"total{step}"]]), parse("binary(8,13)"), np.float64)[0] == total
        else:
            assert number(row["result"], np.float32, np.uint32) == total
            checked += 1
    assert checked > 80
    assert cut_off > 50


def test_steps_of_a_stochastic_accumulator(tmp_path):
    text = "accumulator(float(6,9),chunk=4,rounding=stochastic)"
    _, found = rows(
        write(tmp_path / "v.csv", text, "--operands", "e5m2", "e4m3fn", "--terms", "8", "--count", "70", "--key", "5")
    )
    random = words(5, (2, 70)) >> 8
    checked = 0
    for index, row in enumerate(found):
        a = [number(row[f"a{k}"], ml_dtypes.float8_e5m2, np.uint8) for k in range(8)]
        b = [number(row[f"b{k}"], ml_dtypes.float8_e4m3fn, np.uint8) for k in range(8)]
        total = number(row["c"], np.float32, np.uint32)
        assert [row["word0"], row["word1"]] == random[:, index].tolist()
        for step in range(2):
            chunk = 0.0
            for k in range(4 * step, 4 * step + 4):
                chunk += a[k] * b[k]
            exact = total + chunk
            if not math.isfinite(exact) or abs(exact) > 2**31:
                break
            assert number(row[f"sum{step}"], np.float64, np.uint64) == exact
            last = max(exponent(exact) if exact else -30, -30) - 9
            quotient, *bits = split(Fraction(exact), last)
            assert [row[f"{name}{step}"] for name in ("guard", "round", "sticky")] == bits
            rest = int((abs(Fraction(exact)) / Fraction(2) ** last - quotient) * 2**24)
            up = rest + row[f"word{step}"] >= 2**24
            total = math.copysign(float((quotient + up) * Fraction(2) ** last), exact)
            code = np.array([row[f"total{step}"]])
            assert decode(code, parse("float(6,9)"), np.float64)[0] == total
            checked += 1
    assert checked > 60


@pytest.mark.parametrize(
    ("text", "operands", "terms"),
    [
        ("volta.mma.f16.f16", None, 6),
        ("ampere.mma.tf32", None, 8),
        ("blackwell.tcgen05.e2m1_e4m3", None, 40),
        ("cdna1.mfma.f32", None, 3),
        ("cdna2.mfma.f16", None, 8),
        ("cdna3.mfma.f16", None, 12),
        ("cdna3.mfma.fp8", None, 32),
        ("accumulator()", ("bfloat16", "e5m2"), 9),
        ("accumulator(float16,chunk=4,tree=True)", ("e4m3fn", "e4m3fn"), 9),
        ("accumulator(chunk=8,inner=accumulator(design=hopper.mma_k8.f16))", ("float16", "float16"), 16),
        ("accumulator(fixed(24,12),chunk=4)", ("fixed(8,4)", "int8"), 8),
        ("accumulator(posit(16,1),chunk=4)", ("posit(8,1)", "e4m3fn"), 8),
        ("accumulator(binary(11,52),chunk=4)", ("e4m3fn", "e4m3fn"), 8),
    ],
)
def test_results_are_those_of_products(capsys, tmp_path, text, operands, terms):
    given = [] if operands is None else ["--operands", *operands]
    path = write(tmp_path / "v.csv", text, *given, "--terms", str(terms), "--count", "70")
    vectors = read(read_rows(path))
    unit, given = vectors.unit, vectors.given
    a, b = (decode(x, one) for x, one in zip((given.a, given.b), unit.numbers, strict=True))
    c = given.c[:, None, None]
    expected = linalg.matmul(a[:, None], b[:, :, None], c, operands=operands, accumulator=unit.accumulator)
    assert (expected.view(np.uint32).ravel() == vectors.found["result"].values).all()
    assert main(["check", str(path)]) == 0
    assert "0 of 70 rows differ" in capsys.readouterr().out


@some(
    *((1, 0), (0, 1), (1, 2)),
    text=["blackwell.tcgen05.mxe4m3", "blackwell.tcgen05.nvf4"],
    end=["csv", "json", "mem"],
)
def test_layouts_have_the_same_rows(tmp_path, end, text):
    files = [write(tmp_path / f"v.{one}", text, "--count", "21") for one in ("csv", end)]
    first, second = (read(read_rows(file)) for file in files)
    assert all((first.found[name].values == second.found[name].values).all() for name in first.found)
    assert (first.given.a == second.given.a).all()
    assert main(["check", str(files[1])]) == 0
    if end == "mem":
        comment, *lines = files[1].read_text().splitlines()
        assert comment.startswith("// ")
        assert len({len(line) for line in lines}) == 1
        assert all(re.fullmatch("[0-9a-f_]+", line) for line in lines)


def test_the_first_differences_and_counts_by_kind(capsys, tmp_path):
    path = write(tmp_path / "v.json", "hopper.wgmma.e4m3", "--count", "80")
    text = json.loads(path.read_text())
    result, guard = (list(text["columns"]).index(name) for name in ("result", "guard1"))
    for row in text["rows"][:20]:
        row[result] = f"{int(row[result], 16) ^ 1:08x}"
    text["rows"][25][guard] = str(1 - int(text["rows"][25][guard]))
    text["rows"][30][result] = ""
    path.write_text(json.dumps(text))
    capsys.readouterr()
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "21 of 80 rows differ" in out
    assert "  cancellation: 2 of 8\n" in out
    assert "  subnormal: 3 of 7\n" in out
    assert len(re.findall(r"^line \d+", out, re.M)) == 10
    first = text["rows"][0][result]
    assert "line 2, random:\n  step 0: exponent " in out
    assert f"result {int(first, 16) ^ 1:08x} (found {first})" in out


def test_coverage_is_printed(capsys, tmp_path):
    path = write(tmp_path / "v.csv", "ampere.mma.f16", "--count", "700", "--terms", "8")
    out = capsys.readouterr().out
    _, found = rows(path)
    ties = sum((row["guard0"], row["round0"], row["sticky0"]) == (1, 0, 0) for row in found)
    assert ties > 20
    assert f"700 steps: {ties} ties, " in out
    assert f", {sum(row['cut0'] for row in found)} alignments that cut off bits\n" in out
    assert re.search(r"alignment shifts: 25 of the 25 from 0 to 24, and \d+ terms beyond", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hopper.wgmma.e4m4"], r"near it are .*hopper\.wgmma\.e4m3"),
        (
            ["hopper.wgmma.e4m3", "--rounding", "nearest"],
            r"--rounding with accumulator.*; allowed is --rounding with a format",
        ),
        (["hopper.wgmma.e4m3", "--key", "1"], r"key=1 with .*nothing is stochastic"),
        (["hopper.wgmma.e4m3", "--operands", "int8", "int8"], r"allowed there are e4m3fn"),
        (["hopper.wgmma.e4m3", "--terms", "0"], r"terms=0; allowed is an int >= 1"),
        (["blackwell.tcgen05.mxe4m3", "--terms", "33"], r"terms=33; allowed are multiples of 32"),
        (
            ["accumulator()", "--operands", "mxfp4", "int8"],
            r"allowed are formats with codes, and without shared scales",
        ),
        (
            ["e5m2", "--rounding", "nearest", "--terms", "3"],
            r"--terms with e5m2; allowed is --terms with an accumulator",
        ),
    ],
)
def test_refused(capsys, tmp_path, arguments, message):
    path = tmp_path / "never"
    assert re.search(message, refused(capsys, "vectors", *arguments, "-o", str(path)))
    assert not path.exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"terms": 4', '"terms": "4"', "line 1: terms is '4'"),
        ('"terms": 4', '"terms": 5', "line 1: columns are not those of the header's law"),
        ('"terms": 4', '"terms": 30000000', "line 1: terms=30000000; allowed are at most [0-9]+, as many as a row has"),
        ('"terms": 4', f'"terms": {10**15}', "line 1: terms=1000000000000000; allowed are at most"),
        ("volta", "vulto", "line 1: .*vulto"),
        ("\n0,", "\n0,0,", "line 2: .* fields; allowed are"),
        ("\n0,", "\nq,", "line 2: kind is 'q'"),
        ("\n0,", "\nf,", "kind is 15; allowed are 0 to 10"),
    ],
)
def test_malformed_files(capsys, tmp_path, old, new, message):
    path = write(tmp_path / "v.csv", "volta.mma.f16", "--terms", "4", "--count", "3")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert re.search(message, refused(capsys, "check", str(path)))


@pytest.mark.parametrize("digits", ['"x"', "[1]", "null", "-1", "1e9", "99999999999", "true"])
def test_malformed_digits(capsys, tmp_path, digits):
    path = write(tmp_path / "v.mem", "volta.mma.f16", "--terms", "4", "--count", "3")
    text, count = re.subn(r'("columns": \{"\w+": )\d+', rf"\g<1>{digits}", path.read_text(), count=1)
    assert count
    path.write_text(text)
    assert "is not a header; allowed is the first line of what `vectors` wrote" in refused(capsys, "check", str(path))


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("accumulator(fixed(20,19),chunk=1)", ("fixed(16,15)", "fixed(16,15)")),
        ("accumulator(float16,chunk=4)", ("e5m2", "e5m2")),
        ("accumulator(float(4,5),chunk=4)", ("e3m2fn", "e3m2fn")),
        ("accumulator(bfloat16,chunk=4)", ("bfloat16", "bfloat16")),
    ],
)
def test_random_sums_are_inside_the_range_and_ties_are_ties(tmp_path, text, operands):
    path = write(tmp_path / "v.csv", text, "--operands", *operands, "--terms", "16", "--count", "800")
    vectors = read(read_rows(path))
    beyond, ties = vectors.met["sums beyond the largest number"], vectors.met["ties"]
    assert ties[vectors.kinds == KINDS.index("tie")].all()
    for kind in ("random", "near", "cancellation"):
        inside = (vectors.kinds == KINDS.index(kind)).nonzero()[0][::2]
        assert not beyond[inside].any()
        assert not vectors.met["infinite or NaN inputs"][inside].any()


def test_units_of_one_s_own(tmp_path):
    """The parameters of aligned units, a step of one term, and an addend that comes late."""
    for index, text in enumerate(
        (
            "accumulator(chunk=1,fraction_bits=9,align=products)",
            "accumulator(chunk=4,fraction_bits=9,align=twice,sets=2,zeros=-20)",
            "hopper.mma.e4m3",
        )
    ):
        _, found = rows(write(tmp_path / f"{index}.csv", text, "--count", "16", "--terms", "32"))
        assert len(found) == 16
