"""Draws the picture of docs/insight.md: loss by mean bits of chosen formats, and of one format for all layers.

    python -m examples.choosing_report
    python -m examples.choosing_report --results my-results --picture choices.svg

It draws the files that `examples.choose_formats_torch` and `_jax` write with --json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from examples.command import console, file_of, folder, parsed, parser_of
from qcore.pictures import BLUE, FAINT, INK, ORANGE, SMALL, in_two_widths, picture

ROOT = Path(__file__).parent.parent
RESULTS, PICTURE = ROOT / "benchmarks" / "results", ROOT / "docs" / "choices.svg"
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
MODELS = {"gpt": "GPT, two blocks", "preresnet20": "PreResNet20"}

Row = dict[str, Any]


def read(folder: Path) -> dict[tuple[str, str], list[Row]]:
    """The rows of all result files, by framework and model."""
    runs: dict[tuple[str, str], list[Row]] = {}
    for framework in FRAMEWORKS:
        for row in json.loads((folder / f"choices-{framework}.json").read_text(encoding="utf-8"))["rows"]:
            runs.setdefault((framework, row["model"]), []).append(row)
    return runs


def short(text: str) -> str:
    """The elements' format of a candidate."""
    return text.removeprefix("scaled(").partition(",{")[0]


def draw(runs: dict[tuple[str, str], list[Row]], path: Path) -> None:
    title = "Loss on data that formats were not chosen on, by mean bits of weights and inputs"
    text = "Chosen formats: a line with dots. One format for all layers: crosses. Without rounding: a dashed line."
    with picture(path, 0.5 + 2.3 * len(runs), title, text) as figure:
        figure.suptitle("Loss on data that formats were not chosen on")
        panels: Any = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        for axes, ((framework, model), rows) in zip(panels, runs.items(), strict=True):
            axes.set(title=f"{MODELS[model]}, {FRAMEWORKS[framework]}", ylabel="loss")
            _panel(axes, rows)
        panels[-1].set_xlabel("mean bits of weights")
        panels[0].legend()


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    front, uniform = ([row for row in rows if row["kind"] == kind] for kind in ("front", "uniform"))
    bits, losses = ([row[name] for row in front] for name in ("bits", "test"))
    axes.plot(bits, losses, "-o", color=BLUE, markersize=2.5, linewidth=1.3, label="chosen by layer")
    bits, losses = ([row[name] for row in uniform] for name in ("bits", "test"))
    axes.plot(bits, losses, "x", color=ORANGE, markersize=5, label="one format")
    for row in uniform:
        name = short(next(iter(row["formats"].values())))
        place = row["bits"], row["test"]
        higher = any(other["bits"] == row["bits"] and other["test"] > row["test"] for other in uniform)
        axes.annotate(name, place, (4, -11 if higher else 3), textcoords="offset points", fontsize=SMALL, color=INK)
    wide = next(row["test"] for row in rows if row["kind"] == "wide")
    axes.axhline(wide, color=FAINT, linewidth=1, linestyle="--", label="without rounding")
    axes.set_xlim(3.8, 8.9)
    axes.margins(y=0.16)


def main(argv: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=folder, metavar="DIR", default=RESULTS, help="with choices-*.json")
    parser.add_argument("--picture", type=file_of(".svg"), metavar="FILE", default=str(PICTURE), help="for the picture")
    options = parsed(parser, argv)
    runs = read(options.results)
    in_two_widths(partial(draw, runs), Path(options.picture))
    console.print(f"{len(runs)} panels saved to {options.picture}")


if __name__ == "__main__":
    main()
