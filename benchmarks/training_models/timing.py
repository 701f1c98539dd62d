"""How long steps with defined bits take, as multiples of the ordinary float32 step of the same framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import torch
import torch._dynamo
from rich.box import SIMPLE
from rich.table import Table

from benchmarks.support.timing import by_turns, clock_for
from benchmarks.training_models.data import batch_of
from benchmarks.training_models.jax_run import JaxRun
from benchmarks.training_models.state import DATA, key_for
from benchmarks.training_models.torch_run import TorchRun
from benchmarks.training_models.trainings import TRAININGS

LIMITS = {  # by model: with operands whose sums are exact, and with float32's
    "mlp": {"fp8": 2.0, "float32": 6.0},
    "gpt": {"fp8": 3.0, "float32": 6.0},
    "preresnet20": {"fp8": 5.0, "float32": 10.0},
}
LIMITED = ("float32", "fp8")
FRAMEWORKS: dict[str, Callable[[str, str | None], Any]] = {
    "torch eager": TorchRun,
    "torch compiled": partial(TorchRun, compiled=True),
    "jax jit": JaxRun,
}


@dataclass(frozen=True)
class Row:
    """One measurement; times are medians in seconds a step, and MXFP4 has no limit."""

    model: str
    arithmetic: str
    framework: str
    seconds: float
    baseline: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline

    @property
    def limit(self) -> float | None:
        return LIMITS.get(self.model, {}).get(self.arithmetic)

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.ratio > self.limit


def measure(models: Sequence[str], arithmetic: Sequence[str], seconds: float) -> Iterator[Row]:
    """A row for each model, arithmetic and framework: all of a model and framework take turns with the ordinary one."""
    torch._dynamo.config.recompile_limit = 64  # programs of one function: for each shape of blocks, and arithmetic
    for model in models:
        for framework, make in FRAMEWORKS.items():
            steps = [_step(model, make(model, kind)) for kind in (None, *arithmetic)]
            plain, *ours = by_turns(steps, clock_for("cpu"), seconds)
            for kind, timing in zip(arithmetic, ours, strict=True):
                yield Row(model, kind, framework, timing.median, plain.median)


def _step(model: str, run: Any) -> Callable[[], Any]:
    """A step of a run on one batch, which waits for its end."""
    batch = batch_of(TRAININGS[model].network, key_for(DATA), 0)

    def step() -> None:
        run.step(0, *batch)
        if isinstance(run, JaxRun):
            jax.block_until_ready(run.results())

    return step


def table(rows: Sequence[Row]) -> Table:
    made = Table(box=SIMPLE, title="steps, as multiples of the ordinary float32 step")
    for column in ("model", "arithmetic", "framework"):
        made.add_column(column, no_wrap=True)
    for column in ("ms", "float32, ms", "ratio", "limit"):
        made.add_column(column, justify="right")
    for row in rows:
        cells = [f"{row.seconds * 1e3:.2f}", f"{row.baseline * 1e3:.2f}", f"{row.ratio:.2f}"]
        cells.append("" if row.limit is None else f"{row.limit:.0f}")
        made.add_row(row.model, row.arithmetic, row.framework, *cells, style="red" if row.missed else "")
    return made
