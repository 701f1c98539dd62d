"""A newcomer's ten minutes: the pages on how to start, followed to the letter in a fresh environment.

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


@pytest.fixture
def copy(tmp_path):
    """The tracked files, in a folder of their own."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs the repository, whose files git lists")
    asked = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "numpy"]
    if subprocess.run(asked, capture_output=True, env=ENVIRONMENT).returncode:
        pytest.skip("needs an index of packages, which pip does not reach")
    for name in filter(None, listed.stdout.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(("page", "package"), [("start-pytorch", "qtorch"), ("start-jax", "qjax")])
def test_a_newcomer_trains_in_8_bits_within_ten_minutes(copy, page, package):
    """From no environment to a model that learns in e5m2, on the clock, with the packages of the page's extra alone."""
    start = time.monotonic()
    (begin,) = commands(f"docs/{page}.md")
    assert begin.endswith("&& .venv/bin/python")
    train = "\n".join(programs(f"docs/{page}.md"))
    where = f"\nimport {package}\nprint({package}.__file__, float(losses[0] / losses[-1]))\n"
    file, better = run(begin, copy, train + where).splitlines()[-1].split(" ")
    assert file == str(copy / package / "__init__.py")
    assert float(better) > 10
    assert time.monotonic() - start < MOST_SECONDS
