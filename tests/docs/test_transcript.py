"""A newcomer's ten minutes: README.md and docs/start-pytorch.md, followed to the letter in a fresh environment.

Commands are those of the pages, word for word; Python reads the programs of a page where a reader would paste them.
"""

import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from documents import ROOT, programs, text_of

pytestmark = pytest.mark.heavy
MOST_SECONDS = 600
PAGE = "docs/start-pytorch.md"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(command, folder, text=""):
    """What a command of a shell prints."""
    settings = {"cwd": folder, "env": ENVIRONMENT, "input": text, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], **settings)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def commands(name):
    """The commands of a page that make an environment."""
    return re.findall(r"^python3 -m venv .*$", text_of(name), re.M)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The tracked files, in a folder of their own."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs the repository, whose files git lists")
    asked = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "numpy"]
    if subprocess.run(asked, capture_output=True, env=ENVIRONMENT).returncode:
        pytest.skip("needs an index of packages, which pip does not reach")
    folder = tmp_path_factory.mktemp("copy")
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_a_newcomer_trains_in_8_bits_within_ten_minutes(copy):
    """From no environment to the README's equal bits, and a model that learns in e5m2, on the clock."""
    start = time.monotonic()
    install, last = commands("README.md")[0].rsplit(" && ", 1)
    assert last == ".venv/bin/python -m benchmarks.consistency"
    run(install, copy)
    (example,) = programs("README.md")
    run(".venv/bin/python", copy, example)
    (begin,) = commands(PAGE)
    assert begin.endswith("&& .venv/bin/python")
    train = "\n".join(programs(PAGE))
    where = "\nimport qtorch\nprint(qtorch.__file__, losses[0] / losses[-1])\n"
    file, better = run(begin, copy, train + where).splitlines()[-1].split(" ")
    assert file == str(copy / "qtorch/__init__.py")
    assert float(better) > 10
    assert time.monotonic() - start < MOST_SECONDS
