"""How long products with a defined accumulator take, as multiples of the float32 product of the same size.

Usage:
    python -m benchmarks.linalg                          512 x 512 x 512, and steps of the examples' layers
    python -m benchmarks.linalg --size 256 --json linalg.json
    python -m benchmarks.linalg --only mma               instructions of NVIDIA's chips; mfma of AMD's

Each call takes turns with the float32 product of its framework, and medians are compared. APyTypes, where it is
installed, multiplies matrices of a quarter of the size, on one core. Rows above their limit are red, and the last line
counts them; the exit status is 0 all the same: a benchmark reports, it does not judge.
"""

from __future__ import annotations

import argparse
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import qcore
import qjax
import qtorch
from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.results import write_results
from benchmarks.support.steps import MACS, STEPS
from benchmarks.support.timing import Call, by_turns, clock_for, keep_pages, machine, versions
from qcore import Accumulator

HALF = "float(6,9)"
STEP_LIMIT = 4.0
KERNEL, LOOPS = 40.0, 20.0  # what aligned sums and instructions may take: C kernels in PyTorch, loops of XLA in JAX
FIRST_LIMIT = 6.0  # seconds, of the first product of a shape
WIDTH = 120


@dataclass(frozen=True)
class Member:
    """An accumulator, the formats of its operands, and the most multiples of float32 that it may take.

    The limit is one of both frameworks, or a pair: PyTorch's and JAX's.
    """

    name: str
    accumulator: Accumulator
    limit: float | tuple[float | None, float | None] | None = None
    operands: tuple[str | None, str | None] = ("e4m3fn", "e4m3fn")

    def limit_of(self, framework: str) -> float | None:
        if not isinstance(self.limit, tuple):
            return self.limit
        return self.limit[0] if framework == "torch" else self.limit[1]


def _machine(name: str, operand: str | None) -> Member:
    """An instruction of each law; with None the call rounds operands to blocks."""
    return Member(name, Accumulator.of(name), (KERNEL, None), (operand, operand))


MEMBERS = (
    Member("exact", Accumulator(), 2.8),
    Member("chunks of 64, nearest", Accumulator(HALF, chunk=64), 4.5),
    Member("chunks of 64, stochastic", Accumulator(HALF, chunk=64, rounding="stochastic"), 6.0),
    Member("sequential, nearest", Accumulator(HALF, chunk=1), 10.0),
    Member("sequential, stochastic, 14 bits", Accumulator(HALF, 1, "stochastic", random_bits=14), 25.0),
    Member("sequential, stochastic, 24 bits", Accumulator(HALF, 1, "stochastic")),
    Member("sequential, toward zero", Accumulator(HALF, 1, "toward_zero")),
    Member("float32 operands", Accumulator(), None, (None, None)),
    Member("e5m2 operands", Accumulator(), None, ("e5m2", "e5m2")),
    Member("two levels, 64 and 1", Accumulator(HALF, chunk=64, inner=Accumulator(HALF, chunk=1))),
    Member("pairs of 4", Accumulator(HALF, chunk=4, tree=True), (40.0, None)),
    Member("aligned, 16 and 25 bits", Accumulator(chunk=16, fraction_bits=25, output="toward_zero"), (KERNEL, LOOPS)),
    _machine("volta.mma.f16", "float16"),
    _machine("volta.mma.f16.f16", "float16"),
    _machine("ampere.mma.bf16", "bfloat16"),
    _machine("hopper.wgmma.e4m3", "e4m3fn"),
    _machine("hopper.mma.e4m3", "e4m3fn"),
    _machine("blackwell.tcgen05.mxe4m3", None),
    _machine("blackwell.tcgen05.nvf4", None),
    _machine("cdna1.mfma.f32", None),
    _machine("cdna1.mfma.f16", "float16"),
    _machine("cdna2.mfma.f16", "float16"),
    _machine("cdna3.mfma.f16", "float16"),
    _machine("cdna3.mfma.fp8", "e4m3fnuz"),
)


@dataclass(frozen=True)
class Row:
    """One measurement; times are medians in seconds a call."""

    framework: str
    name: str
    accumulator: str
    macs: int
    seconds: float
    baseline: float
    first: float
    limit: float | None

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline

    @property
    def met(self) -> bool | None:
        """Whether it keeps its limit, where it has one."""
        return None if self.limit is None else self.ratio <= self.limit and self.first <= FIRST_LIMIT

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "gmacs": self.macs / self.seconds / 1e9, "met": self.met}


def torch_calls(member: Member, a: np.ndarray, b: np.ndarray) -> tuple[Call, Call]:
    """Ours, of operands that have their formats already, and torch's."""
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    return partial(qtorch.linalg.matmul, x, y, **_options(member)), partial(torch.matmul, x, y)


def jax_calls(member: Member, a: np.ndarray, b: np.ndarray) -> tuple[Call, Call]:
    x, y = jnp.asarray(a), jnp.asarray(b)
    ours = jax.jit(partial(qjax.linalg.matmul, **_options(member)))
    theirs = jax.jit(jnp.matmul)
    return lambda: ours(x, y).block_until_ready(), lambda: theirs(x, y).block_until_ready()


def _options(member: Member) -> dict[str, Any]:
    return {"operands": member.operands, "accumulator": member.accumulator, "key": 7}


def apytypes_calls(a: np.ndarray, b: np.ndarray) -> tuple[Call, Call]:
    """APyTypes' sequential product, which rounds to HALF's bits (that of IEEE, with infinities), and torch's."""
    apytypes = import_module("apytypes")
    x, y = (apytypes.APyFloatArray.from_float(one.astype(np.float64), exp_bits=6, man_bits=9) for one in (a, b))
    nearest = apytypes.QuantizationMode.TIES_EVEN

    def multiply() -> None:
        with apytypes.APyFloatAccumulatorContext(exp_bits=6, man_bits=9, quantization=nearest):
            operator.matmul(x, y)

    return multiply, partial(torch.matmul, torch.from_numpy(a), torch.from_numpy(b))


FRAMEWORKS: dict[str, Callable[[Member, np.ndarray, np.ndarray], tuple[Call, Call]]] = {
    "torch": torch_calls,
    "jax": jax_calls,
}


def measure(size: int, seconds: float, names: str, log: Console) -> Iterator[Row]:
    """All rows: products of matrices, then steps of layers."""
    for framework, name, text, limit, macs, make in _cases(size, names):
        ours, theirs = make()
        start = perf_counter()
        ours()
        first = perf_counter() - start
        timing, baseline = by_turns((ours, theirs), clock_for("cpu"), seconds)
        row = Row(framework, name, text, macs, timing.median, baseline.median, first, limit)
        log.print(f"{framework}, {name}: {row.ratio:.2f}", soft_wrap=True)
        yield row


def _cases(size: int, names: str) -> Iterator[tuple[str, str, str, float | None, int, Callable[[], tuple[Call, Call]]]]:
    """What to measure: framework, name, accumulator, limit, multiply-adds, and what makes both calls."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    for member in (member for member in MEMBERS if names in member.name):
        pair = [
            x if number is None else qcore.quantize(x, number)
            for x, number in zip((a, b), member.operands, strict=True)
        ]
        for framework, calls in FRAMEWORKS.items():
            make = partial(calls, member, *pair)
            yield framework, member.name, member.accumulator.text, member.limit_of(framework), size**3, make
        if member.name == "sequential, nearest" and find_spec("apytypes"):
            quarter = size // 4
            make = partial(apytypes_calls, *(x[:quarter, :quarter].copy() for x in pair))
            yield "apytypes", member.name, "binary(6,9)", None, quarter**3, make
    for name, macs in MACS.items():
        for framework, step in STEPS.items() if names in f"exact, step of {name}" else ():
            yield framework, f"exact, step of {name}", Accumulator().text, STEP_LIMIT, macs, partial(step, name)


def table(rows: list[Row], size: int) -> Table:
    made = Table(box=SIMPLE, title=f"products of {size} x {size} matrices, operands' rounding included, and steps")
    for column in ("accumulator", "framework"):
        made.add_column(column, no_wrap=True)
    for column in ("ms", "GMAC/s", "float32, ms", "ratio", "limit", "first, s"):
        made.add_column(column, justify="right")
    for row in rows:
        cells = [row.name, row.framework, f"{row.seconds * 1e3:.2f}", f"{row.macs / row.seconds / 1e9:.1f}"]
        cells += [f"{row.baseline * 1e3:.2f}", f"{row.ratio:.2f}", "" if row.limit is None else f"{row.limit:.1f}"]
        made.add_row(*cells, f"{row.first:.1f}", style="red" if row.met is False else "")
    return made


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.linalg", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", metavar="N", type=count_of("rows", 16), default=512, help="of all three dimensions")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row, half of it the float32 product's")
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="only accumulators whose name contains this")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write versions, machine and all rows there")
    arguments = parser.parse_args()
    rows = list(measure(arguments.size, arguments.seconds, arguments.only, Console(stderr=True)))
    if arguments.json:
        record = {"machine": machine("cpu"), "versions": versions(), "rows": [row.record() for row in rows]}
        write_results(arguments.json, record)
    if rows:
        Console(width=None if sys.stdout.isatty() else WIDTH).print(table(rows, arguments.size))
    missed = [f"{row.name} in {row.framework}" for row in rows if row.met is False]
    limited = sum(row.met is not None for row in rows)
    print(f"{len(missed)} of {limited} limits missed{': ' if missed else ''}{', '.join(missed)}")
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
