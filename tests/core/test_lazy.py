"""A process that is forked while another thread imports a room for the first time does not hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FORK = """
import faulthandler, os, sys, threading, time
import {package}

def use():
    {use}

thread = threading.Thread(target=use)
thread.start()
time.sleep({delay})
child = os.fork()
if not child:
    faulthandler.dump_traceback_later({longest}, exit=True)
    use()
    os._exit(0)
thread.join()
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


def forked(package, use, delay, longest, folder=ROOT):
    """The process that a forked one belongs to, at its end."""
    program = _FORK.format(package=package, use=use, delay=delay, longest=longest)
    path = os.pathsep.join(map(str, (ROOT, folder)))
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_fork_waits_for_an_import(tmp_path):
    """Of a package whose room takes long to import, and imports another one in turn."""
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text(
        "from qcore.lazy import subpackages\n__getattr__, __dir__ = subpackages('house', ['room', 'cellar'])\n",
        encoding="utf-8",
    )
    (tmp_path / "house" / "room.py").write_text("import time, house\ntime.sleep(0.3)\nhouse.cellar\n", encoding="utf-8")
    (tmp_path / "house" / "cellar.py").write_text("import time\ntime.sleep(0.2)\n", encoding="utf-8")
    for delay in (0.1, 0.4):
        done = forked("house", "house.room.house.cellar", delay, 5, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_room_that_forks_while_it_is_imported(tmp_path):
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text(
        "from qcore.lazy import subpackages\n__getattr__, __dir__ = subpackages('house', ['room'])\n", encoding="utf-8"
    )
    (tmp_path / "house" / "room.py").write_text(
        "import os\nchild = os.fork()\nchild or os._exit(0)\nstatus = os.waitpid(child, 0)[1]\n", encoding="utf-8"
    )
    program = "import house; assert house.room.status == 0"
    path = os.pathsep.join(map(str, (ROOT, tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=20,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.heavy
@pytest.mark.parametrize("delay", range(100))
def test_a_fork_during_a_first_product(delay):
    """At a hundred places of a call that imports rooms."""
    one = "numpy.ones((1, 1), 'float32')"
    product = f"qcore.linalg.matmul({one}, {one}, accumulator='hopper.wgmma.bf16')"
    done = forked("numpy, qcore", product, delay / 1000, 9)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.heavy
@pytest.mark.parametrize("delay", range(100))
def test_a_fork_during_a_first_kernel(delay, tmp_path, monkeypatch):
    """At a hundred places of a call that imports rooms and compiles."""
    pytest.importorskip("torch")
    monkeypatch.setenv("QTORCH_CACHE_DIR", str(tmp_path))
    done = forked("torch, qtorch", "qtorch.quantize(torch.ones(10), 'float(5,2)')", delay / 200, 30)
    assert (done.returncode, done.stderr) == (0, "")
