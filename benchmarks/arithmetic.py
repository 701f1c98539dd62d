"""How fast operations of formats are, against copies of their operands.

Usage:
    python -m benchmarks.arithmetic                    a minute
    python -m benchmarks.arithmetic --json benchmarks/results/arithmetic.json

The baseline of a row copies what the operation reads: two arrays of codes, or one of numbers; in JAX it is jitted `abs`
of them. Misses are red and counted, the exit status is 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import qcore.arithmetic
from benchmarks.support.results import write_results
from benchmarks.support.timing import Call, by_turns, clock_for, keep_pages, machine, versions
from qtorch import arithmetic

EXPONENT = 24  # of the number of elements
LIMITS = {"add_codes": 4.0, "exp": 6.0}  # on the CPU, in all packages, eager and compiled
FORMATS = {"add_codes": "e4m3fn", "exp": "bfloat16"}

Rows = Iterator[tuple[str, str, float, Call, Call]]


def torch_rows() -> Rows:
    """Rows of tensors: package, operation, limit, the operation and its baseline."""
    codes = torch.randint(0, 256, (2, 1 << EXPONENT), dtype=torch.uint8)
    numbers = torch.randn(1 << EXPONENT).bfloat16()
    of_codes, of_numbers = torch.empty_like(codes), torch.empty_like(numbers)

    def add() -> torch.Tensor:
        return arithmetic.add_codes(codes[0], codes[1], FORMATS["add_codes"])

    def exp() -> torch.Tensor:
        return arithmetic.exp(numbers)

    def copy_codes() -> object:
        return of_codes[0].copy_(codes[0]), of_codes[1].copy_(codes[1])

    for name, compile_ in (("PyTorch", False), ("PyTorch, compiled", True)):
        for operation, call, copy in (
            ("add_codes", add, copy_codes),
            ("exp", exp, lambda: of_numbers.copy_(numbers)),
        ):
            yield name, operation, LIMITS[operation], torch.compile(call) if compile_ else call, copy


def numpy_rows() -> Rows:
    """Rows of NumPy arrays; the baselines are copies."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (2, 1 << EXPONENT)).astype(np.uint8)
    numbers = rng.standard_normal(1 << EXPONENT).astype(ml_dtypes.bfloat16)

    def add() -> object:
        return qcore.arithmetic.add_codes(x, y, FORMATS["add_codes"])

    yield "NumPy", "add_codes", LIMITS["add_codes"], add, lambda: (x.copy(), y.copy())
    yield "NumPy", "exp", LIMITS["exp"], lambda: qcore.arithmetic.exp(numbers), numbers.copy


def jax_rows() -> Rows:
    """Rows of JAX arrays; the baseline is jitted `abs`."""
    import jax
    import jax.numpy as jnp

    from qjax import arithmetic as in_jax

    x, y = (jax.random.bits(jax.random.key(i), (1 << EXPONENT,), "uint8") for i in range(2))
    numbers, absolute = jax.random.normal(jax.random.key(2), (1 << EXPONENT,), "bfloat16"), jax.jit(jnp.abs)
    both = jax.jit(lambda x, y: (jnp.abs(x.view(jnp.int8)), jnp.abs(y.view(jnp.int8))))

    def add() -> object:
        return in_jax.add_codes(x, y, FORMATS["add_codes"]).block_until_ready()

    yield "JAX", "add_codes", LIMITS["add_codes"], add, lambda: jax.block_until_ready(both(x, y))
    exp = lambda: in_jax.exp(numbers).block_until_ready()  # noqa: E731
    yield "JAX", "exp", LIMITS["exp"], exp, lambda: absolute(numbers).block_until_ready()


def measure(rows: Rows, seconds: float) -> Iterator[dict[str, Any]]:
    """The median of each row, and of its baseline, in seconds a call."""
    for package, operation, limit, call, copy in rows:
        ours, baseline = by_turns([call, copy], clock_for("cpu"), seconds)
        ratio = ours.median / baseline.median
        facts = {"package": package, "operation": operation, "format": FORMATS[operation], "exponent": EXPONENT}
        times = {"seconds": ours.median, "baseline": baseline.median, "ratio": ratio}
        yield facts | times | {"limit": limit, "met": ratio <= limit}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.arithmetic", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each row, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine, rows and limits there")
    options = parser.parse_args(argv)
    console, rows = Console(highlight=False), []
    table = Table("package", "operation", "format", "a call", "baseline", "ratio", "limit", box=SIMPLE)
    for source in (torch_rows, numpy_rows, *([jax_rows] if find_spec("jax") else [])):
        for row in measure(source(), options.seconds):
            rows.append(row)
            times = [f"{row[name] * 1e3:.2f} ms" for name in ("seconds", "baseline")]
            names = (row["package"], row["operation"], row["format"])
            measured = f"{row['ratio']:.2f}", f"<= {row['limit']:g}"
            table.add_row(*names, *times, *measured, style=None if row["met"] else "red")
    console.print(table)
    limits = {"checked": len(rows), "missed": sum(not row["met"] for row in rows)}
    if options.json:
        facts = {"versions": versions(), "machine": machine("cpu")}
        write_results(options.json, facts | {"rows": rows, "limits": limits})
    console.print(f"{limits['missed']} of {limits['checked']} limits missed")
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
