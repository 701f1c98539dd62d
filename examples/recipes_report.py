"""The pictures and the tables of docs/recipes.md, from the results that `examples.recipes_torch` and `_jax` have kept.

python -m examples.recipes_report
python -m examples.recipes_report --results my-results --pictures .
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from examples.pictures import DOCS, RESULTS, save_figure
from examples.recipes import ACCUMULATORS, CHUNKS, MODELS, WIDTHS, accumulator_text, final
from qcore import parse

FRAMEWORKS = ("torch", "jax")
TITLES = {"gpt": "GPT, 2 blocks", "preresnet20": "PreResNet20", "torch": "PyTorch", "jax": "JAX"}
_SMOOTH = 5  # steps whose losses are one point's mean


class Run(NamedTuple):
    """A training run, as `examples.recipes.main` keeps it."""

    model: str
    run: str
    framework: str
    steps: int
    seconds: float
    losses: list[float]


def read(folder: Path) -> list[Run]:
    """The runs of all files of a folder."""
    return [
        Run(**one)
        for path in sorted(folder.glob("recipes-*.json"))
        for one in json.loads(path.read_text(encoding="utf-8"))
    ]


def table(runs: Sequence[Run]) -> str:
    """Markdown: the final loss of each recipe, by model and framework."""
    recipes = list(dict.fromkeys(run.run for run in runs if run.run not in ACCUMULATORS))
    columns = [(model, framework) for model in MODELS for framework in FRAMEWORKS]
    found = {(run.run, run.model, run.framework): f"{final(run.losses):.3f}" for run in runs}
    heads = [f"{TITLES[model]}, {TITLES[framework]}" for model, framework in columns]
    lines = [f"| {' | '.join(['recipe', *heads])} |", "| --- |" + " ---: |" * len(heads)]
    for recipe in recipes:
        cells = [found.get((recipe, *column), "") for column in columns]
        lines.append(f"| {' | '.join([f'`{recipe}`', *cells])} |")
    return "\n".join(lines)


def accumulator_table(runs: Sequence[Run]) -> str:
    """Markdown: the final loss of the GPT by the accumulator's bits of fraction and chunk."""
    found = {run.run: f"{final(run.losses):.3f}" for run in runs if run.framework == "torch"}
    heads = ["bits of fraction", *(f"chunks of {chunk}" for chunk in CHUNKS)]
    lines = [f"| {' | '.join(heads)} |", "| ---: |" + " ---: |" * len(CHUNKS)]
    for man in WIDTHS:
        cells = [found.get(accumulator_text(man, chunk), "") for chunk in CHUNKS]
        lines.append(f"| {' | '.join([str(man), *cells])} |")
    return "\n".join(lines)


def draw_losses(runs: Sequence[Run], path: Path) -> None:
    """Loss by step: a row of plots for each model, a column for each framework."""
    figure, rows = plt.subplots(2, 2, figsize=(9, 6), layout="constrained", sharey="row", squeeze=False)
    for model, row in zip(MODELS, rows, strict=True):
        for framework, axes in zip(FRAMEWORKS, row, strict=True):
            for run in runs:
                if (run.model, run.framework) == (model, framework) and run.run not in ACCUMULATORS:
                    means = np.convolve(run.losses, np.full(_SMOOTH, 1 / _SMOOTH), "valid")
                    axes.plot(np.arange(len(means)) + _SMOOTH, means, label=run.run, linewidth=1)
            axes.set(title=f"{TITLES[model]}, {TITLES[framework]}", xlabel="step", ylabel="training loss")
            axes.grid(alpha=0.3)
    _legend(rows[0][0])
    save_figure(figure, path)


def draw_accumulators(runs: Sequence[Run], path: Path) -> None:
    """Final loss of the GPT by the accumulator's mantissa bits, a line for each chunk."""
    figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    lines: dict[int, list[tuple[int, float]]] = {}
    steps = 0
    for run in runs:
        if run.run in ACCUMULATORS:
            accumulator, steps = parse(run.run), run.steps
            lines.setdefault(accumulator.chunk, []).append((accumulator.number.man, final(run.losses)))
    for chunk, points in sorted(lines.items()):
        axes.plot(*zip(*sorted(points), strict=True), marker=".", label=f"chunks of {chunk}")
    for run in runs:
        if steps and (run.model, run.run, run.framework) == ("gpt", "fp32", "torch"):
            axes.axhline(final(run.losses[:steps]), color="gray", linestyle="--", label="fp32")
    axes.set(xlabel="bits of fraction of the accumulator", ylabel=f"training loss after {steps} steps")
    axes.grid(alpha=0.3)
    _legend(axes)
    save_figure(figure, path)


def _legend(axes: Any) -> None:
    """Names the lines, if there are any."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="x-small")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder; default: examples/results")
    parser.add_argument("--pictures", type=Path, default=DOCS, help="a folder; default: docs")
    options = parser.parse_args(argv)
    runs = read(options.results)
    draw_losses(runs, options.pictures / "recipes-losses.svg")
    draw_accumulators(runs, options.pictures / "recipes-accumulators.svg")
    print(table(runs), accumulator_table(runs), sep="\n\n")


if __name__ == "__main__":
    main()
