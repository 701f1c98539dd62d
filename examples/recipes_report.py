"""Draws the pictures and prints the tables of docs/recipes.md, from results of `examples.recipes_torch` and `_jax`.

    python -m examples.recipes_report
    python -m examples.recipes_report --results my-results --pictures .

Nothing is trained: the numbers are those of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from examples import recipes
from examples.command import console, folder, parsed, parser_of
from examples.pictures import DOCS, RESULTS
from examples.recipes import CHUNKED, NARROW, Run, spread
from qcore.pictures import draw_curves, in_two_widths, picture

TITLES = {"gpt": "GPT", "preresnet20": "PreResNet20", NARROW: "6-3 sums", CHUNKED: "6-3 sums, chunks of 64"}
PANELS = [
    ("GPT: too few bits", "gpt", "loss", ["fp32", "fp4_tensor", NARROW, CHUNKED]),
    ("GPT: recipes that train", "gpt", "loss above fp32", ["mxfp8", "nvfp4_pretraining", "mxfp4_nearest"]),
    ("PreResNet20", "preresnet20", "accuracy (%)", recipes.RUNS["preresnet20"]),
]


def read(folder: Path) -> list[Run]:
    """The runs of all files of a folder."""
    return [run for path in sorted(folder.glob("recipes-*.json")) for run in recipes.read(path)]


def named(runs: Sequence[Run], model: str, framework: str = "torch") -> dict[str, list[Run]]:
    """The runs of a model in a framework by the names of recipes, in the order of `RUNS`."""
    ours = [run for run in runs if (run.model, run.framework) == (model, framework)]
    names = sorted({run.run for run in ours}, key=(recipes.RUNS[model] + [run.run for run in ours]).index)
    return {name: sorted((run for run in ours if run.run == name), key=lambda run: run.seed) for name in names}


def table(runs: Sequence[Run], model: str) -> str:
    """Markdown: what came out of each recipe, the mean of the seeds and the standard deviation."""
    heads = [
        "recipe",
        "test loss",
        "above fp32",
        "test accuracy",
        "seeds",
        "hash of seed 0",
        "steps with the same bits in JAX",
    ]
    lines = [f"| {' | '.join(heads)} |", "| --- | ---: | ---: | ---: | ---: | --- | ---: |"]
    found, in_jax = named(runs, model), named(runs, model, "jax")
    base = {run.seed: run.loss for run in found.get("fp32", [])}
    for name, ours in found.items():
        above = [run.loss - base[run.seed] for run in ours if run.seed in base]
        cells = [
            f"`{name}`",
            _number([run.loss for run in ours], 3),
            _number(above, 3) if above and name != "fp32" else "",
            f"{_number([run.accuracy for run in ours], 1)} %",
            str(len(ours)),
            f"`{ours[0].hashes[-1]}`",
            str(same_steps(ours[0], in_jax[name][0])) if name in in_jax else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def same_steps(one: Run, other: Run) -> int:
    """Up to which step two runs have the same hashes."""
    steps = 0
    for (step, *_), a, b in zip(one.tests, one.hashes, other.hashes, strict=False):
        if a != b:
            break
        steps = step
    return steps


def _number(values: Sequence[float], digits: int) -> str:
    mean, deviation = spread(values)
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if len(values) > 1 else "")


def pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """The runs in PyTorch with the same run in JAX, where there is one."""
    in_jax = [run for run in runs if run.framework == "jax"]
    return [(run, other) for run in runs for other in in_jax if run.job == replace(other, framework="torch").job]


def compared(runs: Sequence[Run]) -> str:
    """How many hashes of both frameworks there are, and how many differ."""
    found = pairs(runs)
    hashes = [(a, b) for one, other in found for a, b in zip(one.hashes, other.hashes, strict=False)]
    steps, differ = sum(min(one.trained, other.trained) for one, other in found), sum(a != b for a, b in hashes)
    return f"{len(found)} runs of {steps:,} steps in both frameworks: {len(hashes)} hashes, {differ} differ"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Tests by step: a panel for recipes that fail, one for recipes that train, one for the digits."""
    curves = ", ".join(TITLES.get(name, name) for *_, names in PANELS for name in names)
    with picture(path, 8.0, "Training by recipe", f"Tests by step; bars are deviations of seeds. {curves}.") as figure:
        for axes, (title, model, what, names) in zip(figure.subplots(len(PANELS), 1), PANELS, strict=True):
            axes.set(title=title, xlabel="step", ylabel=f"test {what}")
            found = named(runs, model)
            spreads = {name: _spreads(found[name], what, found["fp32"]) for name in names if name in found}
            draw_curves(axes, {TITLES.get(name, name): [one[:2] for one in points] for name, points in spreads.items()})
            for points, line in zip(spreads.values(), axes.lines, strict=True):
                axes.errorbar(*zip(*points, strict=True), fmt="none", ecolor=line.get_color(), elinewidth=1)


def _spreads(ours: Sequence[Run], what: str, base: Sequence[Run]) -> list[tuple[int, float, float]]:
    """For each test the step, the mean of the seeds and the deviation."""
    found = []
    for i, (step, *_) in enumerate(ours[0].tests):
        if what == "loss above fp32":
            of_base = {run.seed: run.tests[i][1] for run in base}
            values = [run.tests[i][1] - of_base[run.seed] for run in ours]
        else:
            values = [run.tests[i][1 if what == "loss" else 2] for run in ours]
        found.append((step, *spread(values)))
    return found


def main(argv: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=folder, metavar="DIR", default=RESULTS, help="with recipes-*.json")
    parser.add_argument("--pictures", type=folder, metavar="DIR", default=DOCS, help="for the pictures")
    options = parsed(parser, argv)
    runs, path = read(options.results), options.pictures / "recipes.svg"
    in_two_widths(partial(draw, runs), path)
    for model in recipes.RUNS:
        console.print(f"\n{TITLES[model]}\n\n{table(runs, model)}", markup=False)
    console.print(f"\n{compared(runs)}; the picture is in {path}")


if __name__ == "__main__":
    main()
