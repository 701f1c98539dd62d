"""How fast rounding is, against copying the same bytes (torch) and against jitted `abs` of the same array (JAX).

Usage:
    python -m benchmarks.speed                         everything, on the CPU
    python -m benchmarks.speed --max-exponent 20 --skip-startup
    python -m benchmarks.speed --device cuda --json speed.json

Each call takes turns with its baseline, and medians are compared. Rows that miss a limit are red, and the last line
counts them; the exit status is 0 all the same: a benchmark reports, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import qtorch
from benchmarks import startup
from benchmarks.timing import Timing, by_turns, clock_for, default_allocator, keep_pages, machine, versions
from qcore import NAMED, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint, Number

EXPONENTS = (6, 10, 14, 17, 20, 24, 26)  # of two, in elements
KEY = 7
WIDTH = 136  # columns, which the tables need
UNKEYED = "stochastic, no key"
ENCODING = "encode (against quantize)"

# Limits: times the baseline where rounding can run at the speed of memory, else nanoseconds an element.
RATIO_LIMITS = {("element", 20): 3.5, ("element", 24): 1.6, ("block", 20): 7.0, ("block", 24): 3.0, ("named", 24): 2.0}
SCALED_LIMITS = {"mxfp8_e4m3": 3.0, "e4m3fn in rows": 3.0, "e4m3fn in 32x1": 5.0}
STOCHASTIC_LIMITS = {"torch": 1.0, "jax": 2.0}
SMALL_LIMIT = 5.0  # microseconds for a call in torch on 2^6 elements


@dataclass(frozen=True)
class Case:
    """A format, and the number of dimensions of the arrays it is timed on."""

    label: str
    number: Number
    ndim: int = 1

    def shape(self, exponent: int) -> tuple[int, ...]:
        """2^exponent elements, about as many along each dimension."""
        side = exponent // self.ndim
        return (*(1 << side,) * (self.ndim - 1), 1 << exponent - side * (self.ndim - 1))


CASES = (
    Case("float (5,2)", FloatingPoint(5, 2)),
    Case("float (8,7)", FloatingPoint(8, 7)),
    Case("fixed (8,4)", FixedPoint(8, 4)),
    Case("block wl 8", BlockFloatingPoint(8)),
    Case("block wl 8 dim 0 of 2", BlockFloatingPoint(8, dim=0), ndim=2),
    Case("block wl 8 dim 0 of 3", BlockFloatingPoint(8, dim=0), ndim=3),
)
# Formats of which only the speed of rounding to nearest, and of codes, is measured.
NAMED_CASES = (
    *(Case(name, NAMED[name][0]) for name in ("e4m3fn", "e4m3fnuz", "e8m0fnu", "e2m1fn", "dlfloat16", "uint8")),
    Case("fixed (8,4) wrap", FixedPoint(8, 4, wrap=True)),
    Case("float (9,2)", FloatingPoint(9, 2)),
    Case("posit16", NAMED["posit16"][0]),
)
# Blocks that share scales: of these, too, only rounding to nearest.
SCALED_CASES = (
    Case("mxfp8_e4m3", NAMED["mxfp8_e4m3"][0], ndim=2),
    Case("mxfp4", NAMED["mxfp4"][0], ndim=2),
    Case("nvfp4", NAMED["nvfp4"][0], ndim=2),
    Case("e4m3fn in rows", BlockScaled("e4m3fn", {-1: None}), ndim=2),
    Case("e4m3fn in 32x1", BlockScaled("e4m3fn", {0: 32}), ndim=2),
    Case("e4m3fn in 16x16", BlockScaled("e4m3fn", {0: 16, 1: 16}), ndim=2),
)


@dataclass(frozen=True)
class Row:
    """One measurement; times are medians in seconds a call, `limit` is in `limit_unit`."""

    framework: str
    format: str
    rounding: str
    exponent: int
    seconds: float
    baseline: float
    fastest: float
    fastest_baseline: float
    limit: float | None
    limit_unit: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline

    @property
    def ns_per_element(self) -> float:
        return self.seconds * 1e9 / (1 << self.exponent)

    @property
    def met(self) -> bool | None:
        measured = {"x": self.ratio, "ns/element": self.ns_per_element, "us": self.seconds * 1e6}
        return None if self.limit is None else measured[self.limit_unit] <= self.limit

    def record(self) -> dict[str, Any]:
        derived = {"elements": 1 << self.exponent, "ratio": self.ratio, "ns_per_element": self.ns_per_element}
        return asdict(self) | derived | {"met": self.met}


def limit(framework: str, case: Case, rounding: str, exponent: int) -> tuple[float | None, str]:
    """What a measurement may be at most, and in which unit."""
    if rounding == ENCODING:
        return (1.0 if exponent == 24 else None), "x"
    if case in SCALED_CASES:
        return (SCALED_LIMITS.get(case.label) if exponent == 24 else None), "x"
    if case in NAMED_CASES:
        return RATIO_LIMITS.get(("named", exponent)), "x"
    if exponent == 6 and framework == "torch":
        return SMALL_LIMIT, "us"
    if rounding.startswith("stochastic"):
        return (STOCHASTIC_LIMITS[framework] if exponent in (20, 24) else None), "ns/element"
    kind = "block" if isinstance(case.number, BlockFloatingPoint) else "element"
    return RATIO_LIMITS.get((kind, exponent)), "x"


def settings(framework: str, max_exponent: int) -> Iterator[tuple[Case, str, int]]:
    """The rows of a framework's table."""
    sizes = [exponent for exponent in EXPONENTS if exponent <= max_exponent]
    for case in CASES:
        for rounding in ("nearest", "stochastic"):
            yield from ((case, rounding, exponent) for exponent in sizes)
        yield case, "nearest_away", min(24, sizes[-1])
    if framework == "torch":
        yield CASES[0], UNKEYED, EXPONENTS[0]
        for case in (*NAMED_CASES, *SCALED_CASES):
            yield from ((case, "nearest", exponent) for exponent in sizes if exponent in (20, 24))
        for case in (CASES[0], *(case for case in NAMED_CASES if not isinstance(case.number, FloatingPoint))):
            yield from ((case, ENCODING, exponent) for exponent in sizes if exponent == 24)


def time_torch(case: Case, rounding: str, exponent: int, device: str, seconds: float) -> list[Timing]:
    """Rounding, and `copy_` into memory that is there already; or encoding, and rounding."""
    x = _torch_input(exponent, device).view(case.shape(exponent))
    if rounding == ENCODING:
        calls = [partial(function, x, case.number, "nearest") for function in (qtorch.encode, qtorch.quantize)]
        return by_turns(calls, clock_for(device), seconds)
    mode, key = ("stochastic", None) if rounding == UNKEYED else (rounding, KEY if rounding == "stochastic" else None)
    ours = partial(qtorch.quantize, x, case.number, mode, key=key)
    return by_turns([ours, partial(torch.empty_like(x).copy_, x)], clock_for(device), seconds)


def time_jax(case: Case, rounding: str, exponent: int, device: str, seconds: float) -> list[Timing]:
    """Rounding inside `jax.jit`, and jitted `abs`; the key is an argument."""
    import jax
    import jax.numpy as jnp

    import qjax

    with jax.default_device(jax.devices(device)[0]):
        x = _jax_input(exponent, device).reshape(case.shape(exponent))
        key = jnp.array([0, KEY], jnp.uint32) if rounding == "stochastic" else None
        rounded = jax.jit(lambda x, key: qjax.quantize(x, case.number, rounding, key=key))
        absolute = jax.jit(jnp.abs)
        calls = [lambda: rounded(x, key).block_until_ready(), lambda: absolute(x).block_until_ready()]
        return by_turns(calls, clock_for("cpu"), seconds)  # the calls wait by themselves


@cache
def _torch_input(exponent: int, device: str) -> torch.Tensor:
    return torch.randn(1 << exponent, generator=torch.Generator(device).manual_seed(exponent), device=device)


@cache
def _jax_input(exponent: int, device: str) -> Any:
    import jax

    return jax.random.normal(jax.random.key(exponent), (1 << exponent,))


def measure(framework: str, device: str, max_exponent: int, seconds: float, log: Console) -> list[Row]:
    """All rows of a framework; each is also written to `log` when it is there."""
    timed = time_torch if framework == "torch" else time_jax
    plan = list(settings(framework, max_exponent))
    rows = []
    for done, (case, rounding, exponent) in enumerate(plan, start=1):
        ours, baseline = timed(case, rounding, exponent, device, seconds)
        fastest = (ours.fastest, baseline.fastest)
        bound = limit(framework, case, rounding, exponent)
        row = Row(framework, case.label, rounding, exponent, ours.median, baseline.median, *fastest, *bound)
        what = f"{case.label}, {rounding}, 2^{exponent}"
        log.print(f"{framework} {done}/{len(plan)}: {what}: {_time(row.seconds)}", soft_wrap=True)
        rows.append(row)
    return rows


def frameworks(device: str, log: Console) -> list[str]:
    """Those that are installed and can use the device."""
    if find_spec("jax") is None:
        log.print("no rows for JAX, which is not installed")
        return ["torch"]
    import jax

    try:
        jax.devices(device)
    except RuntimeError as error:
        log.print(f"no rows for JAX: {error}")
        return ["torch"]
    return ["torch", "jax"]


def speed_table(framework: str, device: str, rows: Iterable[Row]) -> Table:
    baseline = "copy_" if framework == "torch" else "jnp.abs"
    table = Table(box=SIMPLE, title=f"{framework} on {device}, float32: rounding against {baseline} of the same array")
    for column in ("format", "rounding"):
        table.add_column(column, no_wrap=True)
    for column in ("elements", "a call", baseline, "ns/element", f"/ {baseline}", "limit"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        times = (_time(row.seconds), _time(row.baseline), f"{row.ns_per_element:.3f}", f"{row.ratio:.2f}")
        cells = (row.format, row.rounding, f"2^{row.exponent}", *times, _mark(row.limit, row.limit_unit, row.met))
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
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--max-exponent", type=int, choices=EXPONENTS, default=26, help="2^this elements at most")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each row, five turns at least")
    parser.add_argument("--skip-startup", action="store_true", help="only the timings")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine, rows and limits there")
    options = parser.parse_args(argv)
    console, log = (Console(stderr=stderr, highlight=False) for stderr in (False, True))
    console.width = max(console.width, WIDTH)
    facts = {"versions": versions(), "machine": machine(options.device) | {"device": options.device}}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    rows: list[Row] = []
    for framework in frameworks(options.device, log):
        measured = measure(framework, options.device, options.max_exponent, options.seconds, log)
        console.print(speed_table(framework, options.device, measured))
        rows += measured
    findings: list[startup.Finding] = []
    if not options.skip_startup:
        for found in startup.findings(default_allocator(), options.device, options.max_exponent):
            log.print(f"{found.name}: {found.value:.4g} {found.unit} {found.note}", soft_wrap=True)
            findings.append(found)
        console.print(startup_table(findings))
    results = [*rows, *findings]
    limited, missed = (sum(result.met in marks for result in results) for marks in ((True, False), (False,)))
    if options.json:
        records = {"rows": [row.record() for row in rows], "startup": [found.record() for found in findings]}
        with open(options.json, "w") as file:
            json.dump(facts | records | {"limits": {"checked": limited, "missed": missed}}, file, indent=1)
    console.print(f"{missed} of {limited} limits missed", style="red" if missed else "green")
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
