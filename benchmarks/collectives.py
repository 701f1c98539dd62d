"""What a sum over thousands of ranks costs beside their gradients: a `Reducer`'s `add`, on one core.

Usage:
    python -m benchmarks.collectives                     gradients of a million numbers
    python -m benchmarks.collectives --size 65536 --only torch
    python -m benchmarks.collectives --json benchmarks/results/collectives.json

An `add` takes turns with a copy of the gradient, and with a float32 addition in place, of the same framework. Times are
seconds of the processor, of all threads. The last column is the time of all ranks, for which the row's limit stands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from time import process_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import qcore.distributed
import qjax.distributed
import qtorch.distributed
from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.results import write_results
from benchmarks.support.timing import Call, by_turns, keep_pages, machine, versions
from qcore.distributed.reducer import MOST_RANKS

RANKS, SIZE, SECONDS = 16384, 1_000_000, 3.0
LIMIT = 10.0  # seconds of all ranks
GRADIENTS = 8  # that take turns: more than a cache holds
NAMES = {
    "nccl.ring.bf16": "nccl.ring.bf16",
    "nccl.ring.bf16.avg": "nccl.ring.bf16.avg",
    "nccl.tree.bf16": "nccl.tree.bf16",
    "nccl.ring.fp32": "nccl.ring.fp32",
    "megatron": "megatron",
    "nccl.ring.e4m3": "nccl.ring.e4m3",
    "torchft.avg": "torchft.avg",
    "bfloat16 ring, stochastic": "collective(wire=bfloat16,order=nccl_ring,rounding=stochastic)",
}
LIMITED = "nccl.ring.bf16", "nccl.ring.bf16.avg", "nccl.tree.bf16", "megatron"  # in PyTorch


@dataclass(frozen=True)
class Row:
    """The seconds of an `add`, a copy and a float32 addition of one gradient, and of all ranks."""

    framework: str
    collective: str
    dtype: str
    size: int
    add: float
    copy: float
    addition: float
    ranks: int
    all_ranks: float
    limit: float | None

    @property
    def copies(self) -> float:
        return self.add / self.copy

    @property
    def additions(self) -> float:
        return self.add / self.addition


def cpu_clock(call: Call, times: int) -> float:
    """The mean seconds of the processor of some calls in a row: other programs do not count."""
    begin = process_time()
    for _ in range(times):
        call()
    return (process_time() - begin) / times


def in_turn(function: Callable[[Any], object], gradients: list[Any]) -> Call:
    """A call of a function on the next gradient."""
    numbers = count()
    return lambda: function(gradients[next(numbers) % len(gradients)])


def in_numpy(dtype: str, size: int) -> tuple[Any, list[Any], Call, Call]:
    """The package, gradients, a copy and an addition."""
    gradients = _gradients(size) if dtype == "float32" else [x.astype(jnp.bfloat16) for x in _gradients(size)]
    copied, total, wide = np.empty_like(gradients[0]), np.zeros(size, np.float32), _gradients(size)
    added = in_turn(lambda x: np.add(total, x, out=total), wide)
    return qcore.distributed, gradients, in_turn(partial(np.copyto, copied), gradients), added


def in_torch(dtype: str, size: int) -> tuple[Any, list[Any], Call, Call]:
    wide = [torch.from_numpy(x) for x in _gradients(size)]
    gradients = [x.to(getattr(torch, dtype)) for x in wide]
    copied, total = torch.empty_like(gradients[0]), torch.zeros(size)
    return qtorch.distributed, gradients, in_turn(copied.copy_, gradients), in_turn(total.add_, wide)


def in_jax(dtype: str, size: int) -> tuple[Any, list[Any], Call, Call]:
    wide = [jnp.asarray(x) for x in _gradients(size)]
    gradients = [x.astype(dtype) for x in wide]
    copy, add = jax.jit(jnp.copy), jax.jit(jnp.add)
    added = in_turn(lambda x: add(x, wide[0]).block_until_ready(), wide)
    return qjax.distributed, gradients, in_turn(lambda x: copy(x).block_until_ready(), gradients), added


FRAMEWORKS = {"torch": in_torch, "jax": in_jax, "numpy": in_numpy}


def _gradients(size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(size, np.float32) for _ in range(GRADIENTS)]


def row(framework: str, name: str, dtype: str, size: int, seconds: float) -> Row:
    """Times one law, by its name here."""
    collective = NAMES[name]
    package, gradients, copy, addition = FRAMEWORKS[framework](dtype, size)
    if collective.startswith("torchft"):
        gradients = [x.reshape(-1, 100) for x in gradients]
    # Of more ranks than are timed. A tree's partial sums come and go as in one of fewer ranks.
    reducer = package.Reducer(collective, RANKS if "tree" in collective else MOST_RANKS, key=1)

    def add(gradient: Any) -> None:
        nonlocal reducer
        if "tree" in collective and reducer.came == RANKS:
            reducer = package.Reducer(collective, RANKS, key=1)
        reducer.add(gradient)

    mine, copied, added = by_turns([in_turn(add, gradients), copy, addition], cpu_clock, seconds)
    limit = LIMIT if framework == "torch" and name in LIMITED and size == SIZE else None
    return Row(
        framework, name, dtype, size, mine.median, copied.median, added.median, RANKS, mine.median * RANKS, limit
    )


def table_of(rows: list[Row]) -> Table:
    table = Table(box=SIMPLE)
    for name in ("framework", "collective", "gradients", "copies", "additions", f"{RANKS:,} ranks, s"):
        table.add_column(name, overflow="fold")
    for one in rows:
        above = one.limit is not None and one.all_ranks > one.limit
        figures = f"{one.copies:.1f}", f"{one.additions:.1f}", f"{one.all_ranks:.1f}"
        table.add_row(one.framework, one.collective, one.dtype, *figures, style="red" if above else None)
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.collectives", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", metavar="N", type=count_of("N", 100), default=SIZE, help="numbers of a gradient")
    parser.add_argument("--only", nargs="+", choices=list(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--names", metavar="NAME", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each row")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # or calls return before the work is done
    size = options.size // 100 * 100
    rows = []
    for framework in options.only:
        for name in options.names:
            for dtype in ("float32", "bfloat16"):
                rows.append(row(framework, name, dtype, size, options.seconds))
                print(f"{framework}, {name}, {dtype}: {rows[-1].copies:.1f} copies", file=sys.stderr, flush=True)
    Console().print(table_of(rows))
    if options.json:
        found = [asdict(one) | {"copies": round(one.copies, 2), "additions": round(one.additions, 2)} for one in rows]
        write_results(options.json, {"versions": versions(), "machine": machine("cpu"), "rows": found})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
