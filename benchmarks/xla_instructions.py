"""What speed in JAX is made of: the fusions that XLA makes of a rounding, and their instructions for each element.

Usage:
    python -m benchmarks.xla_instructions              formats of benchmarks.speed, for this processor
    python -m benchmarks.xla_instructions --json xla-instructions.json

XLA writes what it compiles to a folder (`--xla_dump_to`): the graph, whose fusions are loops over memory, and an object
file for each. Of each object the innermost loop that stores the most is taken, its instructions divided by the elements
that it stores, times its results for an element of the array. Objects whose loops store no vectors, as sums and maxima,
count as fusions only.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.speed import BLOCKS, ELEMENTS, STOCHASTIC
from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from qcore import parse
from qcore.law.rounding import Rounding

SHAPE = (4096, 4096)
_BYTES = {"x": 16, "y": 32, "z": 64}
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t(\S+)\s*(.*)")


def loops(lines: list[str]) -> Iterator[list[str]]:
    """The instructions of the innermost loops of a disassembled object: from where a jump leads back to the jump."""
    found = [one for one in map(_INSTRUCTION.match, lines) if one]
    places = {one[1]: index for index, one in enumerate(found)}
    ends = []
    for end, one in enumerate(found):
        begin = places.get(one[3].split(" ")[0], end) if one[2].startswith("j") else end
        if begin < end:
            ends.append((begin, end))
    for begin, end in ends:
        if not any(begin <= other and last < end for other, last in ends):
            yield [f"{one[2]} {one[3]}" for one in found[begin : end + 1]]


def stored(loop: list[str]) -> int:
    """The float32 elements of the vectors that a loop stores, other than on the stack."""
    moves = (re.fullmatch(r"v?mov\w+ %([xyz])mm\d+,(?!.*%r[sb]p).*\)", line) for line in loop)
    return sum(_BYTES[move[1]] for move in moves if move) // 4


def each(path: Path) -> float:
    """The instructions an element of an object's loop that stores vectors; 0 if there is none."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    size, instructions = max(((stored(loop), len(loop)) for loop in loops(text.splitlines())), default=(0, 0))
    return instructions / size if size else 0.0


def fusions(graph: str) -> dict[str, int]:
    """The elements of the results of a graph's fusions, by their names."""
    found = re.findall(r"%(\S+) = \(?\w+\[([\d,]*)\].* fusion\(", graph)
    return {name: math.prod(int(size) for size in sizes.split(",") if size) for name, sizes in found}


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    import jax
    import jax.numpy as jnp

    import qjax

    kinds = [(text, Rounding.NEAREST) for text in (*ELEMENTS, *BLOCKS)]
    kinds += [(text, Rounding.STOCHASTIC) for text in STOCHASTIC]
    x, key = jax.ShapeDtypeStruct(SHAPE, jnp.float32), jax.ShapeDtypeStruct((2,), jnp.uint32)
    for index, (text, mode) in enumerate(kinds):

        def rounded(x: Any, key: Any, text: str = text, mode: Rounding = mode) -> Any:
            return qjax.quantize(x, parse(text), mode, key=key if mode.stochastic else None)

        rounded.__name__ = f"rounding_{index}"
        jax.jit(rounded).lower(x, key).compile()
        (graph,) = folder.glob(f"*{rounded.__name__}.cpu_after_optimizations.txt")
        sizes, count = fusions(graph.read_text(encoding="utf-8")), 0.0
        for name, size in sizes.items():  # one of blocks' values has fewer elements
            objects = folder.glob(f"*{rounded.__name__}.*.{name}_kernel_module.o")
            count += sum(each(path) for path in objects) * size / math.prod(SHAPE)
        yield {"format": text, "operation": mode.value, "fusions": len(sizes), "each": count}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count the fusions and instructions that XLA makes of roundings.")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        rows = list(measure(Path(folder)))
    table = Table(box=SIMPLE, title="XLA on this processor: loops over memory, instructions an element")
    for column in ("format", "operation", "fusions", "instructions"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(row["format"], row["operation"], str(row["fusions"]), f"{row['each']:.2f}")
    Console(width=100).print(table)
    if options.json:
        os.environ["XLA_FLAGS"] = ""
        write_results(options.json, {"versions": versions(), "machine": machine("cpu"), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
