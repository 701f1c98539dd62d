"""The pictures and the tables of docs/recipes.md, from the results that `examples.recipes_torch` and `_jax` have kept.

python -m examples.recipes_report
python -m examples.recipes_report --results my-results --pictures .
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from examples.pictures import DOCS, RESULTS
from examples.recipes import ACCUMULATORS, CHUNKS, MODELS, WIDTHS, accumulator_text, final
from qcore import parse
from qcore.pictures import CURVES, draw_curves, picture

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
    """Loss by step in PyTorch: for each model panels with fp32 and some of the recipes."""
    panels = []
    for model in MODELS:
        found = {run.run: _smooth(run) for run in runs if (run.model, run.framework) == (model, "torch")}
        base = {name: found.pop(name) for name in ("fp32",) if name in found}
        names = [name for name in found if name not in ACCUMULATORS]
        groups = [names[i : i + len(CURVES) - 1] for i in range(0, len(names), len(CURVES) - 1)] or [[]]
        panels += [(TITLES[model], base | {name: found[name] for name in group}) for group in groups]
    text = "; ".join(f"{title}: {', '.join(curves)}" for title, curves in panels)
    with picture(path, 2.1 * len(panels), "Training loss by step in PyTorch", text) as figure:
        for axes, (title, curves) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            axes.set(title=title, xlabel="step", ylabel="training loss")
            draw_curves(axes, curves)


def _smooth(run: Run) -> list[tuple[float, float]]:
    means = np.convolve(run.losses, np.full(_SMOOTH, 1 / _SMOOTH), "valid")
    return [(step, float(mean)) for step, mean in enumerate(means, _SMOOTH)]


def draw_accumulators(runs: Sequence[Run], path: Path) -> None:
    """Final loss of the GPT by the accumulator's mantissa bits, a line for each chunk."""
    lines: dict[int, list[tuple[float, float]]] = {}
    steps = 0
    for run in runs:
        if run.run in ACCUMULATORS:
            accumulator, steps = parse(run.run), run.steps
            lines.setdefault(accumulator.chunk, []).append((accumulator.number.man, final(run.losses)))
    curves = {f"chunks of {chunk}": sorted(points) for chunk, points in sorted(lines.items())}
    wide = [run for run in runs if (run.model, run.run, run.framework) == ("gpt", "fp32", "torch")]
    level = ("fp32", final(wide[0].losses[:steps])) if steps and wide else None
    title, ylabel = "Training loss by accumulator", f"training loss after {steps} steps"
    with picture(path, 2.8, title, f"{ylabel} by bits of fraction: {', '.join(curves)}") as figure:
        axes = figure.subplots()
        axes.set(xlabel="bits of fraction of the accumulator", ylabel=ylabel)
        draw_curves(axes, curves, level)


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
