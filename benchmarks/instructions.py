"""What the limits of speed are made of: the instructions that a kernel takes for each element, from its assembly code.

Usage:
    python -m benchmarks.instructions                   all kernels of benchmarks.speed, for both instruction sets
    python -m benchmarks.instructions --json instructions.json

A pass of a kernel is a loop over vectors. For each pass this compiles the kernel as the package does, takes the loop
that stores or reads the most bytes, and divides its instructions by the elements that it handles; where operations on
pairs of 16-bit lanes are loops of their own, all of them. What is done once a block is divided by its elements; where
there are fewer operations for usual blocks (see `qcore.law.program.Program.usual`), these are counted. Where codes are
bytes, lanes of a whole chunk are made of them, or they of lanes, which takes half an instruction more. Counts depend on
the compiler alone, not on what else the machine does.
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
from qcore.law.tiles import Matrix, as_matrix
from qcore.trace import BLOCK, ELEMENT, needed
from qtorch._kernels import compiler, laws
from qtorch._kernels.source import Kernel
from qtorch._rounding.plan import decoder, make_plan

SETS = {"avx2": ("ymm", 32), "avx512": ("zmm", 64)}  # registers, and their bytes
PASSES = ("reduce_tensor", "reduce_blocks", "block_values", "elements")
SHAPE = (4096, 4096)
NARROWING = {
    "vpmovwb": 2,
    "vpmovdw": 2,
    "vpmovqd": 2,
    "vpmovdb": 4,
    "vpmovqw": 4,
    "vpmovqb": 8,
}  # stores of less than a vector


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


def assembly(source: str, vectors: str) -> str:
    """The kernel's assembly code, with a function for each pass."""
    source = re.sub(
        rf"static (void|int) (({'|'.join(PASSES)})(_usual)?)\(",
        r"__attribute__((noinline, noclone)) static \1 \2(",
        source,
    )
    with tempfile.TemporaryDirectory() as folder:
        text, result = Path(folder, "kernel.c"), Path(folder, "kernel.s")
        text.write_text(source, encoding="utf-8")
        command = [*compiler.command(compiler.X86_FLAGS[vectors]), "-S", str(text), "-o", str(result)]
        subprocess.run(command, check=True)
        return result.read_text(encoding="utf-8")


def loops(lines: list[str]) -> Iterator[list[str]]:
    """The instructions of a function's innermost loops: from a label to a jump back to it."""
    labels = {line[:-1]: index for index, line in enumerate(lines) if re.fullmatch(r"\.L\d+:", line)}
    jumps = ((index, re.match(r"\tj\w+\t(\.L\d+)", line)) for index, line in enumerate(lines))
    ends = [(labels[jump[1]], end) for end, jump in jumps if jump and labels.get(jump[1], end) < end]
    for begin, end in ends:
        if not any(begin < other < last < end for other, last in ends):
            yield [line for line in lines[begin:end] if re.match(r"\t\w", line)]


def handled(loop: list[str], name: str) -> int:
    """The bytes that a loop stores, or of a pass that reduces, reads: those of its vectors."""
    sizes = {"x": 16, "y": 32, "z": 64}
    place = r"(?!-?\d+\(%r[sb]p\))\S*\(\S+\)"  # memory, other than what the stack keeps for registers
    found = 0
    for line in loop:
        words = line.split("\t")
        instruction, operands = words[1], words[-1]
        if not name.startswith("reduce") and (move := re.fullmatch(rf"%([xyz])mm\d+, {place}", operands)):
            found += sizes[move[1]] // NARROWING.get(instruction, 1)
        elif name.startswith("reduce") and (move := re.match(rf"{place}, .*%([xyz])mm", operands)):
            found += 0 if instruction.startswith(("vpbroadcast", "vmovd", "vmovq")) else sizes[move[1]]
    return found


def matrix_of(text: str) -> Matrix | None:
    """How kernels see the tensor that is counted for; None without blocks."""
    number = parse(text)
    return as_matrix(SHAPE, number.block_sizes(2)) if isinstance(number, BlockNumber) else None


def kernel_of(text: str, operation: str, dtype: torch.dtype) -> Kernel:
    """The kernel of an operation of `benchmarks.speed`, for tensors of two dimensions; that for usual blocks if any."""
    number, matrix = parse(text), matrix_of(text)
    layout = "flat" if matrix is None else laws.layout_of(matrix)
    if operation == "decode":
        storage = f"uint{make_plan(number, 'nearest', dtype, None, True).program.storage}"
        return laws.decoding_kernel(decoder(number, dtype)[0], storage, layout)
    mode = "nearest" if operation == "encode" else operation
    return laws.rounding_kernel(make_plan(number, mode, dtype, None, operation == "encode").kernels.compiled[0], layout)


def passes(text: str, operation: str, dtype: torch.dtype, vectors: str) -> Iterator[Pass]:
    """The passes of a kernel; of those that it has twice the ones for usual blocks."""
    kernel = kernel_of(text, operation, dtype)
    source = kernel.source()
    if kernel.width:  # the loops over what is left of a row take fewer instructions, as they know no blocks
        source = source.replace("FOR_RUNS {", "if (0) FOR_RUNS {")
    code = assembly(source, vectors)
    functions = {one.partition(":")[0]: one for one in re.split(r"\n(?=[a-z_][\w.]*:\n)", code)}
    kernel, what = kernel.usual or kernel, str(dtype).removeprefix("torch.")
    for name in PASSES:
        function = functions.get(f"{name}_usual", functions.get(name, ""))
        found = [(handled(loop, name), loop) for loop in loops(function.splitlines())]
        if operation == "decode" and name == "elements":
            found = [(size, loop) for size, loop in found if size < 4 * len(loop)]  # others only widen codes of bytes
        size, length = max(((size, len(loop)) for size, loop in found), default=(0, 0))
        pairs = sum(bool(value.pairs) for value in needed(kernel.values(ELEMENT), ELEMENT))
        if pairs and name == "elements" and vectors == "avx2" and not kernel.width:
            stages = list(without_remainders(found))[-2 * pairs - 1 :]  # those before are another copy of them
            length = sum(len(loop) * size // own for own, loop in stages)
        if size:
            elements = elements_of(size, text, operation, dtype, name, kernel)
            yield Pass(vectors, parse(text).text, operation, what, name, length, elements)


def elements_of(size: int, text: str, operation: str, dtype: torch.dtype, name: str, kernel: Kernel) -> int:
    """The elements that a loop handles which handles so many bytes."""
    if name == "block_values":
        handed = [value.width for value in needed(kernel.values(ELEMENT), ELEMENT) if value.level == BLOCK]
        written = [_bits(result.dtype) for result in kernel.results if result.value.level == BLOCK]
        matrix = matrix_of(text)
        assert matrix
        return 8 * size // sum(handed + written) * matrix.block_rows * matrix.block_columns
    if (name, operation) == ("elements", "encode"):  # codes of bytes are lanes until all of a chunk are narrowed
        dtype_of_codes = kernel.results[0].dtype
        return 8 * size // _bits(kernel.lane if dtype_of_codes == "uint8" else dtype_of_codes)
    return size // dtype.itemsize


def without_remainders(found: list[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The loops of a pass that are more than what another one, just before them and twice as long, leaves over."""
    before = 0
    for size, loop in found:
        if size >= 32 and 2 * size != before:
            yield size, loop
        before = size


def _bits(dtype: str) -> int:
    return int(dtype.lstrip("uint"))


def measure() -> Iterator[Pass]:
    for vectors in SETS:
        for text in (*ELEMENTS, *BLOCKS):
            for dtype in (torch.float32, torch.bfloat16, torch.float16, *([torch.float64] if text in BLOCKS else [])):
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
    found = Table(box=SIMPLE, title="instructions an element")
    for column in ("set", "format", "operation", "dtype", "pass"):
        found.add_column(column, no_wrap=True)
    for column in ("instructions", "elements", "each"):
        found.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        numbers = str(row.instructions), str(row.elements), f"{row.each:.2f}"
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
        records = [asdict(row) | {"each": row.each} for row in rows]
        write_results(options.json, facts | {"rows": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
