"""Measurements in processes of their own, which may fail or be ended."""

import subprocess

import pytest

from benchmarks.support.vectors import measure_apart

PROGRAM = """
import os, sys
print('{"row": 1}', flush=True)
if sys.argv[-1] == "fail":
    sys.exit(2)
if sys.argv[-1] == "die":
    os.abort()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "measured.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "measured"


def test_rows_before_a_signal_are_kept(module, capfd):
    assert measure_apart(module, "avx2", []) == [{"row": 1}]
    assert not capfd.readouterr().err
    assert measure_apart(module, "avx2", ["die"]) == [{"row": 1}]
    assert "avx2: ended by SIGABRT; rows are missing" in capfd.readouterr().err
    with pytest.raises(subprocess.CalledProcessError):
        measure_apart(module, "avx2", ["fail"])
