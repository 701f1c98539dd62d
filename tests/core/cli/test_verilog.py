"""A dot-product unit in Verilog has the law's bits under Icarus Verilog, and `check` catches mutants of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, text_of

from qcore.__main__ import main

FOLDER = Path(__file__).parent / "verilog"
ROWS = 700

pytestmark = pytest.mark.skipif(shutil.which("iverilog") is None, reason="needs Icarus Verilog: apt install iverilog")


@pytest.fixture
def folder(tmp_path):
    arguments = ["vectors", "hopper.wgmma.e4m3", "--count", str(ROWS), "-o", str(tmp_path / "vectors.mem")]
    assert main(arguments) == 0
    return tmp_path


def status_of(folder, unit):
    """Runs the bench with a unit on the folder's vectors; returns the exit status of `check`.

    It is 2 for a unit that does not end, which has too few rows, and None for one that is not a program.
    """
    (folder / "step.v").write_text(unit)
    bench = ["iverilog", "-g2005-sv", f"-Pbench.ROWS={ROWS}", "-o", "unit", "step.v", FOLDER / "bench.v"]
    if subprocess.run(bench, cwd=folder, capture_output=True).returncode:
        return None
    results = folder / "results.mem"
    results.unlink(missing_ok=True)
    subprocess.run("ulimit -t 2; exec vvp unit", shell=True, cwd=folder, capture_output=True)
    comment = (folder / "vectors.mem").read_text().partition("\n")[0]
    results.write_text(comment + "\n" + (results.read_text() if results.exists() else ""))
    try:
        return main(["check", str(results)])
    except SystemExit as error:
        return error.code


def test_the_unit_has_the_bits_of_the_law_and_a_wrong_one_has_not(capsys, folder):
    unit = (FOLDER / "step.v").read_text()
    assert status_of(folder, unit.replace("10 + top - e", "9 + top - e")) == 1
    capsys.readouterr()
    assert status_of(folder, unit) == 0
    assert f"0 of {ROWS} rows differ (accumulator(design=hopper.wgmma.e4m3), 64 terms; {3 * ROWS} fields" in (
        capsys.readouterr().out
    )


def fences(kind):
    """The blocks of a language on the page about verification."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text_of("docs/verification.md"), re.S | re.M)


def run(folder, commands):
    """What commands of a shell print."""
    commands = 'qbits() { python -m qcore "$@"; }\nset -eu\n' + commands
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    return subprocess.run(
        ["bash", "-c", commands], cwd=folder, env=environment, check=True, stdout=-1, text=True
    ).stdout


def test_the_bench_of_the_page(tmp_path):
    shutil.copy(FOLDER / "step.v", tmp_path)
    (tmp_path / "bench.v").write_text(fences("verilog")[0])
    write, simulate = fences("sh")[2:4]
    assert "results.mem: 0 of 1000 rows differ" in run(tmp_path, write + simulate)


def test_the_layers_of_the_page(tmp_path):
    out = run(tmp_path, fences("sh")[6])
    assert re.search(r"layer\.csv: 0 of 32 rows differ .*; 512 fields compared", out)
    assert {"conv.mem", "conv.weight.mem", "layer.bias.csv"} < {path.name for path in tmp_path.iterdir()}


@pytest.mark.heavy
def test_the_page_in_cocotb(tmp_path):
    pytest.importorskip("cocotb")
    unit = (FOLDER / "step.v").read_text()
    (tmp_path / "step.v").write_text(unit)
    for program in fences("py"):
        name, text = program.split("\n", 1)
        (tmp_path / name.removeprefix("# ")).write_text(text)
    write, simulate = fences("sh")[4:6]
    assert "answers.csv: 0 of 1000 rows differ" in run(tmp_path, write + simulate)
    (tmp_path / "step.v").write_text(unit.replace("> top)", ">= top + 2)"))
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(tmp_path, simulate)
    assert error.value.returncode == 1
    assert re.search(r"answers.csv: \d+ of 1000 rows differ", error.value.stdout)


# Kinds of mutants: (name, what is replaced, by what, in which each match is a mutant of its own).
_NUMBER = r"(?<![\w'\[:])\d+(?![\w':])"
_OPERATORS = (
    (" + ", " - "), (" - ", " + "), (" << ", " >> "), (" >> ", " << "), (" == ", " != "), (" != ", " == "),
    (" < ", " >= "), (" < ", " <= "), (" > ", " >= "), (" > ", " < "), (" || ", " && "), (" && ", " || "),
    (" ^ ", " | "), (" ^ ", " & "), (" * ", " + "), ("-sum", "sum"), ("x[7]", "y[7]"), ("y[7]", "x[7]"),
)  # fmt: skip


def _sized(match, step):
    """A constant of so many bits, one more or less."""
    return f"{match[1]}'d{(int(match[2]) + step) % 2 ** int(match[1])}"


MUTATIONS = [
    *(("operator", re.escape(old), lambda match, new=new: new) for old, new in _OPERATORS),
    *(("constant", _NUMBER, lambda match, step=step: str(int(match[0]) + step)) for step in (1, -1)),
    *(("constant", r"(\d+)'d(\d+)", lambda match, step=step: _sized(match, step)) for step in (1, -1)),
    ("width", r"\[(\d+):0\](?= [a-z, ]+;| \w+ )", lambda match: f"[{int(match[1]) - 1}:0]"),
    ("slice", r"(?<=\w)\[(\d+):(\d+)\]", lambda match: f"[{match[1]}:{int(match[2]) + 1}]"),
    ("signedness", r"(?<=reg) signed", lambda match: ""),
    *(("branch", r"\?", lambda match, new=new: new) for new in ("|| 1 ?", "&& 0 ?")),
    *(("condition", r"if \(", lambda match, new=new: new) for new in ("if (1 || ", "if (0 && ")),
    ("dropped statement", r"(?<!for \()\b[a-z]+(?:\[k\])? = [^;()]*(?:\([^;]*)?;", lambda match: ";"),
]  # fmt: skip
# Mutants that have the unit's bits for all inputs, as (number of a line, its text), and why.
EQUIVALENT = {
    "an exponent field of 1 counts as one of 0: both have the least exponent": [
        (20, "exponent = code[6:4] == 0 ? -6 : code[6:3] - 7;"),
        (30, "e = c[30:0] == 0 ? ZERO : c[30:24] == 0 ? -126 : c[30:23] - 127;"),
    ],
    "operands that are not there are x, which is neither NaN nor larger than any exponent": [
        (32, "for (k = 0; k <= 32; k = k + 1) begin"),
        (32, "for (k = 0; k < 33; k = k + 1) begin"),
        (32, "for (k = -1; k < 32; k = k + 1) begin"),
    ],
    "the ninth bit is cut off by the register": [
        (line, f"{x} = {port}[8*k +: 9];")
        for line, x, port in ((33, "x", "a"), (34, "y", "b"), (44, "x", "a"), (45, "y", "b"))
    ],
    "an exponent does not read the sign": [(33, "x = a[8*k +: 7];"), (34, "y = b[8*k +: 7];")],
    "the largest exponent is taken from an equal one": [(37, "if (exponents[k] >= top) top = exponents[k];")],
    "bits that are not there are x, which is not 1, and place 0 is the default": [
        (54, "for (k = 1; k <= 20; k = k + 1) if (magnitude[k]) place = k;"),
        (54, "for (k = 1; k < 21; k = k + 1) if (magnitude[k]) place = k;"),
        (54, "for (k = 0; k < 20; k = k + 1) if (magnitude[k]) place = k;"),
    ],
    "both branches are -126 for an exponent of -126": [
        (56, "last = (e >= -126 ? e : -126) - top;"),
        (56, "last = (e > -127 ? e : -126) - top;"),
    ],
    "the exponent of zeros is the largest only where all terms are zero, or an addend that is cut off to zero": [
        *(
            (17, f"localparam integer ZERO = -{e}; // of products that are zero, and of such an accumulator")
            for e in (132, 134)
        ),
        *(
            (30, f"e = {zero} ? ZERO : c[30:23] == 0 ? -126 : c[30:23] - 127;")
            for zero in ("c[30:0] == 1", "c[30:0] == -1", "c[30:1] == 0", "c[30:0] == 0 && 0")
        ),
    ],
    "a shift by 0 has no direction": [
        (57, "significand = last <= 0 ? magnitude << -last : magnitude >> last;"),
        (57, "significand = last < 1 ? magnitude << -last : magnitude >> last;"),
    ],
    "the magnitude of 0 is 0": [
        (52, "magnitude = sum <= 0 ? -sum : sum;"),
        (52, "magnitude = sum < 1 ? -sum : sum;"),
    ],
}


def mutants(unit):
    """(kind, unit) of units that differ from this one in one place."""
    begin = unit.index("reg nan")  # the ports stay
    for kind, pattern, change in MUTATIONS:
        for match in re.finditer(pattern, unit):
            if match.start() > begin and "//" not in unit[: match.start()].rpartition("\n")[2]:
                yield kind, unit[: match.start()] + change(match) + unit[match.end() :]


@pytest.mark.heavy
def test_mutants_are_caught(capsys, folder):
    unit = (FOLDER / "step.v").read_text()
    lines = unit.splitlines()
    listed = {line for found in EQUIVALENT.values() for line in found}
    caught, missed, equivalent = 0, [], set()
    for kind, mutant in mutants(unit):
        pairs = zip(mutant.splitlines(), lines, strict=True)
        changed = next((number, line.strip()) for number, (line, old) in enumerate(pairs, 1) if line != old)
        status = status_of(folder, mutant)
        if changed in listed and status == 0:
            equivalent.add(changed)
            continue
        if status == 0:
            missed.append((kind, *changed))
        elif status is not None:
            caught += 1
    total = caught + len(missed)
    with capsys.disabled():
        print(
            f"\n{caught} of {total} mutants are caught ({100 * caught / total:.1f} %); {len(equivalent)} are equivalent"
        )
        for kind, number, line in missed:
            print(f"  {kind}, line {number}: {line}")
    assert equivalent == listed
    assert total >= 100
    assert len(missed) <= 0.02 * total
