"""How long a step of OptimLP takes, against the step of the optimizer inside it; and steps of states in codes.

Usage:
    python -m benchmarks.optim_step                      PreResNet20's 65 parameters, all four quantizers
    python -m benchmarks.optim_step --json optim_step.json

Both step copies of the same parameters and take turns; medians are compared. Optimizers with codes step one parameter
of 10^7 numbers beside torch's fused float32 AdamW, or optax's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.support import coded_steps
from benchmarks.support.results import write_results
from benchmarks.support.timing import by_turns, clock_for, keep_pages, machine, versions
from qcore import FloatingPoint
from qcore.law.rounding import RoundingName
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer

LIMIT = 3.0  # times the inner step, for SGD and rounding to nearest
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=5e-4),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
}


def preresnet20() -> Iterator[tuple[int, ...]]:
    """The shapes of its parameters."""
    yield 16, 3, 3, 3
    before = 16
    for width in (16, 32, 64):
        for _ in range(3):
            yield from ((before,), (before,), (width, before, 3, 3), (width,), (width,), (width, width, 3, 3))
            if before != width:
                yield from ((width, before, 1, 1), (width,), (width,))
            before = width
    yield from ((64,), (64,), (10, 64), (10,))


def parameters() -> list[torch.nn.Parameter]:
    """Fresh parameters with gradients, the same at each call."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for shape in preresnet20():
        p = torch.nn.Parameter(torch.randn(shape, generator=generator) / 8)
        p.grad = torch.randn(shape, generator=generator) / 128
        found.append(p)
    return found


def measure(optimizer: str, rounding: RoundingName, seconds: float) -> dict[str, object]:
    """One row: medians in seconds a step."""
    make = OPTIMIZERS[optimizer]
    low, high = (Quantizer(FloatingPoint(*bits), forward_rounding=rounding) for bits in ((5, 2), (6, 9)))
    quantizers = {"weight_quant": low, "grad_quant": low, "momentum_quant": high, "acc_quant": high}
    wrapped = OptimLP(make(parameters()), **quantizers, key=7)  # type: ignore[arg-type]
    plain = make(parameters())
    ours, inner = by_turns([wrapped.step, plain.step], clock_for("cpu"), seconds)
    limit = LIMIT if (optimizer, rounding) == ("SGD", "nearest") else None
    ratio = ours.median / inner.median
    times = {"seconds": ours.median, "inner": inner.median, "fastest": ours.fastest, "fastest_inner": inner.fastest}
    met = None if limit is None else ratio <= limit
    return {"optimizer": optimizer, "rounding": rounding, **times, "ratio": ratio, "limit": limit, "met": met}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time OptimLP.step against the inner optimizer's step.")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each row, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    console = Console(highlight=False)
    facts = {"versions": versions(), "machine": machine("cpu")}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    rows = [measure(name, rounding, options.seconds) for name in OPTIMIZERS for rounding in ("nearest", "stochastic")]
    table = Table("optimizer", "rounding", "OptimLP", "inner", "ratio", "limit", box=SIMPLE)
    for row in rows:
        ours, inner = (f"{row[name] * 1e6:.0f} us" for name in ("seconds", "inner"))  # type: ignore[operator]
        limit = "" if row["limit"] is None else f"<= {row['limit']:g} {'met' if row['met'] else 'MISSED'}"
        table.add_row(str(row["optimizer"]), str(row["rounding"]), ours, inner, f"{row['ratio']:.2f}", limit)
    console.print(table)
    codes = []
    for row in coded_steps.rows(options.seconds):
        console.print(f"{row['package']} {row['optimizer']}: {row['ratio']:.2f} times {row['base'] * 1e3:.1f} ms")
        codes.append(row)
    columns = ("optimizer", "state", "peak", "on disk", "step", "float32", "ratio", "limit")
    table = Table(*columns, box=SIMPLE, title="Bytes for a number: of the state, beside it in a step, of its file")
    for row in codes:
        ours, base = (f"{row[name] * 1e3:.1f} ms" for name in ("seconds", "base"))
        limit = "" if row["limit"] is None else f"<= {row['limit']:g} {'met' if row['met'] else 'MISSED'}"
        kept = ("" if row[name] is None else f"{row[name]:.2f}" for name in ("state", "peak", "saved"))
        table.add_row(f"{row['package']} {row['optimizer']}", *kept, ours, base, f"{row['ratio']:.2f}", limit)
    console.print(table)
    if options.json:
        write_results(options.json, facts | {"rows": rows, "codes": codes})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
