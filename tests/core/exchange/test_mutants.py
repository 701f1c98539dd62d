"""Mutants of files of each kind that is read: a ValueError, or numbers; in bounds of memory and time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def read(first, count, folder):
    """What `tests/support/mutants.py` prints, and the mutant with which it ended."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "mutants.py"), str(first), str(count), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    last = (folder / "last").read_text(encoding="ascii") if (folder / "last").exists() else ""
    return f"{run.stdout}{run.stderr}", f"exit {run.returncode} at {last}"


def check(first, count, folder):
    found, end = read(first, count, folder)
    assert found.startswith("read "), f"{found} {end}"
    assert int(found.split()[1]) > 40 * count


@pytest.mark.parametrize("count", [1, pytest.param(8, marks=pytest.mark.heavy)])
def test_mutants(count, tmp_path):
    check(0, count, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(10_000, 50_000, 1_000))
def test_many_mutants(first, tmp_path):
    check(first, 1_000, tmp_path)
