"""What the limits of speed are made of: the instructions that a kernel takes for each element, from its assembly code.

Usage:
    python -m benchmarks.instructions                   all kernels of benchmarks.speed, for both instruction sets
    python -m benchmarks.instructions --json instructions.json

A pass of a kernel is a loop over vectors. For each pass this compiles the kernel as the package does, takes the loop
that stores or reads the most bytes, and divides its instructions by the elements that it handles; where operations on
pairs of 16-bit lanes are loops of their own, all of them. Where codes are
bytes, lanes of a whole chunk are made of them, or they of lanes, which takes half an instruction more. Counts depend
on the compiler alone, not on what else the machine does. The last column says how long that is at least on one core
of a processor that begins so many vector instructions a cycle.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.speed import BLOCKS, ELEMENTS, STOCHASTIC, has
from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from qcore import parse
from qcore.formats.block import BlockNumber
from qcore.law.blocks.tiles import as_matrix
from qtorch._kernels import compiler, laws
from qtorch._kernels.source import Kernel
from qtorch._rounding.plan import decoder, make_plan

SETS = {"avx2": ("ymm", 32), "avx512": ("zmm", 64)}  # registers, and their bytes
PASSES = ("reduce_tensor", "reduce_blocks", "elements")
SHAPE = (4096, 4096)
PER_CYCLE = {"avx2": 3, "avx512": 2}  # vector instructions that a processor of today begins in a cycle
CLOCK = 3.0  # GHz


@dataclass(frozen=True)
class Pass:
    """A loop of a kernel: its instructions, and the elements that it handles, each time round."""

    vectors: str
    format: str
    operation: str
    dtype: str
    name: str
    instructions: int
    elements: int

    @property
    def each(self) -> float:
        return self.instructions / self.elements

    @property
    def nanoseconds(self) -> float:
        """Of one core, an element, at least."""
        return self.each / PER_CYCLE[self.vectors] / CLOCK


def assembly(source: str, vectors: str) -> str:
    """The kernel's assembly code, with a function for each pass."""
    source = re.sub(
        rf"static void ({'|'.join(PASSES)})\(", r"__attribute__((noinline, noclone)) static void \1(", source
    )
    with tempfile.TemporaryDirectory() as folder:
        text, result = Path(folder, "kernel.c"), Path(folder, "kernel.s")
        text.write_text(source)
        command = [*compiler.command(compiler.X86_FLAGS[vectors]), "-S", str(text), "-o", str(result)]
        subprocess.run(command, check=True)
        return result.read_text()


def loops(lines: list[str]) -> Iterator[list[str]]:
    """The instructions of a function's innermost loops: from a label to a jump back to it."""
    labels = {line[:-1]: index for index, line in enumerate(lines) if re.fullmatch(r"\.L\d+:", line)}
    jumps = ((index, re.match(r"\tj\w+\t(\.L\d+)", line)) for index, line in enumerate(lines))
    ends = [(labels[jump[1]], end) for end, jump in jumps if jump and labels.get(jump[1], end) < end]
    for begin, end in ends:
        if not any(begin < other < last < end for other, last in ends):
            yield [line for line in lines[begin:end] if re.match(r"\t\w", line)]


def handled(loop: list[str], name: str, vectors: str) -> int:
    """The bytes that a loop stores, or of a pass that reduces, reads: those of its vectors."""
    register, size = SETS[vectors]
    place = r"(?!-?\d+\(%r[sb]p\))\S*\(\S+\)"  # memory, other than what the stack keeps for registers
    found = 0
    for line in loop:
        operands = line.split("\t")[-1]
        if name == "elements" and (move := re.fullmatch(rf"%([xyz])mm\d+, {place}", operands)):
            found += {"x": 16, "y": 32, "z": 64}[move[1]]
        elif name != "elements" and re.match(rf"{place}, .*%{register}", operands):
            found += size
    return found


def kernel_of(text: str, operation: str, dtype: torch.dtype) -> Kernel:
    """The kernel of an operation of `benchmarks.speed`, for tensors of two dimensions."""
    number = parse(text)
    matrix = as_matrix(SHAPE, number.block_sizes(2)) if isinstance(number, BlockNumber) else None
    layout = "flat" if matrix is None else laws.layout_of(matrix)
    if operation == "decode":
        storage = f"uint{make_plan(number, 'nearest', dtype, None, True).program.storage}"
        return laws.decoding_kernel(decoder(number, dtype)[0], storage, layout)
    mode = "nearest" if operation == "encode" else operation
    return laws.rounding_kernel(make_plan(number, mode, dtype, None, operation == "encode").kernels.compiled[0], layout)


def passes(text: str, operation: str, dtype: torch.dtype, vectors: str) -> Iterator[Pass]:
    kernel = kernel_of(text, operation, dtype)
    functions = re.split(r"\n(?=[a-z_][\w.]*:\n)", assembly(kernel.source(), vectors))
    for function in functions:
        name = function.partition(":")[0]
        if name not in PASSES:
            continue
        found = [(handled(loop, name, vectors), loop) for loop in loops(function.splitlines())]
        if operation == "decode":
            found = [(size, loop) for size, loop in found if size < 4 * len(loop)]  # others only widen codes of bytes
        size, length = max(((size, len(loop)) for size, loop in found), default=(0, 0))
        pairs = sum(bool(value.pairs) for value in kernel.trace.values.values())
        if pairs and name == "elements" and vectors == "avx2" and not kernel.width:
            stages = list(without_remainders(found))[-2 * pairs - 1 :]  # those before are another copy of them
            length = sum(len(loop) * size // own for own, loop in stages)
        if size:
            what = str(dtype).removeprefix("torch.")
            each = _stored_bytes(kernel) if (name, operation) == ("elements", "encode") else dtype.itemsize
            yield Pass(vectors, parse(text).text, operation, what, name, length, size // each)


def without_remainders(found: list[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The loops of a pass that are more than what another one, just before them and twice as long, leaves over."""
    before = 0
    for size, loop in found:
        if size >= 32 and 2 * size != before:
            yield size, loop
        before = size


def _stored_bytes(kernel: Kernel) -> int:
    """What the loop over elements stores for a code: codes of bytes are lanes until all of a chunk are narrowed."""
    dtype = kernel.results[0].dtype
    return int((kernel.lane if dtype == "uint8" else dtype).lstrip("uint")) // 8


def measure() -> Iterator[Pass]:
    for vectors in SETS:
        for text in (*ELEMENTS, *BLOCKS):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                yield from passes(text, "nearest", dtype, vectors)
        for text in STOCHASTIC:
            yield from passes(text, "stochastic", torch.float32, vectors)
        for operation in ("encode", "decode"):
            for text in (*ELEMENTS, *BLOCKS):
                if has(operation, text):
                    yield from passes(text, operation, torch.float32, vectors)


def compiler_version() -> str:
    command = [compiler.command(())[0], "--version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def table(rows: list[Pass]) -> Table:
    found = Table(
        box=SIMPLE, title=f"instructions an element; at {CLOCK:g} GHz and {PER_CYCLE} vector instructions a cycle"
    )
    for column in ("set", "format", "operation", "dtype", "pass"):
        found.add_column(column, no_wrap=True)
    for column in ("instructions", "elements", "each", "ns at least"):
        found.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        numbers = str(row.instructions), str(row.elements), f"{row.each:.2f}", f"{row.nanoseconds:.3f}"
        found.add_row(row.vectors, row.format, row.operation, row.dtype, row.name, *numbers)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count the instructions that kernels take for each element.")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    rows = list(measure())
    Console(width=130).print(table(rows))
    if options.json:
        facts = {"versions": versions() | {"compiler": compiler_version()}, "machine": machine("cpu")}
        records = [asdict(row) | {"each": row.each, "nanoseconds": row.nanoseconds} for row in rows]
        write_results(options.json, facts | {"rows": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
