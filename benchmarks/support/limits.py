"""What bounds the speed of each kind of rounding, and what it may take: the limits of `benchmarks.speed`.

A limit is in the units of the rows: copies of the same bytes, in JAX jitted `abs`, and for stochastic rounding
`torch.rand_like`, in JAX PyTorch's kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qcore import parse
from qcore.formats.block import BlockNumber

RESULTS = Path(__file__).parents[1] / "results"
SMALL, MIDDLE, LARGE = EXPONENTS = 6, 20, 24  # of two, in elements: a call, caches, memory
PACKAGE = "nearest, package"  # the operation that QTORCH_KERNELS=inductor runs, which no limit is for
Record = dict[str, Any]


@dataclass(frozen=True)
class Bound:
    """What a kind of rows cannot be faster than.

    Attributes:
        by: calls, instructions or memory.
        reason: why.
        limits: what rows may take, by instruction set; "jax" are XLA's loops.
    """

    by: str
    reason: str
    limits: dict[str, float]


_WORDS = "Threefry's 20 rounds for each random word; AVX2 has no rotation of vectors"
_CALL = "Python's steps and a new tensor; a copy is one function of C and makes none"
BOUNDS = {
    ("element", SMALL): Bound("calls", _CALL, {"avx2": 6, "avx512": 6}),
    ("stochastic", SMALL): Bound("calls", "the same; a key has a tensor too", {"avx2": 8, "avx512": 8}),
    ("element", MIDDLE): Bound(
        "instructions", "the law's 26 operations on a number", {"avx2": 4.5, "avx512": 4.5, "jax": 2.5}
    ),
    ("codes", MIDDLE): Bound(
        "instructions",
        "the law, a shift, a conversion, and loops between bytes and lanes",
        {"avx2": 6, "avx512": 5.5},
    ),
    ("block", MIDDLE): Bound(
        "instructions",
        "a pass for maxima and one for results; float64 has half as many lanes",
        {"avx2": 8, "avx512": 7, "jax": 7},
    ),
    ("nvfp4", MIDDLE): Bound(
        "instructions",
        "three passes, and seven comparisons a number; 16 bits are copied in half the time",
        {"avx2": 10.5, "avx512": 9.5, "jax": 10},
    ),
    ("element", LARGE): Bound("memory", "one read and one write, as a copy", {"avx2": 1.3, "avx512": 1.3, "jax": 1.3}),
    ("codes", LARGE): Bound("memory", "one read and one write, fewer bytes than a copy", {"avx2": 1.6, "avx512": 1.3}),
    ("block", LARGE): Bound(
        "memory",
        "parts of a tensor are read twice, once from a cache; XLA's loops read and write more often",
        {"avx2": 3.5, "avx512": 3, "jax": 3.5},
    ),
    ("nvfp4", LARGE): Bound(
        "memory",
        "two reads, the first for the largest magnitude of all; XLA writes bounds of blocks to memory",
        {"avx2": 5, "avx512": 3, "jax": 7},
    ),
    ("stochastic", MIDDLE): Bound("instructions", _WORDS, {"avx2": 0.5, "avx512": 0.3, "jax": 1.7}),
    ("stochastic", LARGE): Bound("instructions", "the same", {"avx2": 0.5, "avx512": 0.3, "jax": 1.7}),
}


def kind_of(operation: str, text: str) -> str:
    """Of an operation on a format: what has limits in common."""
    number = parse(text)
    if operation.startswith("stochastic"):
        return "stochastic"
    if isinstance(number, BlockNumber):
        return "nvfp4" if number.tensor_scale else "block"
    return "element" if operation == "nearest" else "codes"


def limit_of(operation: str, text: str, exponent: int, vectors: str) -> float | None:
    """What a row may take; None has no limit."""
    bound = None if operation == PACKAGE else BOUNDS.get((kind_of(operation, text), exponent))
    return None if bound is None else bound.limits.get(vectors)


def beyond(rows: Iterable[Record]) -> list[tuple[Record, float]]:
    """Rows of `benchmarks.speed` that take more than their limit, and the limit."""
    found = []
    for row in rows:
        limit = limit_of(row["operation"], row["format"], row["exponent"], row["vectors"])
        if limit is not None and row["ratio"] > limit:
            found.append((row, limit))
    return found
