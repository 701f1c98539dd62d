"""What the examples of recipes share: which products a run has, the data, and the file of results.

A run is named by a recipe of `qcore.RECIPES` or `OWN`, by a recipe's or an accumulator's text, or "fp32", which changes
nothing. An accumulator sums the products of E4M3 inputs and weights and E5M2 gradients, forward and backward.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from examples import data, text
from examples.report import console
from qcore import RECIPES, Accumulator, Entry, Product, Recipe, parse
from qcore.files import write_text

MODELS = ("gpt", "preresnet20")
LETTERS, LENGTH, TEXTS = len(text.LETTERS), 32, 8  # of the GPT: its letters, and a batch
IMAGES = 32  # a batch of the network's
LOSS_SCALE = 1024.0  # so that few gradients are too small for 8 bits
WIDTHS, CHUNKS = (9, 7, 5, 3, 2), (1, 16, 64)
_E4M3, _E5M2, _BLOCKS = "scaled(e4m3fn,{...:None})", "scaled(e5m2,{...:None})", "block(8,dim=0)"
OWN = {
    # One power of two for each tensor, from this step's numbers; sums are exact, or in ascending order.
    "fp8_scaled": Recipe(
        [Entry("*", None, Product(_E4M3, _E4M3), Product(_E5M2, _E4M3), Product(_E5M2, _E4M3))],
    ),
    # Integers of 8 bits with one exponent for each example of an input, and each output of a weight.
    "bfp8": Recipe([Entry("*", None, *(Product(_BLOCKS, _BLOCKS),) * 3)]),
}
# WAGE has its own initial weights, scales of layers and optimizer: see examples.wage_torch. Four over six has no kernel
# in PyTorch, where a run takes ten minutes: `--recipe nvfp4_four_over_six`.
RUNS = ["fp32", *(name for name in RECIPES if name not in ("wage", "nvfp4_four_over_six")), *OWN]


def accumulator_text(man: int, chunk: int) -> str:
    """An accumulator of the picture: 6 bits of exponent, so many of fraction, rounded after so many terms."""
    return Accumulator(f"float(6,{man})", chunk=chunk).text


ACCUMULATORS = [accumulator_text(man, chunk) for man in WIDTHS for chunk in CHUNKS]

Batch = tuple[np.ndarray, np.ndarray]
Step = Callable[[np.ndarray, np.ndarray], Any]  # trains on a batch; its loss, a number


def recipe_of(name: str) -> Recipe | None:
    """The recipe of a run; None for fp32."""
    if name == "fp32":
        return None
    found = RECIPES.get(name) or OWN.get(name) or parse(name)
    if isinstance(found, Recipe):
        return found
    forward, gradient = Product("e4m3fn", "e4m3fn", found), Product("e5m2", "e4m3fn", found)
    return Recipe([Entry("*", None, forward, gradient, gradient)])


def batches(model: str, seed: int) -> Iterator[Batch]:
    """Letters and those that follow for the GPT; digits of 8 x 8 pixels and their classes for the network."""
    if model == "gpt":
        yield from text.batches(text.load(), TEXTS, LENGTH, seed)
    digits, random = replace(data.load(), batch=IMAGES), np.random.default_rng(seed)
    while True:
        yield from ((images[..., ::4, ::4], labels) for images, labels in digits.batches(random))


def arguments(description: str | None, argv: list[str] | None) -> argparse.Namespace:
    """Reads the options, and puts the names of runs in order."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt", help="default: gpt")
    parser.add_argument(
        "--recipe", nargs="+", metavar="NAME", help="recipes, accumulators or fp32; default: all recipes"
    )
    parser.add_argument("--accumulators", action="store_true", help="run the accumulators of the picture")
    parser.add_argument("--steps", type=int, default=20, help="default: 20")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order of data and stochastic rounding")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where to put the results, beside those of other runs"
    )
    options = parser.parse_args(argv)
    if options.recipe is None:
        options.recipe = ACCUMULATORS if options.accumulators else RUNS
    return options


def main(
    description: str | None, framework: str, trainer: Callable[[str, Recipe | None, int], Step], argv: Any
) -> None:
    """Trains a model by each recipe, prints what became of it, and keeps the losses.

    Args:
        description, argv: see `arguments`.
        framework: the results' name.
        trainer: makes the steps of a model with a recipe and a seed.
    """
    options = arguments(description, argv)
    for name in options.recipe:
        step, begin = trainer(options.model, recipe_of(name), options.seed), perf_counter()
        losses = [float(step(*batch)) for batch in islice(batches(options.model, options.seed), options.steps)]
        seconds = perf_counter() - begin
        run = {"model": options.model, "run": name, "framework": framework, "steps": options.steps}
        run |= {"seconds": round(seconds, 1), "losses": [round(loss, 4) for loss in losses]}
        console.print(f"{options.model}, {name}: loss {final(losses):.4f} after {options.steps} steps, {seconds:.1f} s")
        if options.json:
            _keep(options.json, run)


def final(losses: Iterable[float]) -> float:
    """The mean of the last tenth."""
    losses = list(losses)
    return float(np.mean(losses[-max(1, len(losses) // 10) :]))


def _keep(path: Path, run: dict[str, Any]) -> None:
    """Puts a run into a file, in the place of the one before it."""
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    same = ("model", "run", "framework")
    others = [one for one in runs if any(one[name] != run[name] for name in same)]
    write_text(path, "[\n" + ",\n".join(json.dumps(one) for one in [*others, run]) + "\n]\n")
