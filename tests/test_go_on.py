"""The option `--go-on` of tests/support/go_on.py, in runs that end early."""

import os
import subprocess
import sys
from pathlib import Path

import go_on

TESTS = """
import os

import pytest


@pytest.mark.parametrize("i", range(4))
def test_each(i):
    if os.environ["END"] == "killed" and i == 2:
        os._exit(9)
    assert os.environ["END"] != "red" or i != 2
"""


def test_runs_go_on_where_they_stopped(tmp_path):
    (tmp_path / "test_four.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(end):
        words = [sys.executable, "-m", "pytest", "-q", "-p", "go_on", "--go-on"]
        folder = str(Path(go_on.__file__).parent)
        variables = os.environ | {"END": end, "PYTHONPATH": folder, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        run = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        return run.stdout.strip().splitlines()[-1]

    run("killed")
    assert run("red").startswith("1 failed, 1 passed, 2 deselected")
    assert run("").startswith("1 passed, 3 deselected")
