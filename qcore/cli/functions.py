"""This platform's elementary functions on the inputs where libraries could differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np

from qcore import numerics
from qcore.numerics.elementary.laws import PARTS

FILE = Path(numerics.__file__).parent / "hard_inputs.json"
ROOMS = {"qcore": "qcore.numerics", "qtorch": "qtorch.reproducible", "qjax": "qjax.reproducible"}


def hard_inputs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each function the inputs that were found and the law's results, as bit patterns."""
    results = {name: row["hard"] | row["defined"] for name, row in json.loads(FILE.read_text()).items()}
    return {name: (_patterns(row), _patterns(row.values())) for name, row in results.items()}


def _patterns(texts: Iterable[str]) -> np.ndarray:
    return np.array([int(text, 16) for text in texts], np.uint32)


def differing(package: str) -> Iterator[tuple[str, int, np.ndarray]]:
    """(function, number of its hard inputs, bit patterns of those whose result is not the law's)."""
    xp = import_module(ROOMS[package]).Names
    for name, (inputs, right) in hard_inputs().items():
        with xp.arithmetic():
            found = np.asarray(PARTS[name](xp, xp.from_numpy(inputs.view(np.float32))))
        yield name, len(inputs), inputs[found.view(np.uint32) != right]


def report(package: str) -> tuple[str, int]:
    """What was found, and how many results are wrong."""
    lines, wrong, total = [], 0, 0
    for name, count, inputs in differing(package):
        wrong, total = wrong + len(inputs), total + count
        if len(inputs):
            lines.append(f"{name}: {len(inputs)} of {count} are wrong, the first at {inputs[0]:08x}")
    return "\n".join([f"{package}: {wrong} of {total} hard inputs have wrong results", *lines]), wrong
