"""Blocks of GGUF files beside the package of llama.cpp, gguf: how many bytes and numbers differ.

Usage:
    python -m benchmarks.gguf_files
    python -m benchmarks.gguf_files --json benchmarks/results/gguf-files.json

Read are random bytes of each type, with each of the 65,536 patterns of a scale; written are the types that the package
writes, of numbers of all sizes with many that lie in the middle of two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import gguf
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from qcore import decode, encode
from qcore.exchange.formats.gguf_law import LAYOUTS

READ = [kind for kind in LAYOUTS if kind not in ("q1_0", "q2_0")]  # which the package does not have
WRITTEN = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"]
# Where a block has its scale, if this is not the first place.
PLACES = {"q2_k": 80, "q3_k": 108, "q6_k": 208, "tq1_0": 52, "tq2_0": 64}


class Row(NamedTuple):
    """What was compared of a type of blocks: numbers that were read, or bytes that were written."""

    kind: str
    what: str
    count: int
    differing: int


def kind_of(kind: str) -> Any:
    """The package's name of a type."""
    return gguf.GGMLQuantizationType[kind.upper()]


def random_blocks(kind: str, count: int) -> np.ndarray:
    """Random bytes (count, width) of blocks, whose scales take all patterns one after the other."""
    blocks = np.random.default_rng(2).integers(0, 256, (count, LAYOUTS[kind].width), np.uint8)
    place = PLACES.get(kind, 0)
    blocks[:, place : place + 2] = np.arange(count, dtype="<u2")[:, None].view(np.uint8)
    return blocks


def numbers(kind: str, count: int, seed: int = 4) -> np.ndarray:
    """Float32 numbers (count, size of a block): of many sizes, a quarter small integers times powers of two."""
    rng, size = np.random.default_rng(seed), LAYOUTS[kind].size
    x = rng.standard_normal((count, size)) * np.exp2(rng.integers(-30, 14, (count, 1)))
    x[::4] = rng.integers(-16, 17, (len(x[::4]), size)) * np.exp2(rng.integers(-6, 6, (len(x[::4]), 1)))
    return x.astype(np.float32)


def read(kind: str, blocks: np.ndarray) -> Row:
    """The numbers of blocks; NaN is the quiet one here, and in the package as the processor has it."""
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, kind_of(kind))
    found = decode(blocks, f"gguf({kind})")
    same = found.view(np.uint32) == np.where(np.isnan(expected), 0x7FC00000, expected.view(np.uint32))
    return Row(kind, "numbers read", same.size, int((~same).sum()))


def written(kind: str, x: np.ndarray) -> Row:
    """The bytes of numbers."""
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(x, kind_of(kind))
    found = encode(x, f"gguf({kind})")
    return Row(kind, "bytes written", expected.size, int(np.count_nonzero(found != expected)))


def rows(blocks: int) -> Iterator[Row]:
    yield from (read(kind, random_blocks(kind, blocks)) for kind in READ)
    yield from (written(kind, numbers(kind, blocks)) for kind in WRITTEN)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gguf_files", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--blocks", metavar="N", type=count_of("blocks", 1), default=1 << 16, help="of each type")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write all rows there")
    given = parser.parse_args(arguments)
    package, found, shown = version("gguf"), [], Table("type", "what", "count", "differ", box=SIMPLE)
    for row in rows(given.blocks):
        found.append(row)
        shown.add_row(row.kind, row.what, f"{row.count:,}", f"{row.differing:,}")
    Console(width=100).print(shown)
    count, wrong = (sum(of) for of in zip(*((row.count, row.differing) for row in found), strict=True))
    print(f"{wrong:,} of {count:,} numbers and bytes differ from those of gguf {package}.")
    if given.json:
        record = {"versions": versions(), "machine": machine("cpu"), "gguf": package}
        write_results(given.json, record | {"rows": [row._asdict() for row in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
