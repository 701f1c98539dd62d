"""What low precision costs in training: time, accuracy, and how far PyTorch and JAX go together.

Usage:
    python -m benchmarks.training                          steps of PreResNet20 against fp32 steps
    python -m benchmarks.training --json training.json
    python -m benchmarks.training --accuracy               digits or CIFAR10: two precisions, two frameworks, 3 seeds
    python -m benchmarks.training --agreement              1,000 steps of OptimLP and qjax.optim side by side
    python -m benchmarks.training --quick                  small batches, and no program that takes long to compile

Steps of all models take turns, and medians are compared, for each instruction set in a process of its own. A step is a
forward and a backward pass and a step of SGD, on 64 images of 32x32; in low precision all activations and errors are
rounded to float (5,2), images and logits to (6,9), or only copied, the least that an eager program can do. The
optimizer's own rounding is measured apart. The exit status is 0 also where limits are missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks import optim_step
from benchmarks.support import agreement
from benchmarks.support.results import write_results
from benchmarks.support.timing import Call, by_turns, clock_for, keep_pages, machine, versions
from benchmarks.support.vectors import instruction_sets, measure_apart
from qcore import FloatingPoint
from qcore.law.rounding import Rounding

LOW, HIGH = FloatingPoint(5, 2), FloatingPoint(6, 9)
COPIED = "copied"
SECONDS = 20.0  # for the steps of one kind, all models together
POINTS = 1.5  # of accuracy that low precision may lose
SEEDS = (0, 1, 2)
STEPS = 1000
WIDTH = 110  # columns, which the tables need
LIMITS = {  # times a step in fp32
    ("torch eager", "nearest"): 1.1,
    ("torch eager", "stochastic"): 1.3,
    ("torch compiled", "nearest"): 1.05,
    ("torch compiled", "stochastic"): 1.3,
    ("jax jitted", "nearest"): 1.1,
    ("OptimLP.step", "nearest"): optim_step.LIMIT,
}

Times = tuple[str, str, float, float, float, float]  # program, rounding, and the seconds of `Row`


@dataclass(frozen=True)
class Row:
    """One measurement on an instruction set ("jax": what XLA takes); times are medians in seconds a step."""

    vectors: str
    program: str
    rounding: str
    seconds: float
    baseline: float
    fastest: float
    fastest_baseline: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline

    @property
    def limit(self) -> float | None:
        return LIMITS.get((self.program, self.rounding))

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.ratio <= self.limit

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "limit": self.limit, "met": self.met}


def images(batch: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((batch, 3, 32, 32), np.float32), random.integers(0, 10, batch)


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.clone()


class Copy(torch.nn.Module):
    """Copies where a quantizer rounds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Copied.apply(x)  # type: ignore[return-value]


def torch_step(batch: int, rounding: str | None, compiled: bool) -> Call:
    """A step of PyTorch's PreResNet20; None rounds nothing, and COPIED copies instead."""
    from examples.models_torch import PreResNet20
    from qtorch.quant import Quantizer

    torch.manual_seed(0)
    makes: list[Callable[[], torch.nn.Module]] = []
    if rounding == COPIED:
        makes = [Copy, Copy]
    elif rounding:
        mode = Rounding(rounding)
        makes = [partial(Quantizer, number, number, mode, mode) for number in (LOW, HIGH)]
    model = PreResNet20(*makes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    program = torch.compile(model, fullgraph=True) if compiled else model
    inputs, targets = map(torch.from_numpy, images(batch))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(program(inputs), targets).backward()
        optimizer.step()

    return step


def jax_step(batch: int, rounding: str | None) -> Call:
    """A step of JAX's, jitted as a whole; only to nearest, as keys would have to be passed to each layer."""
    import jax
    import optax
    from flax import nnx

    from examples.models_jax import PreResNet20, Trainer, plain_updates
    from qjax import quantizer

    mode = Rounding(rounding or "nearest")
    functions = [quantizer(number, number, mode, mode) for number in (LOW, HIGH)] if rounding else []
    tx = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.05, momentum=0.9))
    trainer = Trainer(PreResNet20(*functions, rngs=nnx.Rngs(0)), tx, apply=plain_updates)
    inputs, targets = images(batch)

    def step() -> None:
        trainer.state, _ = trainer.step(trainer.state, inputs, targets)
        jax.block_until_ready(trainer.state)

    return step


def measure(program: str, make: Callable[[str | None], Call], roundings: list[str], seconds: float) -> Iterator[Times]:
    """A row for each rounding, all against the same fp32 steps."""
    calls = [make(rounding) for rounding in (*roundings, None)]
    *ours, baseline = by_turns(calls, clock_for("cpu"), seconds)
    for rounding, timing in zip(roundings, ours, strict=True):
        yield program, rounding, timing.median, baseline.median, timing.fastest, baseline.fastest


def optimizer_row(seconds: float) -> Times:
    """OptimLP's four quantizers on the 65 parameters, against the inner step."""
    row: dict[str, Any] = optim_step.measure("SGD", "nearest", seconds)
    return "OptimLP.step", "nearest", row["seconds"], row["inner"], row["fastest"], row["fastest_inner"]


def speed(vectors: str, quick: bool) -> Iterator[Times]:
    """All rows of this process: of torch, or for "jax" of JAX."""
    batch, roundings, seconds = (4 if quick else 64), ["nearest", "stochastic"], 0.0 if quick else SECONDS
    if vectors == "jax":
        yield from measure("jax jitted", partial(jax_step, batch), ["nearest"], seconds)
        return
    yield from measure("torch eager", lambda r: torch_step(batch, r, compiled=False), [*roundings, COPIED], seconds)
    yield optimizer_row(seconds)
    if not quick:
        yield from measure("torch compiled", lambda r: torch_step(batch, r, compiled=True), roundings, seconds)


def rows_of(vectors: str, quick: bool) -> list[Row]:
    """The rows of an instruction set, or of JAX, measured in a process of their own."""
    return [Row(**found) for found in measure_apart("benchmarks.training", vectors, ["--quick"] if quick else [])]


@dataclass(frozen=True)
class Accuracy:
    """Final test accuracies in percent, one for each seed, and what low precision loses on the average."""

    framework: str
    images: str
    epochs: int
    fp32: list[float]
    low: list[float]

    @property
    def loss(self) -> float:
        return statistics.mean(self.fp32) - statistics.mean(self.low)

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"loss": self.loss, "limit": POINTS, "met": self.loss <= POINTS}


def accuracy(framework: str, epochs: int, quick: bool, log: Console) -> Accuracy:
    """Runs the CIFAR10 program of the examples."""
    from examples.data import load

    if framework == "torch":
        from examples.cifar10_torch import train_fp32, train_low
    else:
        from examples.cifar10_jax import train_fp32, train_low
    data = load(64 if quick else None)
    finals: list[list[float]] = [[], []]
    for seed in SEEDS[: 1 if quick else None]:
        for train, found in zip((train_fp32, train_low), finals, strict=True):
            *_, last = train(data, epochs, seed)
            found.append(last.test)
            log.print(f"{framework}, seed {seed}, {train.__name__}: test {last.test:.2f} %")
    return Accuracy(framework, data.name, epochs, *finals)


def speed_table(rows: list[Row]) -> Table:
    table = Table("set", "program", "rounding", "low precision", "fp32", "ratio", "limit", box=SIMPLE)
    for row in rows:
        times = (f"{seconds * 1e3:.2f} ms" for seconds in (row.seconds, row.baseline))
        limit = "" if row.limit is None else f"<= {row.limit:g} {'met' if row.met else 'MISSED'}"
        style = "red" if row.met is False else None
        table.add_row(row.vectors, row.program, row.rounding, *times, f"{row.ratio:.2f}", limit, style=style)
    return table


def accuracy_table(found: list[Accuracy]) -> Table:
    table = Table("framework", "images", "fp32", "low precision", "points lost", "limit", box=SIMPLE)
    for one in found:
        means = (f"{statistics.mean(values):.2f} %" for values in (one.fp32, one.low))
        met = "met" if one.loss <= POINTS else "MISSED"
        table.add_row(one.framework, one.images, *means, f"{one.loss:.2f}", f"<= {POINTS:g} {met}")
    return table


def agreement_table(found: list[agreement.Agreement]) -> Table:
    table = Table("optimizer", "steps", "first to differ", "in", "differing at the end", box=SIMPLE)
    for one in found:
        where = ", ".join(f"{count} of {quantity}" for quantity, count in one.quantities.items())
        last = f"{one.last} of {one.elements}"
        table.add_row(one.optimizer, str(one.steps), "none" if one.first is None else str(one.first), where, last)
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Training in low precision: time, accuracy, agreement.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--accuracy", action="store_true", help="compare final test accuracies instead of times")
    what.add_argument("--agreement", action="store_true", help="compare PyTorch's and JAX's optimizers instead")
    parser.add_argument("--quick", action="store_true", help="small and few, to see that it runs")
    parser.add_argument("--epochs", type=int, default=12, help="of each training for --accuracy")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and results there")
    parser.add_argument(
        "--vectors", help="time steps on one instruction set, or jax, in this process; an object a line"
    )
    options = parser.parse_args(argv)
    if options.vectors:
        for times in speed(options.vectors, options.quick):
            row = Row(options.vectors, *times)
            print(f"{row.vectors}, {row.program}, {row.rounding}: {row.ratio:.2f} times fp32", file=sys.stderr)
            print(json.dumps(asdict(row)), flush=True)
        return 0
    console, log = (Console(stderr=stderr, highlight=False) for stderr in (False, True))
    console.width = max(console.width, WIDTH)
    facts = {"versions": versions(), "machine": machine("cpu")}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    results: list[Any] = []
    if options.accuracy:
        results += [accuracy(name, options.epochs, options.quick, log) for name in ("torch", "jax")]
        console.print(accuracy_table(results))
    elif options.agreement:
        results += [agreement.compare(name, 3 if options.quick else STEPS) for name in agreement.OPTIMIZERS]
        console.print(agreement_table(results))
    else:
        for vectors in [*instruction_sets(), *([] if options.quick else ["jax"])]:
            results += rows_of(vectors, options.quick)
        console.print(speed_table(results))
    if options.json:
        write_results(options.json, facts | {"rows": [result.record() for result in results]})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
