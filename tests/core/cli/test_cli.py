"""`python -m qcore`: what it prints and draws is true."""

import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from cli_support import OTHERS, refused
from rich.console import Console

import qcore
from qcore import NAMED, parse
from qcore.__main__ import main
from qcore.cli import functions, tables
from qcore.linalg.designs import DESIGNS

ROOT = Path(__file__).parents[3]
BLOCKS = (
    "block(5,dim=-1)",
    "block(6,dim=0)",
    "scaled(p3109(6,3),{-2:16,-1:16},rule=rceil)",
    "scaled(fixed(5,2),{0:1,...:None})",
    "nvfp4({-2:16,-1:16})",
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e9m9", r"format='e9m9': allowed here are float\(exp,man\), .*, and the names float16, .*, nvfp4"),
        ("float:5,2", r"format='float:5,2': float may mean binary\(8,23\) .*; allowed here are float\(exp,man\)"),
        ("float(5,x)", r"format='float\(5,x\)': allowed here is an int\n    float\(5,x\)\n            \^"),
        ("p3109(99,3)", r"bits=99; allowed is an int from 2 to 16"),
        ("affine(-8,7)", r"format='affine\(-8,7\)': allowed here are float"),
    ],
)
@pytest.mark.parametrize("command", [["show"], ["vectors", "--mode", "nearest", "-o", "never"]])
def test_wrong_texts(capsys, command, text, message):
    assert re.search(message, refused(capsys, *command, text))


def test_designs(capsys):
    assert main(["designs", "hopper"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[2:] if line.strip()] == [x for x in DESIGNS if "hopper" in x]
    assert re.search(r"hopper\.wgmma\.e4m3 +e4m3fn +binary\(8,13\) +32 +aligned +13 +7fffffff", out)
    with pytest.raises(SystemExit):
        main(["designs", "hoper"])
    assert "allowed are names that `python -m qcore designs` lists" in capsys.readouterr().err


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


def test_files_that_cannot_be(capsys, tmp_path):
    assert "No such file" in refused(capsys, "check", str(tmp_path / "none"))
    missing = str(tmp_path / "none" / "x")
    assert missing in refused(capsys, "vectors", "e5m2", "--mode", "nearest", "-o", missing)
    assert "invalid choice: 'shew'" in refused(capsys, "shew")


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("rich.console", [], "this needs rich, which is not installed: pip install rich"),
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
    code = "import sys, qcore, qcore.__main__, qcore.cli.vectors, qcore.cli.vectors; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"rich", "matplotlib", "ml_dtypes", "torch", "jax"} & set(run.stdout.split())


def test_functions_are_judged(capsys, monkeypatch):
    """A float32 exponential, whose last place is another one in some of the hard inputs."""
    assert main(["check", "--functions", "qcore"]) == 0
    assert re.match(r"qcore: 0 of [1-9]\d+ hard inputs", capsys.readouterr().out)
    monkeypatch.setitem(functions.PARTS, "exp", lambda xp, x: np.exp(x))
    assert main(["check", "--functions", "qcore"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"qcore: [1-9]\d* of \d+ hard inputs have wrong results", first)
    assert re.fullmatch(r"  exp: \d+ of \d+ are wrong, the first at [0-9a-f]{8}", second)
