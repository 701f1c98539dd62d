"""The quick tests on the oldest and newest releases of NumPy, JAX and torch, and on other Pythons of this machine.

    python -m benchmarks.releases                                  all quick tests, in each environment
    python -m benchmarks.releases --sample --only oldest           tests of each kind of law, and of private parts
    python -m benchmarks.releases --keep torch                     torch of constraints.txt in all environments

The oldest releases are the lower bounds of pyproject.toml, the newest are those that pip finds. PIP_EXTRA_INDEX_URL may
name an index with torch for CPUs. Environments are made in a temporary folder. What cannot be had is a row with its
reason. The exit status is 1 where a test failed, else 0.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.support.results import write_results
from benchmarks.support.timing import ROOT, machine, versions

SAMPLE = """
tests/parity/test_golden.py tests/parity/test_bits.py tests/core/law tests/jax/test_parameters.py
tests/jax/test_jaxprs.py tests/jax/rounding tests/torch/test_internals.py tests/torch/rounding
""".split()
# What the sample needs beside the extra `all`; all tests need the extra `test`.
TOOLS = ["equinox", "hypothesis", "ml_dtypes", "mpmath", "pytest", "pytest-xdist", "scikit-learn", "setuptools"]
PYTHONS = [f"python3.{minor}" for minor in range(11, 15)]
SHOWN = ("numpy", "jax", "jaxlib", "flax", "optax", "torch")


class Row(NamedTuple):
    """An environment and what the tests said: `result` is pytest's last line, or why there is none."""

    environment: str
    python: str
    result: str
    versions: dict[str, str] | None = None
    failed: tuple[str, ...] = ()


def requirements(extra: str) -> list[str]:
    """What pyproject.toml asks for with an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def asked(extra: str) -> Iterator[str]:
        for one in project["optional-dependencies"][extra]:
            if inner := re.match(r"qbits\[(.*)\]", one):
                for name in inner[1].split(","):
                    yield from asked(name)
            else:
                yield one

    return list(dict.fromkeys([*project["dependencies"], *asked(extra)]))


def oldest(requirement: str) -> str:
    return requirement.replace(">=", "==")


def kept(requirement: str, names: Sequence[str]) -> str:
    """A requirement, or for one of the names the release of constraints.txt."""
    name = re.split(r"[^\w.-]", requirement)[0]
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8")))
    return f"{name}=={pins[name]}" if name in names else requirement


def tried(environment: str, python: str, asked: Sequence[str], tests: Sequence[str]) -> Row:
    """Makes an environment and runs tests there."""
    with TemporaryDirectory() as folder:
        interpreter = Path(folder) / "bin" / "python"
        if subprocess.run([python, "-m", "venv", folder], capture_output=True).returncode:
            return Row(environment, python, "makes no environment")
        if problem := _said(interpreter, "-m", "pip", "install", "-q", *asked):
            return Row(environment, python, f"cannot be had: {problem[-1]}")
        listed = "from importlib.metadata import distributions as d\nfor x in d(): print(x.name, x.version)"
        found = dict(line.split() for line in _output(interpreter, "-c", listed).splitlines())
        settings = ["-q", "-n", "0", "-p", "no:cacheprovider", "-rfE"]
        lines = [line for line in _output(interpreter, "-m", "pytest", *settings, *tests).splitlines() if line.strip()]
    bad = (line for line in lines if line.startswith(("FAILED", "ERROR")))
    failed = tuple(line.partition(" ")[2].partition(" - ")[0] for line in bad)
    known = {name: found[name] for name in SHOWN if name in found}
    return Row(environment, python, lines[-1].strip("= ") if lines else "pytest printed nothing", known, failed)


def _output(interpreter: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [str(interpreter), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    ).stdout


def _said(interpreter: Path, *arguments: str) -> list[str]:
    """The lines of an error; none if the command succeeds."""
    done = subprocess.run([str(interpreter), *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stderr.strip().splitlines() or [f"status {done.returncode}"] if done.returncode else []


def rows(only: Sequence[str], keep: Sequence[str], sample: bool) -> Iterator[Row]:
    """One environment after the other."""
    extra, tools, tests = ("all", TOOLS, SAMPLE) if sample else ("test", [], [])
    asked = [kept(one, keep) for one in requirements(extra)] + tools
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if "oldest" in only:
        yield tried("oldest", here, [oldest(one) for one in asked], tests)
    if "newest" in only:
        yield tried("newest", here, asked, tests)
    for python in PYTHONS if "pythons" in only else ():
        if python == here:
            continue
        if shutil.which(python):
            without_torch = [one for one in asked if not one.startswith("torch")]
            yield tried("newest without torch", python, without_torch, [*apart_from_torch(tests or ["tests"])])
        else:
            yield Row("newest without torch", python, "not installed")


def apart_from_torch(tests: Sequence[str]) -> Iterator[str]:
    """The files of tests that do not import torch, nor modules of tests/support that do."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "tests" / "support").glob("*.py")}
    before, needs = set[str](), {"torch", "qtorch"}
    while before != needs:
        before, needs = needs, needs | {name for name, text in texts.items() if _imports(text, needs)}
    for one in tests:
        path = ROOT / one
        for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            if not _imports(file.read_text(encoding="utf-8"), needs):
                yield str(file.relative_to(ROOT))


def _imports(text: str, names: Collection[str]) -> bool:
    return re.search(rf"^\s*(import|from) ({'|'.join(names)})\b", text, re.MULTILINE) is not None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.releases", description=(__doc__ or "").split("\n")[0])
    names = ("oldest", "newest", "pythons")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these environments")
    parser.add_argument("--keep", nargs="+", metavar="NAME", default=[], help="packages whose pinned release is taken")
    parser.add_argument("--sample", action="store_true", help="a tenth of the tests")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    found: list[Row] = []
    for row in rows(options.only, options.keep, options.sample):
        found.append(row)
        print(f"{row.environment}, {row.python}: {row.result}", row.versions or "", flush=True)
        for name in row.failed:
            print(f"    failed: {name}", flush=True)
    if options.json:
        facts: dict[str, Any] = {"versions": versions(), "machine": machine("cpu")}
        settings = {"tests": SAMPLE if options.sample else "all quick ones", "kept": list(options.keep)}
        write_results(options.json, facts | {"settings": settings, "rows": [row._asdict() for row in found]})
    return int(any(row.failed for row in found))


if __name__ == "__main__":
    sys.exit(main())
