"""Result files of `benchmarks/results`, and what figures say of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

Record = dict[str, Any]


def results(name: str) -> Record:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


MODELS = {"mlp": "MLP", "preresnet20": "PreResNet20", "gpt": "GPT, two blocks"}
OPTIMIZERS = {f"gpt_{name.lower()}": f"GPT with {name}" for name in ("AdamW8bit", "FlashAdamW", "Muon")}
ARITHMETIC = {"float32": "float32", "fp8": "FP8", "mxfp4": "MXFP4, stochastic"}


def trained() -> list[tuple[str, str, list[Record]]]:
    """Each model in each arithmetic that the same training ran, and those of further optimizers, with their runs."""
    rows = results("same_training")["runs"]
    pairs = [(model, kind) for model in (*MODELS, *OPTIMIZERS) for kind in ARITHMETIC]
    found = [(*pair, [row for row in rows if (row["model"], row["arithmetic"]) == pair]) for pair in pairs]
    return [one for one in found if one[2]]


def link(name: str, text: str = "all rows") -> str:
    return f"[{text}](../benchmarks/results/{name}.json)"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heading, ["---"] * len(heading), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def together(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows that differ in their first cell, a name, only: one row with all names."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        names.setdefault(tuple(cells), []).append(f"`{name}`")
    return [(", ".join(found), *cells) for cells, found in names.items()]


def span(values: Iterable[float], digits: int = 2) -> str:
    """The least and the greatest of numbers."""
    found = sorted(values)
    least, greatest = (f"{value:.{digits}f}" for value in (found[0], found[-1]))
    return least if least == greatest else f"{least} to {greatest}"


def where(record: Record) -> str:
    """The machine and the versions of a result file."""
    machine, versions = record["machine"], record["versions"]
    packages = f"torch {versions['torch'].partition('+')[0]}, jax {versions['jax']}"
    cores = f"{machine['cores']} core{'s' if machine['cores'] > 1 else ''}"
    cpu = machine["cpu"].replace("(R)", "").removesuffix(" Processor")
    return f"{cpu} ({cores}, {machine['vectors']}), {packages}, commit {versions['commit']}"
