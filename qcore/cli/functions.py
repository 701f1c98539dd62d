"""This platform's elementary functions on the inputs where libraries could differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from qcore import reproducible
from qcore.reproducible.elementary import PARTS

FILE = Path(reproducible.__file__).parent / "hard_inputs.json"
ROOMS = {"qcore": "qcore.reproducible", "qtorch": "qtorch.reproducible", "qjax": "qjax.reproducible"}
COMPILERS = {"qtorch": ("torch", "compile"), "qjax": ("jax", "jit")}


def hard_inputs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each function the inputs that were found and the law's results, as bit patterns."""
    results = {name: row["hard"] | row["defined"] for name, row in json.loads(FILE.read_text(encoding="utf-8")).items()}
    return {name: (_patterns(row), _patterns(row.values())) for name, row in results.items()}


def _patterns(texts: Iterable[str]) -> np.ndarray:
    return np.array([int(text, 16) for text in texts], np.uint32)


def differing(package: str, compiled: bool = False) -> Iterator[tuple[str, int, np.ndarray]]:
    """(function, number of its hard inputs, bit patterns of the inputs whose result differs from the law).

    With `compiled`, all functions are one program of `torch.compile` or `jax.jit`, whose compilers contract and rewrite
    operations.
    """
    xp, hard = import_module(ROOMS[package]).Names, hard_inputs()

    def program(arrays: list[Any]) -> list[Any]:
        with xp.arithmetic():
            return [PARTS[name](xp, x) for name, x in zip(hard, arrays, strict=True)]

    if compiled:
        framework, compiler = COMPILERS[package]
        program = getattr(import_module(framework), compiler)(program)
    longest = max(len(inputs) for inputs, _ in hard.values())  # of one length: XLA compiles eager operations by shape
    results = program([xp.asarray(np.resize(inputs, longest).view(np.float32)) for inputs, _ in hard.values()])
    for (name, (inputs, right)), found in zip(hard.items(), results, strict=True):
        yield name, len(inputs), inputs[np.asarray(found).view(np.uint32)[: len(inputs)] != right]


def report(package: str) -> tuple[str, int]:
    """The text of the results, eager and compiled, and the number of wrong results."""
    lines, all_wrong = [], 0
    for compiled in (False, True) if package in COMPILERS else (False,):
        found = [*differing(package, compiled)]
        wrong, total = sum(len(inputs) for *_, inputs in found), sum(count for _, count, _ in found)
        title = f"{package}, compiled" if compiled else package
        lines.append(f"{title}: {wrong} of {total} hard inputs have wrong results")
        lines += [
            f"  {name}: {len(inputs)} of {count} are wrong, the first at {inputs[0]:08x}"
            for name, count, inputs in found
            if len(inputs)
        ]
        all_wrong += wrong
    return "\n".join(lines), all_wrong
