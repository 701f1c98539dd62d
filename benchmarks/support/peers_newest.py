"""The newest versions of other packages beside the pinned ones: which of the tests of `tests/peers` they move.

A peer is installed alone into a folder of its own, without its requirements, and tests run in a process that finds it
there first. The environment stays as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.support.timing import ROOT


class Newest(NamedTuple):
    """A peer: the tests that compare with it, its distributions, and pytest's marks of these tests."""

    tests: tuple[str, ...]
    distributions: tuple[str, ...] = ()
    marks: str = "not heavy and not triton"


NEWEST = {
    "apytypes": Newest(("test_apytypes.py", "test_apytypes_products.py")),
    "bitsandbytes": Newest(("test_bitsandbytes.py",), marks="not triton"),
    "en-dtypes": Newest(("test_en_dtypes.py",)),
    "gfloat": Newest(("test_gfloat.py",)),
    "gguf": Newest(("test_gguf.py",)),
    "hls4ml": Newest(("test_hls4ml.py",), marks="not triton"),
    "ml_dtypes": Newest(("test_ml_dtypes.py", "test_casts.py")),
    "mlx": Newest(("test_mlx.py",), ("mlx", "mlx-cpu")),
    "mmasim": Newest(("test_mma_sim.py",)),
    "qonnx": Newest(("test_qonnx.py",), marks="not triton"),
    "softposit": Newest(("test_softposit.py",)),
    "torchao": Newest(("test_torchao.py", "test_blocks.py")),
}


class Moved(NamedTuple):
    """What the newest version of a peer did: `result` is pytest's last line, or why there is none."""

    peer: str
    pinned: str
    newest: str
    result: str
    failed: tuple[str, ...] = ()


def moved(peers: Iterable[str]) -> Iterator[Moved]:
    """Installs and tests the newest versions of peers, one after the other."""
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8")))
    for peer in peers:
        with TemporaryDirectory() as folder:
            yield _moved(peer, pins.get(peer, "not pinned"), Path(folder))


def _moved(peer: str, pinned: str, folder: Path) -> Moved:
    newest = NEWEST[peer]
    if problem := _install(newest.distributions or (peer,), folder):
        return Moved(peer, pinned, "-", f"cannot be installed: {problem}")
    version = next(one.version for one in metadata.distributions(name=peer, path=[str(folder)]))
    if version == pinned:
        return Moved(peer, pinned, version, "the pinned version is the newest")
    lines = _tested(newest, folder)
    failed = tuple(line.partition(" ")[2].partition(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR")))
    return Moved(peer, pinned, version, lines[-1] if lines else "pytest printed nothing", failed)


def _install(distributions: tuple[str, ...], folder: Path) -> str:
    """Installs the newest versions into a folder; the last line of pip's errors, or nothing."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    command += ["--no-deps", "--target", str(folder), *distributions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
    return lines[-1] if done.returncode else ""


def _tested(newest: Newest, folder: Path) -> list[str]:
    """The lines of pytest's summary."""
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rfE", "-m", newest.marks]
    command += [f"tests/peers/{name}" for name in newest.tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.strip()]
