"""Whether another processor or system has the same bits: what its Python computes, beside what this one does.

    python -m benchmarks.platforms --python ./python-arm64                     NumPy: all formats and modes
    python -m benchmarks.platforms --python ./python-arm64 --kernels           each kind of qtorch's kernels instead
    python -m benchmarks.platforms --python ./python-arm64 --json arm64.json

The other Python needs numpy and ml_dtypes, for kernels also torch and a C compiler. `python_arm64.sh` makes an emulated
one. Of each case, which is a format and mode or a call of kernels, the SHA-256 of the results is compared.
The exit status is 1 where any differs, else 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import qcore
from benchmarks.support.inputs import BLOCKS, FORMATS, MODES, MORE, hard_inputs
from benchmarks.support.kernel_cases import PATTERNS, RANDOM, kernel_digests, kernel_inputs
from benchmarks.support.results import write_results
from qcore import Number, Rounding
from qcore.formats.block import BlockNumber
from qcore.formats.number import prepare
from qcore.law.carrier import FLOAT32
from qcore.law.rounding import RoundingName

ROOT = Path(__file__).parent.parent
COUNT = 7000  # inputs of a format, beside the patterns
PATTERNS_NAME = "patterns"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.platforms", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", metavar="COMMAND", help="starts the other Python")
    parser.add_argument("--kernels", action="store_true", help="qtorch's kernels instead of NumPy")
    parser.add_argument("--json", metavar="FILE", type=Path, help="writes what was found")
    parser.add_argument("--digests", metavar="FILE", type=Path, help="writes digests of this Python, and ends")
    parser.add_argument("--inputs", metavar="FILE", type=Path, help="with --digests: arrays to round")
    arguments = parser.parse_args(argv)
    if arguments.digests:
        write_results(arguments.digests, digests_of(dict(np.load(arguments.inputs)), arguments.kernels))
        return 0
    if not arguments.python:
        parser.error("--python is needed")
    inputs = kernel_inputs() if arguments.kernels else all_inputs()
    ours = digests_of(inputs, arguments.kernels)
    begin = perf_counter()
    theirs = digests_by(shlex.split(arguments.python), inputs, arguments.kernels)
    seconds = round(perf_counter() - begin, 1)
    found = compared(ours, theirs)
    for row in found["rows"]:
        print(f"{row['part']}, {row['mode']}: {row['cases']} cases, {row['results']:,} results, {row['differ']} differ")
    print(f"{theirs['machine']} beside {ours['machine']}, in {seconds} s; {', '.join(found['differing'])}")
    if arguments.json:
        write_results(arguments.json, found | {"seconds": seconds})
    return int(bool(found["differing"]))


def all_inputs() -> dict[str, np.ndarray]:
    """The bits of hard inputs for each format, and the patterns.

    The other Python gets them: processors differ in the NaN that a conversion to float32 makes, and so in hard inputs.
    """
    formats = {number.text: number for _, number in _all_cases()}
    inputs = {
        f"{text} {place}": x.view(np.uint32)
        for text, number in formats.items()
        for place, x in enumerate(hard_inputs(number, COUNT))
    }
    return inputs | {PATTERNS_NAME: PATTERNS}


def digests_of(inputs: dict[str, np.ndarray], kernels: bool) -> dict[str, Any]:
    """Versions, and the number of results and the digest of each part, mode and format, of this Python."""
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    if kernels:
        import torch

        warnings.simplefilter("error", RuntimeWarning)  # a kernel that cannot be made would not be compared
        versions["torch"] = torch.__version__
        cases = kernel_digests(inputs)
    else:
        arrays: dict[str, list[np.ndarray]] = {}
        for name, bits in inputs.items():
            arrays.setdefault(name.partition(" ")[0], []).append(bits.view(np.float32))
        cases = {f"numpy {mode} {number.text}": _case(arrays, number, mode) for mode, number in _all_cases()}
    return {"versions": versions, "machine": f"{platform.system()} {platform.machine()}", "cases": cases}


def digests_by(command: Sequence[str], inputs: dict[str, np.ndarray], kernels: bool) -> dict[str, Any]:
    """The same of another Python."""
    with tempfile.TemporaryDirectory() as folder:
        given, file = Path(folder) / "inputs.npz", Path(folder) / "digests.json"
        np.savez(given, **inputs)  # type: ignore[arg-type]
        options = ["--inputs", str(given), "--digests", str(file), *["--kernels"] * kernels]
        subprocess.run([*command, "-m", "benchmarks.platforms", *options], cwd=ROOT, check=True)
        return json.loads(file.read_text(encoding="utf-8"))


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """What differs, and how much was compared: a row for each part and mode."""
    if ours["cases"].keys() != theirs["cases"].keys():
        raise SystemExit("the two have different cases: both must be of the same commit")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    differing = []
    for name, (results, digest) in ours["cases"].items():
        part, mode, _ = name.split(" ", 2)
        row = rows.setdefault((part, mode), {"part": part, "mode": mode, "cases": 0, "results": 0, "differ": 0})
        row["cases"] += 1
        row["results"] += results
        if theirs["cases"][name] != [results, digest]:
            row["differ"] += 1
            differing.append(name)
    versions = {f"{name} there": value for name, value in theirs["versions"].items()}
    return {
        "versions": ours["versions"] | versions | {"commit": _commit()},
        "machine": {"system": ours["machine"], "system there": theirs["machine"]},
        "differing": differing,
        "rows": list(rows.values()),
    }


def _all_cases() -> Iterator[tuple[RoundingName, Number]]:
    """All formats in all modes that they have."""
    for mode in MODES:
        for number in FORMATS + MORE + BLOCKS:
            try:
                prepare(number, Rounding(mode), FLOAT32, None, False)
            except ValueError:
                continue
            yield mode, number


def _case(arrays: dict[str, list[np.ndarray]], number: Number, mode: RoundingName) -> list[Any]:
    """How many results there are, and the digest of inputs and results."""
    digest, count = hashlib.sha256(), 0
    settings = RANDOM if mode.startswith("stochastic") else {}
    for x in arrays[PATTERNS_NAME] + arrays[number.text]:
        x = x.reshape(1, 2, -1) if x.ndim == 1 and isinstance(number, BlockNumber) else x
        y = qcore.quantize(x, number, mode, **settings)
        digest.update(x.tobytes())
        digest.update(y.tobytes())
        count += y.size
    return [count, digest.hexdigest()]


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
