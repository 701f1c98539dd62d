"""What a compiled program gains where Inductor fuses rounding with its neighbours, and what it costs to compile.

Usage:
    python -m benchmarks.fusion                          both sets of instructions, each in a process of its own
    python -m benchmarks.fusion --vectors avx2 --json fusion.json

Each program runs eagerly, compiled with the operator as a call of the kernel, and compiled with the operator as a loop
of Inductor's. The three take turns with a copy of the same bytes, with one thread; medians are compared. "chosen" is
what the library does without being asked. Seconds of compiling are those of all processors, Python's and the
compiler's, in an empty cache of Inductor's and after a program that warms up.

The last rows are training steps of PreResNet20 (see `benchmarks.training`), compiled in fp32 and rounded to nearest,
with all threads: seconds a step, and of compiling, forward and backward. "emptied" is the rounded step with operations
that compilers drop in the law's place: it has the loops and tensors of a rounded step, so what it takes beyond fp32 are
passes over memory, and what a rounded step takes beyond it is arithmetic. `--only loops` counts processors' time in the
loops of these steps alone. These rows are not for AVX-512, with which torch 2.13's own compiled convolutions may write
past their buffers (docs/speed.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from time import process_time
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # before Inductor: torch imports the two in a circle
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch._inductor import config, lowering
from torch._inductor.codecache import PyCodeCache

import qtorch
from benchmarks import training
from benchmarks.support.results import write_results
from benchmarks.support.timing import Call, by_turns, clock_for, keep_pages, machine, usable_cores, versions
from benchmarks.support.vectors import instruction_sets
from qcore.law.program import Program
from qtorch._rounding.paths import inductor
from qtorch._rounding.plan import plan_for

SHAPES = {18: (256, 1024), 20: (1024, 1024), 23: (8192, 1024)}  # by the exponent of the number of elements
FORMATS = (
    "e5m2 fixed(8,4) posit8 block(8,dim=0) block(8,dim=1) scaled(e4m3fn,{0:32}) scaled(e4m3fn,{0:16,1:16}) mxfp8_e4m3"
).split()
WAYS = "call", "loop"
BATCH = 64  # images of a training step
_NUMBERS = count()


def programs() -> dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """By name: the format, and the program."""

    def alone(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: qtorch.quantize(x, text)

    def after(text: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: qtorch.quantize(x.relu() * 1.5, text)

    def between(x: torch.Tensor) -> torch.Tensor:
        return qtorch.quantize(torch.nn.functional.gelu(qtorch.quantize(x, "e5m2")), "e5m2")

    def encoded(x: torch.Tensor) -> torch.Tensor:
        return qtorch.encode(x.relu() * 1.5, "e5m2")

    def decoded(x: torch.Tensor) -> torch.Tensor:
        return qtorch.decode((x * 16).to(torch.int32), "e5m2") * 1.5  # whose low 8 bits are codes

    found = {f"{text} of relu(x) * 1.5": (text, after(text)) for text in FORMATS}
    found |= {f"{text} alone": (text, alone(text)) for text in FORMATS}
    codes = {"codes of relu(x) * 1.5": encoded, "numbers of codes, * 1.5": decoded}
    return found | {name: ("e5m2", program) for name, program in ({"e5m2, gelu, e5m2": between} | codes).items()}


def compiled(program: Any, x: torch.Tensor, way: str) -> tuple[Callable[[torch.Tensor], torch.Tensor], float]:
    """A compiled program that calls the kernel or has a loop, and the seconds of processors that compiling took."""
    code = program.__code__.replace(co_name=f"program{next(_NUMBERS)}")  # Dynamo keeps programs by their code
    own = FunctionType(code, program.__globals__, program.__name__, None, program.__closure__)
    inductor.register()
    operators = [getattr(torch.ops.qtorch, name).default for name in ("round", "encode", "decode")]
    calls = {one: lowering.fallback_handler(one, add_to_fallback_set=False) for one in operators if way == "call"}
    with patch.object(inductor, "is_faster", lambda *arguments: True), patch.dict(lowering.lowerings, calls):
        begin = sum(os.times()[:4])
        found = torch.compile(own, fullgraph=True, dynamic=False)
        found(x)
        return found, sum(os.times()[:4]) - begin


def measure(seconds: float) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    config.compile_threads = 1  # compilers in processes of this one, whose times are counted
    config.fx_graph_cache = False
    compiled(lambda x: qtorch.quantize(x + 1, "e5m2"), torch.ones(64), "loop")
    log = Console(stderr=True, highlight=False)
    for name, (text, program) in programs().items():
        plan = plan_for(text, "nearest", torch.float32, None, False)
        for exponent, shape in SHAPES.items():
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            made = {way: compiled(program, x, way) for way in WAYS}
            calls = [partial(one, x) for one in (program, *(made[way][0] for way in WAYS))]
            *times, copy = by_turns([*calls, partial(torch.empty_like(x).copy_, x)], clock_for("cpu"), seconds)
            chosen = "code" in name or inductor.is_faster(plan, shape, "alone" not in name)
            row = {"program": name, "exponent": exponent, "chosen": WAYS[chosen], "copy": copy.median}
            ratios = {way: one.median / copy.median for way, one in zip(("eager", *WAYS), times, strict=True)}
            log.print(f"{name}, 2^{exponent}: " + ", ".join(f"{way} {ratio:.2f}" for way, ratio in ratios.items()))
            yield row | ratios | {f"compile {way}": made[way][1] for way in WAYS}


def network(seconds: float) -> Iterator[dict[str, Any]]:
    """A training step in fp32, and rounded to nearest with the law and without its arithmetic: times, and compiling."""
    steps, spent = {}, {}
    for name, step, compiling, _ in _steps():
        steps[name], spent[name] = step, compiling
    times = by_turns(list(steps.values()), clock_for("cpu"), 40 * seconds)
    for name, one in zip(steps, times, strict=True):
        yield {"step": name, "seconds": one.median, "fastest": one.fastest, "compile": spent[name]}


def loops(seconds: float) -> Iterator[dict[str, Any]]:
    """The seconds that all processors spend in the loops that Inductor made of these steps, without convolutions.

    Other programs on the machine disturb them less than they disturb the time of a step.
    """
    steps, spent = {}, {}
    for name, step, _, modules in _steps():
        steps[name], spent[name] = step, []
        for module in modules:
            for loop in [one for one in vars(module) if one.startswith("cpp_fused")]:
                setattr(module, loop, _counted(getattr(module, loop), spent[name]))
    totals: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(max(5, int(40 * seconds)) + 1):
        for name, step in steps.items():
            spent[name].clear()
            step()
            totals[name] += [sum(spent[name])] if turn else []  # the first one warms up
    for name, found in totals.items():
        yield {"step": name, "loops": statistics.median(found), "fastest": min(found)}


def _counted(loop: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        begin = process_time()
        found = loop(*arguments)
        spent.append(process_time() - begin)
        return found

    return call


def _steps() -> Iterator[tuple[str, Call, float, list[Any]]]:
    """Names, compiled steps, the seconds of processors to compile each, and the modules that Inductor wrote for it."""
    torch.set_num_threads(usable_cores())
    config.fx_graph_cache = False  # which would find the step with the law where it is without, as Dynamo would by mode
    for name, rounding in (("fp32", None), ("rounded", "nearest"), ("emptied", "nearest_away")):
        step = training.torch_step(BATCH, rounding, compiled=True)
        before, begin = len(PyCodeCache.modules), sum(os.times()[:4])
        with patch.object(Program, "run", _emptied if name == "emptied" else Program.run):
            step()
        yield name, step, sum(os.times()[:4]) - begin, PyCodeCache.modules[before:]


def _emptied(program: Program, xp: Any, bits: Any, *others: Any) -> Any:
    """In the law's place: as many operations, so that Inductor makes the same loops; compilers drop them."""
    for number in (*range(1, 14), *range(1, 14)):
        bits = bits ^ number
    return bits


def loops_table(rows: list[dict[str, Any]], vectors: str) -> Table:
    found = Table(box=SIMPLE, title=f"Loops of these steps, {vectors}")
    for column in ("step", "ms of all processors", "fastest"):
        found.add_column(column, justify="right")
    for row in rows:
        found.add_row(row["step"], f"{row['loops'] * 1e3:.1f}", f"{row['fastest'] * 1e3:.1f}")
    return found


def network_table(rows: list[dict[str, Any]], vectors: str) -> Table:
    found = Table(box=SIMPLE, title=f"PreResNet20, {BATCH} images, compiled, {vectors}")
    for column in ("step", "ms a step", "times fp32", "s to compile", "times fp32"):
        found.add_column(column, justify="right")
    first = rows[0]
    for row in rows:
        ratios = [row[name] / first[name] for name in ("seconds", "compile")]
        cells = f"{row['seconds'] * 1e3:.1f}", f"{ratios[0]:.3f}", f"{row['compile']:.1f}", f"{ratios[1]:.2f}"
        found.add_row(row["step"], *cells)
    return found


def table(rows: list[dict[str, Any]], vectors: str) -> Table:
    found = Table(box=SIMPLE, title=f"times a copy, {vectors}")
    found.add_column("program", no_wrap=True)
    for column in ("elements", "eager", *WAYS, "chosen", *(f"s to compile, {way}" for way in WAYS)):
        found.add_column(column, justify="right")
    for row in rows:
        ratios = (f"{row[way]:.2f}" for way in ("eager", *WAYS))
        seconds = (f"{row[f'compile {way}']:.1f}" for way in WAYS)
        found.add_row(row["program"], f"2^{row['exponent']}", *ratios, row["chosen"], *seconds)
    return found


def _in_a_process(part: str, vectors: str, seconds: float) -> list[dict[str, Any]]:
    """The rows of a part with a set of instructions, which torch reads once, in an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.fusion", f"--{part}", str(file), "--seconds", str(seconds)]
        own = {"ATEN_CPU_CAPABILITY": vectors, "TORCHINDUCTOR_CACHE_DIR": folder}
        if part == "loops":  # a thread that waits is not to be counted
            own |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
        subprocess.run(command, check=True, env=os.environ | own)
        return json.loads(file.read_text(encoding="utf-8"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each row, five turns at least")
    parser.add_argument("--vectors", choices=instruction_sets(), help="one set of instructions; all by default")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; repeatable, all by default")
    for part in PARTS:
        parser.add_argument(f"--{part}", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    for part, run in PARTS.items():
        if file := getattr(options, part):
            Path(file).write_text(json.dumps(list(run(options.seconds))), encoding="utf-8")
            return 0
    console = Console(highlight=False)
    console.width = max(console.width, 120)
    record: dict[str, Any] = {"versions": versions(), "machine": machine("cpu")}
    parts = options.only or list(PARTS)
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in parts}
    for vectors in [options.vectors] if options.vectors else instruction_sets():
        for part in parts:
            if part == "rows" or vectors != "avx512":
                found = _in_a_process(part, vectors, options.seconds)
                console.print(TABLES[part](found, vectors))
                rows[part] += [row | {"vectors": vectors} for row in found]
    if options.json:
        write_results(options.json, record | rows)
    return 0


PARTS = {"rows": measure, "network": network, "loops": loops}
TABLES = {"rows": table, "network": network_table, "loops": loops_table}


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
