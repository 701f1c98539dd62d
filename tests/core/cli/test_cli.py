"""`python -m qcore`: what it prints and draws is true."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import matplotlib.image
import ml_dtypes
import numpy as np
import pytest
from cli_support import refused
from rich.console import Console

import qcore
from qcore import NAMED, BlockFloatingPoint, BlockScaled, Posit, parse
from qcore.__main__ import main
from qcore.cli import tables
from qcore.cli.curves import drawing
from qcore.cli.plots import draw
from qcore.cli.properties import Dyadic, properties
from qcore.formats.block import BlockNumber

ROOT = Path(__file__).parents[3]
OTHERS = (
    "p3109(8,8)",
    "p3109(3,1)",
    "p3109(5,5,signed=False)",
    "p3109(4,2,extended=False)",
    "p3109(6,4,signed=False,extended=False)",
    "fixed(12,20)",
    "fixed(1,0)",
    "fixed(8,4,signed=False)",
    "float(1,3)",
    "posit(6,1)",
    "binary(3,2,specials=fn,overflow=saturate)",
)
BLOCKS = (
    "block(5,dim=-1)",
    "block(6,dim=0)",
    "scaled(p3109(6,3),{-2:16,-1:16},rule=rceil)",
    "scaled(fixed(5,2),{0:1,...:None})",
    "nvfp4({-2:16,-1:16})",
)
ELEMENTWISE = [name for name in (*NAMED, *OTHERS, "posit(2,5)") if not isinstance(parse(name), BlockNumber)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e9m9", r"format='e9m9': allowed here are float\(exp,man\), .*, and the names float16, .*, nvfp4"),
        ("float:5,2", r"format='float:5,2': allowed here are float\(exp,man\)"),
        ("float(5,x)", r"format='float\(5,x\)': allowed here is an int\n    float\(5,x\)\n            \^"),
        ("p3109(99,3)", r"bits=99; allowed is an int from 2 to 16"),
        ("affine(-8,7)", r"format='affine\(-8,7\)': allowed here are float"),
    ],
)
@pytest.mark.parametrize("command", [["show"], ["vectors", "--mode", "nearest", "-o", "never"]])
def test_wrong_texts(capsys, command, text, message):
    assert re.search(message, refused(capsys, *command, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fixed(65,0)", r"wl=65; allowed is an int from 1 to 64"),
        ("posit(8,65)", r"es=65; allowed is an int from 0 to 64"),
        ("fixed(8,4,clamp=False)", r"without a range it has no codes"),
    ],
)
def test_what_has_no_end(capsys, text, message):
    assert re.search(message, refused(capsys, "show", text))


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
        *("1.875", "-1.875", Dyadic(1, -3)),
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


def test_the_list_has_a_whole_row_for_every_name(capsys):
    assert main([]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines[-len(NAMED) :]] == list(NAMED)
    for line, (_, source) in zip(lines[-len(NAMED) :], NAMED.values(), strict=True):
        assert line.endswith(f"  {source}")
    row = next(line for line in lines if line.startswith("e4m3fn "))
    assert re.split(r"\s{2,}", row)[1:-1] == ["8", "4, 3", "7", "448", "2^-6", "2^-9", "NaN, -0", "nan"]


@pytest.mark.parametrize("width", [100, 140])
def test_the_list_fits_a_terminal(capsys, monkeypatch, width):
    monkeypatch.setattr(tables, "_console", lambda: Console(width=width, force_terminal=True, color_system=None))
    main([])
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    for name in NAMED:
        line = next(line for line in lines if line.startswith(f"{name} "))
        expected = [
            cell for cell in tables.row(name)[:-1] if cell not in ("-", "NaN, no zero, no sign") and " per " not in cell
        ]
        assert all(cell in line for cell in expected)
        assert "…" not in line.removesuffix("…").rstrip(" …")


@pytest.mark.parametrize("text", [*NAMED, *OTHERS, *BLOCKS])
def test_show(capsys, text):
    assert main(["show", text]) == 0
    out = capsys.readouterr().out
    number, codes = (
        parse(text),
        re.findall(r"^.*?\b0x([0-9a-f]+)  ([01 ]+?)  +(\S+) *(.*?) *$", capsys_lines(out), re.M),
    )
    assert f"{number.text}: {number!r}" in out
    number = getattr(number, "element", number)
    assert NAMED.get(text, (None, ""))[1] in out
    assert len(codes) == 1 << number.bits if number.bits <= 8 else 4 <= len(codes) <= 15
    for code, binary, value, exact in codes:
        assert int(code, 16) == int(binary.replace(" ", ""), 2)
        expected = float(qcore.decode(np.array([int(code, 16)]), number, np.float64)[0])
        assert value == ("NaN" if np.isnan(expected) else f"{expected:.9g}")
        assert not exact or read_exactly(exact) == Fraction(expected)
        assert bool(exact) == (np.isfinite(expected) and expected != 0)


def capsys_lines(out):
    """The lines of the table of values."""
    return out.partition("───\n")[2]


def read_exactly(text):
    count, _, power = text.rpartition(" * ")
    sign = -1 if power.startswith("-") else 1
    base, _, exponent = power.removeprefix("-").partition("^")
    return sign * Fraction(count or 1) * (Fraction(2) ** int(exponent) if exponent else Fraction(base))


def test_show_several_and_those_without_a_list(capsys):
    assert main(["show", "e2m1fn", "float(64,3)", "fixed(40,2)"]) == 0
    out = capsys.readouterr().out
    assert "e2m1fn: BinaryFloat" in out
    assert "no list of values: dtype=float64; FloatingPoint (exponent=64, mantissa=3) has numbers of" in out
    assert "no list of values: FixedPoint (wl=40, fl=2) has codes of 40 bits" in out


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


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plots_are_made_and_repeat(capsys, tmp_path, suffix):
    names = ["e4m3fn", "e8m0fnu", "fixed(12,4)", "p3109(6,6)", "bfloat16", "mxfp6_e2m3"]
    for index in range(2):
        assert main(["show", *names, "--plot", str(tmp_path / f"{index}.{suffix}")]) == 0
    first, second = (tmp_path / f"{index}.{suffix}" for index in range(2))
    assert first.read_bytes() == second.read_bytes()
    if suffix == "png":
        assert matplotlib.image.imread(first).std() > 0.1
    else:
        assert all(f"<!-- {name}" in first.read_text() for name in names)


@pytest.mark.parametrize(
    "name",
    [
        *("fixed(4,1074)", "fixed(2,-1022)", "fixed(2,0)", "float(1,0)"),
        *("p3109(12,1)", "p3109(3,1)", "posit(2,0)", "posit(32,5)"),
    ],
)
def test_plots_at_the_ends_of_what_there_is(tmp_path, name):
    draw([name], tmp_path / "x.png")
    assert matplotlib.image.imread(tmp_path / "x.png").std() > 0.05


def exponents(numbers):
    return np.log2(numbers).round(4).tolist()


def test_blocks_are_drawn_with_their_scales():
    """MX: the scale of 1 is 2^-2, of the largest numbers of blocks the error is that of 8 - epsilon made 6 at most.
    NVFP4: the scale of 1 is 1/6, and others follow to 2^-15 with three bits of mantissa."""
    mx, nv = (drawing(NAMED[name][0]) for name in ("mxfp4", "nvfp4"))
    assert mx.numbers.tolist() == exponents(np.array([0.5, 1, 1.5, 2, 3, 4]) / 4)
    assert nv.numbers.tolist() == exponents(np.array([0.5, 1, 1.5, 2, 3, 4, 6]) / 6)
    assert (mx.normal, round(nv.normal, 4)) == (-2, exponents(1 / 6))
    for one, lost in ((mx, 0.125 / 2), (nv, 0.5 / 6 / 2)):
        places, errors = one.curve
        assert (errors[places < np.log2(lost)] == 0).all()
        assert (errors[places > np.log2(lost) + 0.001] < 0).all()
    assert mx.alone.places.min() == nv.alone.places.min() == -18
    assert -2.03 < mx.alone.errors.max() < -2
    follow = nv.alone.places > -14.8
    assert -4.2 < nv.alone.errors[follow].max() < -4.08
    assert nv.alone.errors[~follow].max() > -2


@pytest.mark.parametrize("text", ["scaled(e2m1fn,{-2:16,-1:16})", "scaled(e2m1fn,{...:None})", "scaled(e2m1fn,{0:1})"])
def test_pictures_of_blocks_do_not_depend_on_their_shapes(text):
    same, expected = drawing(parse(text)), drawing(parse("mxfp4"))
    np.testing.assert_array_equal(same.numbers, expected.numbers)
    for one, other in ((same.curve, expected.curve), (same.alone, expected.alone)):
        np.testing.assert_array_equal(one, other)


def test_block_floating_point_is_drawn():
    one = drawing(parse("block(4,dim=-1)"))
    assert one.numbers.tolist() == exponents(np.arange(1, 5) / 4)


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("int8", "x.gif", r"plot file '.*x.gif'; allowed are names that end in .png or .svg"),
        ("float(12,2)", "x.svg", r"FloatingPoint \(exponent=12, mantissa=2\) has numbers of"),
        ("fixed(1,0)", "x.svg", r"FixedPoint \(wl=1, fl=0\) has no positive numbers to plot"),
    ],
)
def test_plots_refused(capsys, tmp_path, name, file, message):
    assert re.search(message, refused(capsys, "show", name, "--plot", str(tmp_path / file)))
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be(capsys, tmp_path):
    assert "No such file" in refused(capsys, "check", str(tmp_path / "none"))
    missing = str(tmp_path / "none" / "x")
    assert missing in refused(capsys, "vectors", "e5m2", "--mode", "nearest", "-o", missing)
    assert "invalid choice: 'shew'" in refused(capsys, "shew")


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("rich.console", [], "this needs rich, which is not installed: pip install 'qbits[cli]'"),
        ("matplotlib.figure", ["show", "e5m2", "--plot", "x.svg"], "this needs matplotlib, which is not installed"),
        (
            "ml_dtypes",
            ["vectors", "e5m2", "--mode", "up", "--dtype", "bfloat16", "-o", "x"],
            "this needs ml_dtypes, which is not installed: pip install ml_dtypes",
        ),
    ],
)
def test_what_is_not_installed(capsys, monkeypatch, tmp_path, module, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert message in refused(capsys, *arguments)


def test_as_a_process(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "qcore", "show", "e2m1fn"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(re.findall(r"^0x", run.stdout, re.M)) == 16


def test_imports_stay_light():
    code = "import sys, qcore, qcore.__main__, qcore.cli.vectors, qcore.cli.check; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"rich", "matplotlib", "ml_dtypes", "torch", "jax"} & set(run.stdout.split())


def test_the_page_is_fresh(capsys, tmp_path):
    """If it is not: `python -m qcore docs`."""
    assert main(["docs", str(tmp_path)]) == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    assert sorted(capsys.readouterr().out.split()) == [str(tmp_path / name) for name in written]
    assert (tmp_path / "named-formats.md").read_text() == (ROOT / "docs" / "named-formats.md").read_text()
    pinned = re.findall(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert len(written) == 5
    for name in written:
        assert name == "named-formats.md" or f"]({name})" in (tmp_path / "named-formats.md").read_text()
        if pinned == [version("matplotlib")]:
            (text, numbers), (committed, expected) = _drawing(tmp_path / name), _drawing(ROOT / "docs" / name)
            assert text == committed, name
            assert numbers == pytest.approx(expected, abs=0.01), name


_NUMBER = re.compile(r"-?\d+\.\d+")


def _drawing(path):
    """A file's text and its numbers; names that are hashes of coordinates, whose last digits differ between processors,
    are left out."""
    text = re.sub(r"\bp[0-9a-f]{10}\b", "clip", path.read_text())
    return _NUMBER.sub("#", text), [float(number) for number in _NUMBER.findall(text)]
