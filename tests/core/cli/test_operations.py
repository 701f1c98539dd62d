"""Vectors of operations: the results are those of fractions, and `check` finds the rows of a wrong unit."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from cli_support import refused

from qcore.__main__ import main
from qcore.cli.layouts import read_rows

VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
EVERY = sorted({Fraction(x) for x in VALUES[np.isfinite(VALUES)]})
EXACT = {
    "add": lambda x, y: x + y,
    "fma": lambda x, y, z: x * y + z,
}


def nearest(exact):
    """The numbers of e4m3fn next to a fraction, one or two; None beyond the last step."""
    if abs(exact) > 464:
        return None
    least = min(abs(one - exact) for one in EVERY)
    return {one for one in EVERY if abs(one - exact) == least}


@pytest.mark.parametrize("operation", EXACT)
def test_the_results_are_those_of_fractions(operation, tmp_path, capsys):
    path = tmp_path / "v.csv"
    assert main(["vectors", operation, "--format", "e4m3fn", "--rounding", "nearest", "-o", str(path)]) == 0
    assert main(["check", str(path)]) == 0
    assert ": 0 of " in capsys.readouterr().out
    rows = read_rows(path).fields
    assert len(rows) == 65536 or operation == "fma"
    seen = 0
    for row in rows[:: len(rows) // 80]:
        codes = [int(field, 16) for field in row]
        if not np.isfinite(VALUES[codes[:-1]]).all():
            continue
        exact = EXACT[operation](*(Fraction(VALUES[code]) for code in codes[:-1]))
        if (near := nearest(exact)) is not None:
            seen += 1
            assert Fraction(VALUES[codes[-1]]) in near
            assert len(near) == 1 or codes[-1] % 2 == 0
    assert seen > 30


@pytest.mark.parametrize(
    "options",
    [
        "divide --format bfloat16 --result float16 --rounding up -o v.json",
        "fma --format e2m1fn --result bfloat16 --rounding stochastic --key 3 -o v.csv",
        "maximum_finite --format posit8 --rounding nearest -o v.mem",
    ],
)
def test_other_operations(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *arguments, path = options.split()
    assert main(["vectors", *arguments, path]) == 0
    assert main(["check", path]) == 0


def test_a_wrong_row(tmp_path, capsys):
    path = tmp_path / "v.csv"
    main(["vectors", "sqrt", "--format", "e4m3fn", "--rounding", "nearest", "-o", str(path)])
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0x40] == "40,3b"  # the root of 2 is 1.375
    lines[0x40] = "40,3c"
    path.write_text("\n".join([header, *lines]), encoding="utf-8")
    capsys.readouterr()
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "1 of 256 rows differ (sqrt of e4m3fn to e4m3fn, nearest; 256 fields compared)" in out
    assert "line 66: x 40 = 2.0\n  result: expected 3b = 1.375, found 3c = 1.5" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("add --rounding nearest", "required: --format, with an operation"),
        ("add --format e5m2", "required: --rounding, with an operation"),
        ("add --format e5m2 --rounding nearest --dtype float32", "--dtype with add; allowed are --format and --result"),
        ("e5m2 --rounding nearest --format e4m3fn", "--format with e5m2; allowed is --format with an operation"),
        ("exp --format float32 --rounding nearest", "have 32 bits; allowed are 16 bits together"),
    ],
)
def test_wrong_calls(options, message, capsys, tmp_path):
    assert message in refused(capsys, "vectors", *options.split(), "-o", str(tmp_path / "never"))
