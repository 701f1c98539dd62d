"""Three newcomers' walks: PyTorch, JAX, a chip designer. A page's commands, to the letter, in a fresh environment.

The first block of a page, or of its tab, makes the environment, with the extras that the page names and no others.
Then all its programs, and the commands between them, run in order in one session of that environment. After them runs
what one writes on the same day: `days`.
"""

import os
import shutil
import subprocess
import sys
import time

import pytest
from documents import ROOT, WALKS, blocks, in_shell

pytestmark = pytest.mark.heavy
MOST_SECONDS = 600  # what the pages promise
# The script of each walk, behind what it needs in addition.
DAYS = {
    "PyTorch": "python tests/docs/days/pytorch.py",
    "JAX": "pip install -q -c constraints.txt equinox && python tests/docs/days/flax_and_equinox.py",
    "": "python tests/docs/days/chips.py",
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(command, folder):
    """What commands of a shell print. Nobody types: an interpreter that they start ends at once."""
    settings = {"cwd": folder, "env": ENVIRONMENT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], **settings)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


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


@pytest.mark.parametrize(("page", "tab"), WALKS)
def test_a_newcomer_walks_in_ten_minutes(copy, page, tab):
    start = time.monotonic()
    package, foreign = WALKS[page, tab]
    (language, begin), *rest = blocks(f"docs/{page}.md", tab)
    assert language == "sh"
    assert begin.startswith("python3 -m venv .venv\n. .venv/bin/activate\n")
    run(begin, copy)
    translate = {"python": str, "sh": in_shell}
    steps = [translate[language](text) for language, text in rest if language in translate]
    assert len(steps) > 4
    where = f"from importlib.util import find_spec\nprint({package}.__file__, *map(find_spec, {foreign}))\n"
    (copy / "walk.py").write_text("\n".join([*steps, where]), encoding="utf-8")
    printed = run(". .venv/bin/activate\npython walk.py\n", copy)
    assert printed.splitlines()[-1] == " ".join([str(copy / package / "__init__.py"), *("None" for _ in foreign)])
    print(f"{page} {tab}: {time.monotonic() - start:.0f} s")
    assert time.monotonic() - start < MOST_SECONDS
    print(run(f". .venv/bin/activate\n{DAYS[tab]}\n", copy))
