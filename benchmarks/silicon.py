"""Sums that GPUs and this machine's CPU computed, beside the designs by name: how many of the measured bits differ.

Usage:
    python -m benchmarks.silicon
    python -m benchmarks.silicon --only H100
    python -m benchmarks.silicon --json benchmarks/results/silicon.json

The measured sums are those in tests/data/silicon, whose README has their source and licence. Then the instructions of
this machine's processor compute sums, if it has them (`cpu_sums.c` in benchmarks/support).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.support import cpu_sums
from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.cpu_sums import INSTRUCTIONS, why_not
from benchmarks.support.results import write_results
from benchmarks.support.timing import ROOT
from qcore.linalg import matmul

FILE = ROOT / "tests" / "data" / "silicon" / "sums.npz"
SOURCE = (
    "first 500 of the 5,000 rows of each file of model_validation/ in\n"
    "github.com/north-numerical-computing/MATLAB-tensor-core, commit b12b5a7, made for\n"
    'Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", ACM TACO, doi 10.1145/3830409'
)
CHIPS = {
    "V100": "volta",
    "A100": "ampere",
    "A2": "ampere",
    "Ada": "ada",
    "L40S": "ada",
    "H100": "hopper",
    "H200": "hopper",
    "B200": "blackwell",
}
# The last part of a design's name, and the dtype of the operands' codes.
FORMATS: dict[str, tuple[str, Any]] = {
    "fp16": ("f16", np.float16),
    "bf16": ("bf16", ml_dtypes.bfloat16),
    "tf32": ("tf32", np.float32),
    "E4M3": ("e4m3", ml_dtypes.float8_e4m3fn),
    "E5M2": ("e5m2", ml_dtypes.float8_e5m2),
}


class Measured(NamedTuple):
    """Sums of one GPU.

    Attributes:
        gpu, operands: as the file names them.
        output: "fp32" or "fp16", the format of the result.
        design: the name of the design.
        a, b: the operands, float32 arrays of shapes (500, 1, K) and (500, K, 1).
        c: the addends, float32, (500, 1, 1).
        result: the bits of the GPU's results as float32, (500,).
    """

    gpu: str
    operands: str
    output: str
    design: str
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    result: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.gpu}.{self.operands}.{self.output}"


def measured(path: Path = FILE) -> Iterator[Measured]:
    """All sets of the file."""
    with np.load(path) as file:
        for key in file:
            gpu, operands, part = key.split(".")
            if not part.startswith("d_"):
                continue
            output, (suffix, dtype) = part[2:], FORMATS[operands]
            # These were measured by wgmma, without an addend; all other sums by mma.
            alone = gpu in ("H100", "H200") and suffix in ("e4m3", "e5m2") and output == "fp32"
            a, b = (file[f"{gpu}.{operands}.{name}"].view(dtype).astype(np.float32) for name in "ab")
            c = file[f"{gpu}.{operands}.c"].view(np.float32)[:, None, None]
            c = c.astype(np.float16).astype(np.float32) if output == "fp16" else c
            short = suffix == "tf32" and CHIPS[gpu] in ("hopper", "blackwell")  # whose longest shape has 8 terms
            instruction = f"{CHIPS[gpu]}.{'wgmma' if alone else 'mma_k4' if short else 'mma'}.{suffix}"
            yield Measured(
                gpu,
                operands,
                output,
                instruction + (".f16" if output == "fp16" else ""),
                a[:, None, :],
                b[:, :, None],
                c * 0 if alone else c,
                file[key],
            )


def differing(one: Measured, multiply: Callable[..., np.ndarray] = matmul) -> int:
    """The number of sums whose bits are not those that were measured."""
    found = multiply(one.a, one.b, one.c, accumulator=one.design)
    return int((np.asarray(found).view(np.uint32).reshape(-1) != one.result).sum())


class Row(NamedTuple):
    """One set, and how many of its sums differ."""

    gpu: str
    operands: str
    result: str
    design: str
    sums: int
    differing: int


def compared(names: str) -> list[Row]:
    """A row for each set whose name contains a text."""
    return [
        Row(one.gpu, one.operands, one.output, one.design, len(one.result), differing(one))
        for one in measured()
        if names in one.name
    ]


def table(rows: list[Row]) -> Table:
    found = Table(box=SIMPLE)
    for column in ("GPU", "operands", "result", "design"):
        found.add_column(column, no_wrap=True)
    for column in ("sums", "differ"):
        found.add_column(column, justify="right")
    for row in rows:
        found.add_row(*map(str, row))
    return found


def prove(lanes: int) -> list[cpu_sums.Proof]:
    """What this machine's processor computes; printed as well, or which flags it lacks."""
    found = []
    for one in INSTRUCTIONS:
        if (reason := why_not(one)) is not None:
            print(reason)
            continue
        for row in cpu_sums.prove(one, lanes):
            found.append(row)
            print(
                f"{row.instruction}, {row.kind}: {row.differing:,} of {row.lanes:,} lanes differ from {row.accumulator}"
            )
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.silicon", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", metavar="TEXT", default="", help="only sets named so, such as H100.E4M3")
    parser.add_argument(
        "--lanes", metavar="N", type=count_of("lanes", 0), default=1_000_000, help="of each instruction of this CPU"
    )
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write all rows there")
    given = parser.parse_args(arguments)
    rows = compared(given.only)
    sums, wrong = sum(row.sums for row in rows), sum(row.differing for row in rows)
    Console(width=100).print(table(rows))
    print(f"{wrong:,} of {sums:,} measured sums differ.\nSource: {SOURCE}")
    proofs = prove(given.lanes) if given.lanes and not given.only else []
    if given.json:
        gpus = list(dict.fromkeys(row.gpu for row in rows))
        of_processor = [row._asdict() for row in proofs]
        record = {"source": SOURCE, "gpus": gpus, "sums": sums, "differing": wrong}
        write_results(given.json, record | {"processor": of_processor, "rows": [row._asdict() for row in rows]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
