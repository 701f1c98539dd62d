"""What the examples of choosing share: the models' data, the candidates, the closing table and the file of results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from benchmarks.support.results import write_results
from examples import data, text
from examples.command import at_least, console, parsed, parser_of
from examples.recipes import LENGTH
from qcore import Recipe
from qcore.insight import Choice

MODELS = {"gpt": 300, "preresnet20": 120}  # and for how many steps they are trained
# Numbers of 8, 6 and 4 bits, with one power of two for each tensor.
CANDIDATES = tuple(
    f"scaled({element},{{...:None}})" for element in ("e4m3fn", "e2m3fn", "e3m2fn", "e2m1fn", "fixed(4,2)")
)
BUDGET = 5.0
TEXTS, IMAGES = 64, 1280  # of the data that formats are chosen on, so many that the choice does not fit them only

Batch = tuple[np.ndarray, np.ndarray]
Model = Any  # a module of torch, or a function of inputs in JAX
Choose = Callable[..., Choice]  # `choose_formats` of qtorch.insight or qjax.insight
LossOf = Callable[[Model, list[Batch]], float]
Lower = Callable[[Model, Recipe], Model]  # of a copy


def arguments(description: str | None, argv: list[str] | None) -> argparse.Namespace:
    parser = parser_of(description)
    add = parser.add_argument
    add("--model", choices=MODELS, nargs="+", default=list(MODELS), help="what is trained")
    add("--steps", type=at_least(1), metavar="N", help="of training (default: 300 for gpt, 120 for preresnet20)")
    add("--budget", type=at_least(4.0), default=BUDGET, metavar="BITS", help="the largest mean of bits of all weights")
    add("--limit", type=at_least(1), metavar="N", help="texts or images to choose and to test on (default: all)")
    add("--seed", type=at_least(0), default=0, help="of weights and data")
    add("--json", type=Path, metavar="FILE", help="keep the results there")
    return parsed(parser, argv)


def examples_of(model: str, limit: int | None) -> tuple[list[Batch], list[Batch]]:
    """Batches to choose on, from the training data, and others to test on, which training has not seen.

    The GPT's are parts of one text at random: training may have seen some of their letters, in other parts.
    """
    if model == "gpt":
        found = text.batches(text.load(), min(TEXTS, limit or TEXTS), LENGTH, seed=1)
        return [next(found)], [next(found)]
    digits = data.load()
    chosen, tested = slice(min(IMAGES, limit or IMAGES)), slice(limit)
    return [(digits.images[chosen, :, ::4, ::4], digits.labels[chosen])], [
        (digits.test_images[tested, :, ::4, ::4], digits.test_labels[tested])
    ]


def choose_all(
    description: str | None,
    framework: str,
    train: Callable[[str, int, int], Model],
    choose: Choose,
    lowered: Lower,
    loss_of: LossOf,
    argv: list[str] | None,
) -> None:
    """Trains models without rounding, chooses formats for their layers, and tests the choices on other data.

    Args:
        description, argv: see `arguments`.
        framework: the results' name.
        train: makes a trained model from its name, steps and a seed.
        choose: `choose_formats`.
        lowered: a copy of a model with a recipe.
        loss_of: the mean loss of a model on batches.
    """
    options = arguments(description, argv)
    for name in options.model:
        steps = options.steps or MODELS[name]
        console.print(f"{name}: {steps} steps of training without rounding, then the loss of each format in each layer")
        with console.status(f"{name}: training and choosing"):
            model = train(name, steps, options.seed)
            chosen_on, tested_on = examples_of(name, options.limit)
            choice = choose(model, chosen_on, options.budget, CANDIDATES)
        rows = [{"kind": "wide", "bits": 32.0, "loss": loss_of(model, chosen_on), "test": loss_of(model, tested_on)}]
        for kind, points in (("uniform", choice.uniform), ("front", choice.front)):
            for point in points:
                test = loss_of(lowered(model, point.recipe), tested_on)
                rows.append(
                    {"kind": kind, "bits": point.bits, "loss": point.loss, "test": test, "formats": point.formats}
                )
        kept = [{"model": name, "framework": framework, "measured": choice.measured} | _rounded(row) for row in rows]
        console.print(_table(f"{name}, {framework}: loss by mean bits", kept))
        console.print(f"chosen for {options.budget:g} bits: {choice.recipe.text}", markup=False)
        best = min(row["loss"] for row in rows if row["kind"] == "front" and row["bits"] <= options.budget)
        console.print(f"{name}: the loss is {best:.4f} with these formats, {rows[0]['loss']:.4f} without rounding.")
        if options.json:
            _keep(options.json, kept)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in row.items()}


def better(rows: list[dict[str, Any]], uniform: dict[str, Any]) -> dict[str, Any]:
    """The point of the front with the least loss that has at most the bits of a uniform one."""
    front = [row for row in rows if row["kind"] == "front" and row["bits"] <= uniform["bits"]]
    return min(front, key=lambda row: row["loss"])


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table("one format for all sites", box=SIMPLE, title=title)
    for column in ("bits", "loss", "on other data", "chosen: bits", "loss", "on other data"):
        table.add_column(column, justify="right")
    for row in rows:
        if row["kind"] == "uniform":
            other = better(rows, row)
            numbers = (f"{one[column]:.{digits}f}" for one in (row, other) for column, digits in COLUMNS)
            table.add_row(next(iter(row["formats"].values())), *numbers)
    wide = rows[0]
    table.add_row("without rounding", "32.00", f"{wide['loss']:.4f}", f"{wide['test']:.4f}", "", "", "")
    return table


COLUMNS = (("bits", 2), ("loss", 4), ("test", 4))


def _keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Puts the rows of a model into a file, in the place of those before."""
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    same = ("model", "framework")
    others = [row for row in before if any(row[name] != rows[0][name] for name in same)]
    write_results(path, {"candidates": list(CANDIDATES), "rows": [*others, *rows]})
