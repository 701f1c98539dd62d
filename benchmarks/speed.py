"""How fast rounding is on each instruction set: times a copy of the same bytes (torch), or jitted `abs` (JAX).

Usage:
    python -m benchmarks.speed                         everything, on the CPU
    python -m benchmarks.speed --max-exponent 20 --skip-startup
    python -m benchmarks.speed --json speed.json
    python -m benchmarks.speed --only-startup --json startup.json

torch's rows are measured once for each instruction set that the processor has, in a process of its own with
`ATEN_CPU_CAPABILITY`: kernels, copies and random numbers are then all of that set. A few formats are also rounded by
packages of Inductor's, which `QTORCH_KERNELS=inductor` runs in place of C. Each call takes turns with its
baseline, and medians are compared; stochastic rounding has random numbers as its baseline, and in JAX torch's kernel.
`benchmarks.support.limits` says what bounds each kind of rows. Rows that take more are red, and the last lines name and
count them; the exit status is 0 all the same: a benchmark reports, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import qtorch
from benchmarks import startup
from benchmarks.support.limits import EXPONENTS, LARGE, MIDDLE, PACKAGE, SMALL, beyond, limit_of
from benchmarks.support.results import write_results
from benchmarks.support.timing import (
    Timing,
    by_turns,
    clock_for,
    default_allocator,
    keep_pages,
    machine,
    versions,
)
from benchmarks.support.vectors import instruction_sets, measure_apart
from qcore import parse
from qcore.law.rounding import RoundingName
from qtorch._rounding.paths.kernels import round_by_package
from qtorch._rounding.plan import plan_for
from qtorch.quantization import quantize_per_tensor

KEY = 7
WIDTH = 136  # columns, which the tables need
ELEMENTS = (
    "float(5,2) float(8,7) fixed(8,4) e4m3fn e4m3fnuz e8m0fnu e2m1fn dlfloat16 uint8 fixed(8,4,wrap=True) "
    "float(9,2) posit16"
).split()
BLOCKS = (
    "block(8,dim=-1) block(8,dim=0) block(8,dim=1) mxfp8_e4m3 mxfp4 scaled(e4m3fn,{-1:None}) "
    "scaled(e4m3fn,{0:32}) scaled(e4m3fn,{0:16,1:16}) nvfp4"
).split()
AFFINE = 0.03, 128, torch.quint8
INTEGERS = "affine(0,255)"  # of a QTensor
PACKAGED = ("float(5,2)", "block(8,dim=0)", "mxfp8_e4m3")
STOCHASTIC = ("float(5,2)", "float(8,7)", "fixed(8,4)", "block(8,dim=0)")


@dataclass(frozen=True)
class Case:
    """What is timed: an operation, a format as text, the dtype of numbers, and 2^exponent of them."""

    operation: str
    format: str
    dtype: str
    exponent: int

    @property
    def mode(self) -> RoundingName:
        """The rounding mode of an operation that rounds."""
        return cast("RoundingName", self.operation.partition(",")[0])

    @property
    def is_stochastic(self) -> bool:
        return self.operation.startswith("stochastic")

    @property
    def shape(self) -> tuple[int, ...]:
        """Two dimensions of about the same length."""
        return (1 << self.exponent // 2, 1 << self.exponent - self.exponent // 2)

    def limit(self, vectors: str) -> float | None:
        return limit_of(self.operation, self.format, self.exponent, vectors)


@dataclass(frozen=True)
class Row:
    """One measurement: a case on an instruction set ("jax": what XLA takes); times are seconds a call."""

    vectors: str
    case: Case
    seconds: float
    baseline: float
    limit: float | None

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.ratio <= self.limit

    def record(self) -> dict[str, Any]:
        elements = 1 << self.case.exponent
        derived = {"ratio": self.ratio, "ns_per_element": self.seconds * 1e9 / elements, "met": self.met}
        return (
            asdict(self.case)
            | {"vectors": self.vectors, "seconds": self.seconds, "baseline": self.baseline}
            | {"limit": self.limit}
            | derived
        )


def cases(framework: str, max_exponent: int) -> Iterator[Case]:
    """The rows of a framework's table."""
    sizes = [exponent for exponent in (MIDDLE, LARGE) if exponent <= max_exponent]
    operations = ("nearest", "encode", "decode") if framework == "torch" else ("nearest",)
    dtypes = ("float32", "bfloat16", "float16", "float64") if framework == "torch" else ("float32",)
    if framework == "torch":
        yield from (Case(operation, "float(5,2)", "float32", SMALL) for operation in ("nearest", "stochastic"))
        yield Case("stochastic, no key", "float(5,2)", "float32", SMALL)
    for exponent in sizes:
        yield from (
            Case(what, text, "float32", exponent) for text in ELEMENTS for what in operations if has(what, text)
        )
        if framework == "torch":
            yield from (Case(what, INTEGERS, "float32", exponent) for what in ("quantize", "dequantize"))
        yield from (Case("nearest", text, dtype, exponent) for text in BLOCKS for dtype in dtypes)
        yield from (
            Case(what, text, "float32", exponent) for text in BLOCKS for what in operations[1:] if has(what, text)
        )
        yield from (Case("stochastic", text, "float32", exponent) for text in STOCHASTIC)
        if framework == "torch":
            yield from (Case(PACKAGE, text, "float32", exponent) for text in PACKAGED)


def has(operation: str, text: str) -> bool:
    """True if a format has codes, where they are asked for, that float32 holds."""
    return operation == "nearest" or not text.startswith(("block", "float(8", "float(9"))


def torch_call(case: Case, x: torch.Tensor) -> Callable[[], object]:
    """The operation on a tensor, or on its codes."""
    if case.format == INTEGERS:
        q = quantize_per_tensor(x, *AFFINE)
        return q.dequantize if case.operation == "dequantize" else partial(quantize_per_tensor, x, *AFFINE)
    number, key = parse(case.format), None if case.operation.endswith("no key") else KEY
    if case.operation == "encode":
        return partial(qtorch.encode, x, number)
    if case.operation == "decode":
        encoded = qtorch.encode(x, number)
        codes, scales = encoded if isinstance(encoded, tuple) else (encoded, None)
        return partial(qtorch.decode, codes, number, x.dtype, scales=scales)
    if case.operation == PACKAGE:
        return partial(round_by_package, x, plan_for(number, "nearest", x.dtype, None, False), None)
    return partial(
        qtorch.quantize,
        x,
        number,
        case.mode,
        key=key if case.is_stochastic else None,
    )


def time_torch(case: Case, device: str, seconds: float) -> list[Timing]:
    """The operation, and its baseline: copying what it reads or, decoding, writes; of random numbers making some."""
    x = torch.randn(case.shape, device=device).to(getattr(torch, case.dtype))
    random = case.is_stochastic and case.exponent != SMALL
    baseline = partial(torch.rand_like, x) if random else partial(torch.empty_like(x).copy_, x)
    return by_turns([torch_call(case, x), baseline], clock_for(device), seconds)


def time_jax(case: Case, device: str, seconds: float) -> list[Timing]:
    """Rounding inside `jax.jit`, and jitted `abs`; the key is an argument."""
    import jax
    import jax.numpy as jnp

    import qjax

    with jax.default_device(jax.devices(device)[0]):
        x = jax.random.normal(jax.random.key(case.exponent), case.shape)
        key = jnp.array([0, KEY], jnp.uint32) if case.is_stochastic else None
        rounded = jax.jit(lambda x, key: qjax.quantize(x, parse(case.format), case.mode, key=key))
        absolute = jax.jit(jnp.abs)
        calls = [lambda: rounded(x, key).block_until_ready(), lambda: absolute(x).block_until_ready()]
        return by_turns(calls, clock_for("cpu"), seconds)  # the calls wait by themselves


def measure(vectors: str, max_exponent: int, seconds: float) -> Iterator[Row]:
    """All rows of this process; each is also written to the standard error when it is there."""
    framework, log = "jax" if vectors == "jax" else "torch", Console(stderr=True, highlight=False)
    plan = list(cases(framework, max_exponent))
    for done, case in enumerate(plan, start=1):
        ours, baseline = (time_jax if framework == "jax" else time_torch)(case, "cpu", seconds)
        row = Row(vectors, case, ours.median, baseline.median, case.limit(vectors))
        what = f"{case.format}, {case.operation}, {case.dtype}, 2^{case.exponent}"
        log.print(f"{vectors} {done}/{len(plan)}: {what}: {_time(row.seconds)}, {row.ratio:.2f}x", soft_wrap=True)
        yield row


def rows_of(vectors: str, options: argparse.Namespace) -> list[Row]:
    """The rows of an instruction set, or of JAX, measured in a process of their own."""
    arguments = ["--max-exponent", str(options.max_exponent), "--seconds", str(options.seconds)]
    found = measure_apart("benchmarks.speed", vectors, arguments)
    return [Row(one["vectors"], Case(**one["case"]), one["seconds"], one["baseline"], one["limit"]) for one in found]


def against_torch(rows: Iterable[Row], torch_rows: Iterable[Row]) -> list[Row]:
    """JAX's rows; the baseline of stochastic rounding is torch's kernel on the last set of instructions."""
    kernels = {row.case: row.seconds for row in torch_rows}
    return [replace(row, baseline=kernels[row.case]) if row.case.is_stochastic else row for row in rows]


def speed_table(vectors: str, rows: Iterable[Row]) -> Table:
    against, random = ("jnp.abs", "torch") if vectors == "jax" else ("a copy", "random numbers")
    table = Table(box=SIMPLE, title=f"{vectors}: rounding against {against}, stochastic rounding against {random}")
    for column in ("format", "operation", "dtype"):
        table.add_column(column, no_wrap=True)
    for column in ("elements", "a call", "baseline", "ns/element", "ratio", "limit"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        case, nanoseconds = row.case, row.seconds * 1e9 / (1 << row.case.exponent)
        times = (_time(row.seconds), _time(row.baseline), f"{nanoseconds:.3f}", f"{row.ratio:.2f}")
        cells = (case.format, case.operation, case.dtype, f"2^{case.exponent}", *times, _mark(row.limit, "x", row.met))
        table.add_row(*cells, style="red" if row.met is False else None)
    return table


def startup_table(findings: Iterable[startup.Finding]) -> Table:
    table = Table(box=SIMPLE, title="startup, compilation and memory (processes of their own)")
    table.add_column("what", no_wrap=True)
    for column in ("measured", "limit"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("note")
    for found in findings:
        value, mark = f"{found.value:.4g} {found.unit}", _mark(found.limit, found.unit, found.met)
        table.add_row(found.name, value, mark, found.note, style="red" if found.met is False else None)
    return table


def _mark(bound: float | None, unit: str, met: bool | None) -> str:
    return "" if bound is None else f"<= {bound:g} {unit} {'met' if met else 'MISSED'}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time rounding against copying, and startup, compilation and memory.")
    parser.add_argument("--max-exponent", type=int, choices=EXPONENTS, default=LARGE, help="2^this elements at most")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each row, five turns at least")
    parser.add_argument("--skip-startup", action="store_true", help="only the timings")
    parser.add_argument("--only-startup", action="store_true", help="no timings")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine, rows and limits there")
    parser.add_argument("--vectors", help="measure one instruction set, or jax, in this process; a JSON object a row")
    options = parser.parse_args(argv)
    if options.vectors:
        for row in measure(options.vectors, options.max_exponent, options.seconds):
            print(json.dumps(asdict(row)), flush=True)
        return 0
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    facts = {"versions": versions(), "machine": machine("cpu")}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    rows: list[Row] = []
    every = [*instruction_sets(), *(["jax"] if find_spec("jax") else [])]
    for vectors in [] if options.only_startup else every:
        found = rows_of(vectors, options)
        rows += (measured := against_torch(found, rows) if vectors == "jax" else found)
        console.print(speed_table(vectors, measured))
    findings = [] if options.skip_startup else list(startup.findings(default_allocator(), "cpu", options.max_exponent))
    console.print(startup_table(findings))
    results = [*rows, *findings]
    limited, missed = (sum(result.met in marks for result in results) for marks in ((True, False), (False,)))
    if options.json:
        records = {"rows": [row.record() for row in rows], "startup": [found.record() for found in findings]}
        write_results(options.json, facts | records | {"limits": {"checked": limited, "missed": missed}})
    for row, limit in beyond(row.record() for row in rows):
        what = f"{row['vectors']}, {row['format']}, {row['operation']}, {row['dtype']}, 2^{row['exponent']}"
        console.print(f"{what}: {row['ratio']:.2f}, limit {limit:g}", style="red", soft_wrap=True)
    console.print(f"{missed} of {limited} limits missed", style="red" if missed else "green")
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
