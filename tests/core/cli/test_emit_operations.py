"""The C of `qbits emit-c` for operations: compiled strictly, it has the codes of `qcore.arithmetic`."""

import ctypes
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_support import refused
from emit_support import COMPILERS, available, with_another_result

from qcore import arithmetic
from qcore.__main__ import main
from qcore.cli.emit_c import emit

QUICK = [("multiply", "e2m1fn", "e4m3fn", "nearest"), ("divide", "float16", "float16", "up")]
CASES = [
    *QUICK,
    ("add", "e4m3fn", "bfloat16", "odd"),
    ("subtract", "float32", "float32", "nearest"),
    ("fma", "e4m3fn", "posit8", "nearest"),
    ("faa", "bfloat16", "float32", "down"),
    ("reciprocal", "float32", "e5m2", "toward_zero"),
    ("sqrt", "float32", "float32", "odd"),
    ("rsqrt", "float32", "bfloat16", "nearest_away"),
    ("exp", "bfloat16", "e4m3fn", "nearest"),
    ("clamp", "float16", "float16", "nearest"),
    ("copysign", "float16", "float16", "nearest"),
    ("minimum_magnitude_number", "bfloat16", "bfloat16", "nearest"),
    ("maximum_finite", "float16", "fixed(8,4)", "nearest"),
    ("negate", "float32", "float32", "nearest"),
]


def compiled(command, source, *options):
    program = source.with_suffix(".so" if options else ".out")
    subprocess.run([*command, *options, str(source), "-o", str(program), "-lm"], check=True)
    return program


def check(command, case, folder):
    """Random codes of operands, and the file's own vectors."""
    operation, number, result, mode = case
    name = next(iter(emit(operation, mode, folder, number, result)))
    source = folder / name
    function = getattr(ctypes.CDLL(str(compiled(command, source, "-fPIC", "-shared"))), source.stem)
    function.restype, count = ctypes.c_uint32, arithmetic.call.OPERATIONS[operation].operands
    codes = np.random.default_rng(1).integers(0, 1 << arithmetic.call.check_number(number).bits, (count, 2000))
    codes = codes.astype(np.uint32)
    expected = getattr(arithmetic, f"{operation}_codes")(*codes, operands=number, result=result, rounding=mode)
    assert [function(*map(ctypes.c_uint32, row)) for row in codes.T.tolist()] == expected.tolist()
    assert subprocess.run([compiled(command, source, "-DSELF_CHECK", "-O1")], capture_output=True).returncode == 0


@pytest.mark.parametrize("command", [*available()])
@pytest.mark.parametrize("case", QUICK, ids=" ".join)
def test_codes(command, case, tmp_path):
    check(command, case, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("command", [*available()])
def test_all_kinds(command, tmp_path):
    for case in CASES:
        check(command, case, tmp_path)


def test_a_damaged_file_says_so(tmp_path, capsys):
    options = shlex.split(f"fma --format e2m1fn --rounding nearest -o {tmp_path}")
    assert main(["emit-c", *options]) == 0
    source = Path(capsys.readouterr().out.split()[0])
    source.write_text(with_another_result(source.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run([compiled(COMPILERS["gcc"], source, "-DSELF_CHECK")], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.endswith("1 of 1024 vectors differ\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("add", "operands=None with 'add'; allowed is one format for an operation"),
        ("add --format e5m2 --rounding stochastic", "rounding='stochastic' of an operation; allowed are modes without"),
        ("e5m2 --result e4m3fn", "result='e4m3fn' with 'e5m2'; allowed is a result with an operation"),
        ("e5m2 --format e4m3fn", "operands='e4m3fn' with 'e5m2'; allowed is one format for an operation"),
        ("next_up --format e4m3fn", "format='next_up': allowed"),
    ],
)
def test_wrong_calls(options, message, capsys):
    found = refused(capsys, "emit-c", *options.split())
    assert message in found, found
