"""What the examples of recipes share: the recipes, the data, the loop with its checkpoints, and the file of results.

A run is named by a recipe of `qcore.RECIPES` or `OWN`, by a recipe's or an accumulator's text, or by "fp32", which has
float32 operands. An accumulator sums the products of E4M3 inputs and weights and E5M2 gradients, forward and backward.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from rich.box import SIMPLE
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from examples import data, text
from examples.command import at_least, console, parsed, parser_of
from qcore import RECIPES, BlockScaled, Entry, Product, Recipe, fold_in, parse, reproducible
from qcore.files import replaced, write_text

LETTERS, LENGTH, TEXTS = len(text.LETTERS), 32, 8  # of the GPT: its letters, and a batch
IMAGES = 32  # a batch of the network's
HELD_OUT = 50_000, 128  # letters at the end of the text that no run trains on, and texts of them to test with
LOSS_SCALE = 1024.0  # so that few gradients are too small for 8 bits
EVERY = {"gpt": 50, "preresnet20": 20}  # steps between tests, each with a checkpoint
WEIGHTS, ROUNDING, TESTING = range(3)  # what the keys of a run are for
CHECKPOINTS = Path("build") / "recipes"
STEPS = {"gpt": 400, "preresnet20": 120}
RATES = {"gpt": 0.01, "preresnet20": 0.05}  # the highest, after WARMUP steps; they fall to 0 on a cosine
WARMUP = 20

_BLOCKS, _E2M1 = "block(8,dim=0)", "scaled(e2m1fn,{...:None})"


def _mxfp4(first: int, second: int) -> Product:
    """A product of OCP MXFP4 along these axes of its operands."""
    return Product(BlockScaled("e2m1fn", {first: 32}), BlockScaled("e2m1fn", {second: 32}))


def _alike(product: Product) -> Recipe:
    """One product for all three of all layers."""
    return Recipe([Entry("*", None, product, product, product)])


OWN = {
    # MXFP4 to nearest, along the sums: four bits with a power of two for each 32 numbers, in all linear layers.
    "mxfp4_nearest": Recipe([Entry("*", "linear", _mxfp4(-1, -1), _mxfp4(-1, -2), _mxfp4(-2, -2))]),
    # Four bits with one power of two for each tensor, in all layers.
    "fp4_tensor": _alike(Product(_E2M1, _E2M1)),
    # Integers of 8 bits with one exponent for each example of an input, and each output of a weight.
    "bfp8": _alike(Product(_BLOCKS, _BLOCKS)),
}

# Sums of three bits of fraction, rounded after each product, and after the exact sum of 64 products.
NARROW, CHUNKED = "accumulator(float(6,3),chunk=1)", "accumulator(float(6,3),chunk=64)"
RUNS = {
    "gpt": [
        "fp32",
        "mxfp8",
        "nvfp4_pretraining",
        "mxfp4_nearest",
        "fp4_tensor",
        NARROW,
        CHUNKED,
    ],
    "preresnet20": ["fp32", "bfp8", "fp4_tensor"],
}

Batch = tuple[np.ndarray, np.ndarray]


class Trainer(Protocol):
    """A model in training, in one framework. Arrays have the names and layouts of torch's `state_dict`."""

    def step(self, rate: np.float32, key: tuple[int, int], inputs: np.ndarray, targets: np.ndarray) -> Any:
        """Trains on a batch; its loss, a float32 number."""

    def outputs(self, key: tuple[int, int], inputs: np.ndarray) -> np.ndarray:
        """What the model returns in evaluation."""
        ...

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters and statistics."""
        ...

    def slots(self) -> list[dict[str, np.ndarray]]:
        """What the optimizer keeps for each parameter."""
        ...

    def load(self, step: int, weights: Mapping[str, np.ndarray], slots: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Goes on from weights and slots after so many steps."""


@dataclass
class Run:
    """A run of training, as the file of results keeps it.

    Attributes:
        model, run, framework: the model's name, the recipe's, and "torch" or "jax".
        seed: of weights, order of data and stochastic rounding.
        steps: of the whole run.
        tests: for each test the step, the loss and the accuracy in percent on data that no run trains on.
        hashes: for each test the SHA-256 of all losses so far and all weights; its first 16 digits.
    """

    model: str
    run: str
    framework: str
    seed: int
    steps: int
    tests: list[tuple[int, float, float]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)

    @property
    def job(self) -> tuple[Any, ...]:
        """What names a run in a file of results."""
        return self.model, self.run, self.framework, self.seed

    @property
    def trained(self) -> int:
        """The steps up to the last test."""
        return self.tests[-1][0] if self.tests else 0

    @property
    def loss(self) -> float:
        """The last test's loss."""
        return self.tests[-1][1]

    @property
    def accuracy(self) -> float:
        """The last test's accuracy in percent."""
        return self.tests[-1][2]


def recipe_of(name: str) -> Recipe | None:
    """The recipe of a run; None for fp32."""
    if name == "fp32":
        return None
    found = RECIPES.get(name) or OWN.get(name) or parse(name)
    if isinstance(found, Recipe):
        return found
    forward, gradient = Product("e4m3fn", "e4m3fn", found), Product("e5m2", "e4m3fn", found)
    return Recipe([Entry("*", None, forward, gradient, gradient)])


def batches(model: str, seed: int, letters: np.ndarray | None = None) -> Iterator[Batch]:
    """Letters and those that follow for the GPT; digits of 8 x 8 pixels and their classes for the network.

    Args:
        model: "gpt" or "preresnet20".
        seed: of the order.
        letters: the GPT's text; None is all but what runs are tested with.
    """
    if model == "gpt":
        yield from text.batches(text.load()[: -HELD_OUT[0]] if letters is None else letters, TEXTS, LENGTH, seed)
    digits, random = replace(data.load(), batch=IMAGES), np.random.default_rng(seed)
    while True:
        yield from ((images[..., ::4, ::4], labels) for images, labels in digits.batches(random))


def test_batches(model: str) -> Iterator[Batch]:
    """The same data for all runs, on which no run trains."""
    if model == "gpt":
        letters, count = HELD_OUT
        inputs, targets = next(text.batches(text.load()[-letters:], count, LENGTH, seed=0))
        yield inputs, targets
    else:
        yield from ((images[..., ::4, ::4], labels) for images, labels in data.load().test_batches())


def tested(model: str, outputs: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """The mean loss, and the accuracy in percent, on the data to test with."""
    losses, right = [], []
    for inputs, targets in test_batches(model):
        logits = outputs(inputs).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
        losses.append(np.log(np.exp(logits).sum(-1)) - chosen)
        right.append(logits.argmax(-1) == targets)
    return float(np.mean(losses)), float(np.mean(right)) * 100


def trained(run: Run, trainer: Trainer, checkpoint: Path, follow: Callable[[int, float], None]) -> Run:
    """Trains, from the checkpoint if there is one, and keeps a checkpoint after each test.

    Args:
        run: what is trained.
        trainer: the model at its start.
        checkpoint: the file, .npz.
        follow: called with the number of steps so far, and the loss of the last one.

    Returns:
        The run with its tests and hashes.
    """
    schedule = reproducible.Cosine(RATES[run.model], run.steps, min(WARMUP, run.steps - 1))
    losses = np.zeros(0, np.float32)
    if checkpoint.exists():
        losses = _load(checkpoint, run, trainer)
        follow(len(losses), float(losses[-1]))
    for inputs, targets in islice(batches(run.model, run.seed), len(losses), run.steps):
        step = len(losses)
        rate = reproducible.rate(schedule, np.float32(step))
        loss = trainer.step(rate, fold_in((run.seed, ROUNDING), step), inputs, targets)
        losses = np.append(losses, np.float32(loss))
        follow(len(losses), float(loss))
        if _is_tested(run, len(losses)):
            loss, accuracy = tested(run.model, lambda x: trainer.outputs((run.seed, TESTING), x))
            run.tests.append((len(losses), round(loss, 5), round(accuracy, 3)))
            run.hashes.append(digest({"losses": losses} | trainer.weights()))
            _save(checkpoint, run, trainer, losses)
    return run


def _is_tested(run: Run, step: int) -> bool:
    return step % EVERY[run.model] == 0 or step == run.steps


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The first 16 digits of a SHA-256 of names, shapes and bits, in the order of names."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()[:16]


def _save(path: Path, run: Run, trainer: Trainer, losses: np.ndarray) -> None:
    """Writes all that the rest of a run needs."""
    parts = {"weights": trainer.weights()} | {f"slot{i}": slot for i, slot in enumerate(trainer.slots())}
    arrays: dict[str, Any] = {f"{part}/{name}": array for part, found in parts.items() for name, array in found.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as fresh:
        np.savez(fresh, losses=losses, run=json.dumps(asdict(run)), **arrays)


def _load(path: Path, run: Run, trainer: Trainer) -> np.ndarray:
    """Reads a checkpoint of either framework into a run and its trainer; the losses so far."""
    with np.load(path) as file:
        before = _run(**json.loads(str(file["run"])))
        run.tests, run.hashes = before.tests, before.hashes
        parts: dict[str, dict[str, np.ndarray]] = {}
        for name in file.files:
            part, _, inner = name.partition("/")
            parts.setdefault(part, {})[inner] = file[name]
    weights, losses = parts.pop("weights"), parts.pop("losses")[""]
    trainer.load(len(losses), weights, [parts[name] for name in sorted(parts) if name.startswith("slot")])
    return losses


def _by_model(values: Mapping[str, int]) -> str:
    return ", ".join(f"{value} for {model}" for model, value in values.items())


def _recipe_name(name: str) -> str:
    """An argument that names a recipe."""
    try:
        recipe_of(name)
    except (TypeError, ValueError) as error:
        allowed = f"allowed are {', '.join(['fp32', *RECIPES, *OWN])}, and texts of recipes and accumulators"
        raise argparse.ArgumentTypeError(f"{name!r}; {allowed}" if name.isidentifier() else str(error)) from None
    return name


def arguments(description: str | None, argv: list[str] | None) -> argparse.Namespace:
    """Reads the options, and completes the names of runs and the number of steps."""
    parser = parser_of(description)
    add = parser.add_argument
    add("--model", choices=list(RUNS), default="gpt", help="what is trained")
    add(
        "--recipe",
        nargs="+",
        type=_recipe_name,
        metavar="NAME",
        help="what to run (default: as in docs)",
    )
    add("--steps", type=at_least(1), metavar="N", help=f"of training (default: {_by_model(STEPS)})")
    add("--seeds", nargs="+", type=at_least(0), default=[0], metavar="SEED", help="a run each: weights, data, rounding")
    add("--json", type=Path, metavar="FILE", help="keep results there, and skip runs that it has")
    add("--checkpoints", type=Path, metavar="DIR", default=CHECKPOINTS, help="from which interrupted runs go on")
    options = parsed(parser, argv)
    options.recipe = options.recipe or RUNS[options.model]
    options.steps = options.steps or STEPS[options.model]
    return options


def train_all(
    description: str | None,
    framework: str,
    make: Callable[[str, Recipe | None, int], Trainer],
    argv: list[str] | None = None,
) -> None:
    """Trains a model by each recipe with each seed, prints a table of what came out, and keeps it.

    Args:
        description, argv: see `arguments`.
        framework: the results' name.
        make: makes the trainer of a model with a recipe and a seed.
    """
    options = arguments(description, argv)
    runs = []
    for seed in options.seeds:
        for name in options.recipe:
            run = Run(options.model, name, framework, seed, options.steps)
            found = kept(options.json, run)
            if found is None:
                trainer = make(run.model, recipe_of(name), seed)
                found = _followed(run, trainer, options.checkpoints / _file_name(run))
                if options.json:
                    keep(options.json, found)
            runs.append(found)
    console.print(_table(runs), _outcome(runs), sep="\n")


def _followed(run: Run, trainer: Trainer, checkpoint: Path) -> Run:
    """Trains with a bar on a terminal, and with a line after each test."""
    name, begin = f"{run.model}, {run.run}, seed {run.seed}", perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=run.steps)

        def follow(steps: int, loss: float) -> None:
            progress.update(bar, completed=steps)
            if _is_tested(run, steps):
                console.print(f"{name}, step {steps} of {run.steps}: training loss {loss:.4f}")

        try:
            run = trained(run, trainer, checkpoint, follow)
        except KeyboardInterrupt:
            console.print(f"interrupted; the same command goes on from the last test (in {checkpoint.parent})")
            sys.exit(130)
    checkpoint.unlink()
    seconds = perf_counter() - begin
    console.print(f"{name}: test loss {run.loss:.4f}, accuracy {run.accuracy:.2f} %, {seconds:.1f} s, {run.hashes[-1]}")
    return run


def _file_name(run: Run) -> str:
    """A checkpoint's name: another one for another number of steps, since the rates differ."""
    name = re.sub(r"\W+", "-", run.run).strip("-")
    short = name if len(name) <= 40 else hashlib.sha256(run.run.encode()).hexdigest()[:16]
    return f"{run.framework}-{run.model}-{short}-{run.seed}-{run.steps}.npz"


def _table(runs: Sequence[Run]) -> Table:
    """The last test of each recipe: the mean of the seeds, and the deviation."""
    table = Table("recipe", box=SIMPLE, title=f"{runs[0].model} in {runs[0].framework}, {runs[0].steps} steps")
    for column in ("test loss", "test accuracy", "seeds"):
        table.add_column(column, justify="right")
    for name in dict.fromkeys(run.run for run in runs):
        ours = [run for run in runs if run.run == name]
        losses, accuracies = (spread([getattr(run, what) for run in ours]) for what in ("loss", "accuracy"))
        table.add_row(name, f"{losses[0]:.4f} ± {losses[1]:.4f}", f"{accuracies[0]:.2f} %", str(len(ours)))
    return table


def _outcome(runs: Sequence[Run]) -> str:
    """What came out, in a sentence."""
    best, worst = (choose(runs, key=lambda run: run.loss) for choose in (min, max))
    least, largest = (f"{run.loss:.4f} of {run.run} with seed {run.seed}" for run in (best, worst))
    return f"After {best.steps} steps the least test loss is {least}, the largest {largest}."


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard deviation of a sample; the latter is 0 for one number."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def read(path: Path) -> list[Run]:
    """The runs of a file of results."""
    return [_run(**one) for one in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def _run(tests: list[list[Any]], **parts: Any) -> Run:
    """A run as it was before JSON made lists of its tests."""
    return Run(tests=[(step, loss, accuracy) for step, loss, accuracy in tests], **parts)


def kept(path: Path | None, run: Run) -> Run | None:
    """A run that a file has already, to its end."""
    runs = read(path) if path else []
    return next((one for one in runs if (one.job, one.trained) == (run.job, run.steps)), None)


def keep(path: Path, run: Run) -> None:
    """Puts a run into a file, in the place of the one before it."""
    runs = [*(one for one in read(path) if one.job != run.job), run]
    write_text(path, "[\n" + ",\n".join(json.dumps(asdict(one)) for one in runs) + "\n]\n")
