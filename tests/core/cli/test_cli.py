"""`qbits`: what it prints and draws is true."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import xml.dom.minidom
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from cli_support import OTHERS, refused

import qcore
from qcore import NAMED, parse
from qcore import __main__ as command_line
from qcore.__main__ import main
from qcore.cli import functions, tables, vectors
from qcore.insight import Record, Site, statistics_of
from qcore.linalg.designs import DESIGNS
from qcore.version import NUMERICS

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
@pytest.mark.parametrize("command", [["show"], ["vectors", "--rounding", "nearest", "-o", "never"]])
def test_wrong_texts(capsys, command, text, message):
    assert re.search(message, refused(capsys, *command, text))


def test_designs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["designs", "hopper"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[2:] if line.strip()] == [x for x in DESIGNS if "hopper" in x]
    assert re.search(
        r"hopper\.wgmma\.e4m3 +aligned +13 +32 +binary\(8,13\) +e4m3fn +measured: H100, H200, without an addend", out
    )
    assert re.search(r"hopper\.mma\.e4m3 .+ by rule: as B200, which was measured", out)
    assert re.search(r"hopper\.mma_k8\.f16 .+ model: mmasim 2\.1\.1", out)
    with pytest.raises(SystemExit):
        main(["designs", "hoper"])
    assert "allowed are names that `qbits designs` lists" in capsys.readouterr().err


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


def test_the_list_has_a_whole_row_for_every_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    assert main([]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines[-len(NAMED) :]] == list(NAMED)
    for line, (_, source) in zip(lines[-len(NAMED) :], NAMED.values(), strict=True):
        assert line.endswith(f"  {source}")
    row = next(line for line in lines if line.startswith("e4m3fn "))
    assert re.split(r"\s{2,}", row)[1:-1] == ["8", "4, 3", "7", "448", "2^-6", "2^-9", "NaN, -0", "nan"]


@pytest.mark.parametrize("width", [60, 100, *(pytest.param(width, marks=pytest.mark.heavy) for width in (80, 140))])
@pytest.mark.parametrize(
    "command",
    [
        [],
        ["designs"],
        ["show", "float16", "posit32", "nf4", "nvfp4", *BLOCKS],
        ["show", "fixed(64,3)", "binary(11,52)", "float(64,3)"],
    ],
    ids=["list", "designs", "show", "wide"],
)
def test_tables_fit(capsys, monkeypatch, width, command):
    monkeypatch.setenv("COLUMNS", str(width))
    main(command)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    enough = max(map(int, re.findall(r"COLUMNS=(\d+)\s+shows\s+all", out)), default=width)
    monkeypatch.setenv("COLUMNS", str(enough))
    main(command)
    assert "No room" not in capsys.readouterr().out


def test_a_narrow_list_has_all_cells_that_it_does_not_leave_out(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    main([])
    out = capsys.readouterr().out
    assert out.rstrip().endswith("No room for: overflow, source. COLUMNS=110 shows all.")
    for name in NAMED:
        lines = out[out.index(f"\n{name} ") :].splitlines()[1:5]
        cells = [word for cell in tables.row(name)[:-2] for word in cell.split() if cell != "-"]
        assert all(any(word in line for line in lines) for word in cells)


@pytest.mark.parametrize("command", [[], *([name] for name in command_line.COMMANDS)], ids=" ".join)
def test_help_fits_and_its_examples_are_right(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    out = capsys.readouterr().out
    assert exit_.value.code == 0
    assert max(map(len, out.splitlines())) <= 80
    examples = re.findall(r"^  (qbits .*)$", out, re.M)
    assert examples
    for example in examples:
        program, *arguments = shlex.split(example)
        command_line._parser(program).parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["showe"], "COMMAND='showe'; near it is show; allowed are show, designs, "),
        (["fixed(8, 4)"], "COMMAND='fixed(8, 4)'; `qbits show 'fixed(8,4)'` shows this format; allowed are show"),
        (["show", "e4m3f"], "e4m3f may mean e4m3fn or "),
        (["emit-c", "e5m2", "--rounding", "neerest"], "'neerest'; near it are nearest, nearest_"),
        (["check", "--functions", "torch"], "'torch'; near it are qtorch; allowed are qcore, qtorch, qjax"),
        (["designs", "hoper"], "near it are hopper."),
    ],
)
def test_wrong_words_are_answered_with_near_ones(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_the_names_of_the_program(capsys):
    for program in ("qbits", "python -m qcore"):
        with pytest.raises(SystemExit):
            main(["--version"], program)
        assert capsys.readouterr().out == f"qbits {qcore.__version__}, numerics {NUMERICS}\n"
        with pytest.raises(SystemExit):
            main(["show", "--help"], program)
        assert f"  {program} show e4m3fn\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", [*NAMED, *OTHERS, *BLOCKS])
def test_show(capsys, monkeypatch, text):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["show", text]) == 0
    out = capsys.readouterr().out
    number, codes = (
        parse(text),
        re.findall(r"^.*?\b0x([0-9a-f]+)  ([01 ]+?)  +(\S+) *(.*?) *$", capsys_lines(out), re.M),
    )
    assert f"{number.text}: {number!r}".split() == out.split()[: len(f"{number!r}".split()) + 1]
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


def test_show_several_and_those_without_a_list(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["show", "e2m1fn", "float(64,3)", "fixed(40,2)"]) == 0
    out = capsys.readouterr().out
    assert "e2m1fn: BinaryFloat" in out
    assert "no list of values: dtype=float64; FloatingPoint(exp=64, man=3) has numbers of" in out
    assert "no list of values: FixedPoint(wl=40, fl=2) has codes of 40 bits" in out


def test_files_that_cannot_be(capsys, tmp_path):
    assert "No such file" in refused(capsys, "check", str(tmp_path / "none"))
    missing = str(tmp_path / "none" / "x")
    assert missing in refused(capsys, "vectors", "e5m2", "--rounding", "nearest", "-o", missing)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("rich.console", [], "this needs rich, which is not installed: pip install rich"),
        (
            "ml_dtypes",
            ["vectors", "e5m2", "--rounding", "up", "--dtype", "bfloat16", "-o", "x"],
            "this needs ml_dtypes, which is not installed: pip install ml_dtypes",
        ),
    ],
)
def test_what_is_not_installed(capsys, monkeypatch, tmp_path, module, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert message in refused(capsys, *arguments)


def test_as_a_process(tmp_path):
    command = [sys.executable, "-m", "qcore"]
    settings = {
        "encoding": "utf-8",
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)},
    }
    run = subprocess.run([*command, "show", "e2m1fn"], capture_output=True, **settings)
    assert (run.returncode, run.stderr) == (0, "")
    assert len(re.findall(r"^0x", run.stdout, re.M)) == 16
    read, written = os.pipe()
    os.close(read)  # as `| head` does when it has enough
    for arguments in (["show", "e2m1fn"], ["emit-c", "e5m2"]):
        run = subprocess.run([*command, *arguments], stdout=written, stderr=subprocess.PIPE, **settings)
        assert (run.returncode, run.stderr) == (1, "")
    os.close(written)
    for arguments in (["emit-c", "e5m2"], []):
        for end, message in (
            (">/dev/full", "[Errno 28] No space left on device"),
            (">&-", "standard output is closed;"),
        ):
            run = subprocess.run(
                ["sh", "-c", f'"$0" "$@" {end}', *command, *arguments], capture_output=True, **settings
            )
            assert run.returncode == 2
            assert re.fullmatch(f"python -m qcore: error: {re.escape(message)}.*\n", run.stderr)


def test_vectors_to_standard_output(capfd):
    """The file alone is there: what was written is said beside it."""
    for path in ("/dev/stdout", "/dev/fd/1"):
        assert main(["vectors", "e5m2", "--rounding", "nearest", "--count", "3", "-o", path]) == 0
        out, err = capfd.readouterr()
        assert err.startswith(f"{path}: ")
        assert len(out.splitlines()) == 1 + int(re.search(": ([0-9]+) lines", err)[1])
        assert '"rounding": "nearest"' in out.splitlines()[0]
    with pytest.raises(SystemExit):
        main(["layer", "ada.mma.e4m3", "--input", "2,4", "--weight", "2,4", "-o", "/dev/stdout"])
    assert "-o /dev/stdout; allowed is a file on a disk" in capfd.readouterr().err


def test_a_pipe_is_read_with_a_message(capfd, tmp_path):
    assert main(["vectors", "e5m2", "--rounding", "nearest", "--count", "3", "-o", str(tmp_path / "x.csv")]) == 0
    os.mkfifo(tmp_path / "pipe")
    text = (tmp_path / "x.csv").read_text(encoding="utf-8")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(text, encoding="utf-8"))
    writer.start()
    capfd.readouterr()
    assert main(["check", str(tmp_path / "pipe")]) == 0
    writer.join()
    out, err = capfd.readouterr()
    assert "pipe: 0 of " in out
    assert err == f"reading {tmp_path / 'pipe'}, which is no file on a disk\n"


def test_interrupted(capsys, monkeypatch, tmp_path):
    """Ctrl-C ends a command in one line, and leaves no file."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vectors, "rows_text", interrupt)
    assert main(["vectors", "e4m3", "--rounding", "nearest", "-o", "x.csv"]) == 130
    assert capsys.readouterr().err == "qbits: interrupted\n"
    assert not os.listdir()


def test_sizes_beyond_memory(capsys, tmp_path):
    """More than any machine has; one line."""
    path = str(tmp_path / "x.csv")
    layer = ["layer", "ada.mma.e4m3", "--input", "1,1,4,4", "--weight", "1,1,2,2", "--padding", "99999999", "-o", path]
    for arguments in (["vectors", "hopper.wgmma.e4m3", "--count", "99999999999", "-o", path], layer):
        assert "error: not enough memory for these sizes" in refused(capsys, *arguments)
    assert not os.listdir(tmp_path)


def test_control_characters_stay_text(capsys, tmp_path):
    """A stranger's record and names of files: no terminal obeys them, and a picture is XML."""
    record = Record("run\x1b]0;owned\x07\x1b[2J\u202e")
    record.add(0, Site("layer\x1b[31m", "output"), statistics_of(np.float32([1, 2, 700, 1e-9]), "e4m3fn"))
    record.save(tmp_path / "run.json")
    assert main(["insight", str(tmp_path / "run.json")]) == 0
    found = capsys.readouterr().out
    assert set(found) & {"\x1b", "\x07", "\u202e"} == set()
    assert r"layer\x1b[31m:output" in found.replace("\n", "")
    assert main(["insight", str(tmp_path / "run.json"), "--plot", str(tmp_path / "run.svg")]) == 0
    xml.dom.minidom.parse(str(tmp_path / "run.svg"))
    assert r"none\x1b[2J" in refused(capsys, "check", str(tmp_path / "none\x1b[2J"))


def test_provenance(capsys, tmp_path):
    record = Record("mlp", settings={"recipe": "mxfp8"})
    record.add(0, Site("layer", "output"), statistics_of(np.float32([1, 500]), "e4m3fn"))
    record.save(tmp_path / "run.json")
    assert main(["provenance", str(tmp_path / "run.json")]) == 0
    assert json.loads(capsys.readouterr().out) == record.provenance()
    assert "record=" in refused(capsys, "provenance", str(ROOT / "tests/parity/golden.json"))


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
