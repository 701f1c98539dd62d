"""The law of sums over ranks, once, for every array namespace: who adds what, and when it is rounded."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qcore.arrays import quantize
from qcore.distributed.collective import (
    AFTER,
    BEFORE,
    FIRST,
    GATHER,
    GLOO_RING,
    NCCL_PAT,
    NCCL_RING,
    NCCL_TREE,
    OWN_FIRST,
    PREMULTIPLY,
    SCATTER,
    SPLIT,
    TREES,
    Collective,
)
from qcore.formats.number import Number
from qcore.law.rounding import Rounding
from qcore.linalg.law import add_terms, rounded_sum

# What is folded into a key for the roundings that are not of the sum; from LEVELS on for the levels of a tree.
SUM, TERMS, DIVIDED, RESULT, LEVELS = range(5)
_RANDOM_BITS = 24
_SMALLEST = 2.0**-126  # of float32's normal numbers
_GLOO_SEGMENT = 1 << 20  # bytes
_NCCL_CHUNK, _NCCL_GRAIN = 1 << 21, 16  # bytes
Namespaces = Callable[[int], Any]  # the array namespace for the roundings of a role


class Signed:
    """What sums over ranks need of a namespace of products, before which this class stands.

    Processors keep -0 where all terms are -0, and sums of products are +0 there.
    """

    def __init__(self, key: Any = None, flush: bool = False) -> None:
        super().__init__(key)  # type: ignore[call-arg]
        self.flush = flush

    @staticmethod
    def unsigned_zero(x: Any) -> Any:
        return x

    @staticmethod
    def sequential(*arguments: Any) -> None:
        """No kernel, as those of products have no -0."""

    @staticmethod
    def ascending(*arguments: Any) -> None:
        """No kernel either."""

    @classmethod
    def product(cls, a: Any, b: Any) -> Any:
        """The terms themselves, which are multiplied by 1: a matrix product would add one of them to +0."""
        if a.shape[-1] == 1:
            return cls.float64(a)  # type: ignore[attr-defined]
        # Kept in memory: compilers drop a sum with zeros that they know, and the sum of -0 and +0 is +0.
        return cls.materialize(super().product(a, b))  # type: ignore[attr-defined,misc]

    def rounded(self, x: Any, number: Number, mode: Rounding, step: Any, random_bits: int) -> Any:
        found = super().rounded(x, number, mode, step, random_bits)  # type: ignore[misc]
        return flushed(self, found) if self.flush else found


def flushed(xp: Any, x: Any) -> Any:
    """Float64 numbers with zeros of their signs for those below float32's smallest normal number."""
    return xp.where(abs(x) < _SMALLEST, x * 0.0, x)


class Part(NamedTuple):
    """Elements begin to end of a message, in chunks; the k-th term of chunk c is rank first + c + step * k."""

    begin: int
    end: int
    chunk: int
    first: int = 0
    step: int = 1


def ceiling(count: int, size: int) -> int:
    """The number of pieces of a size that hold `count`."""
    return -(-count // size)


def gloo_chunk(count: int, ranks: int, size: int) -> int:
    """The elements of a chunk of gloo's ring, for a message of elements of `size` bytes."""
    total = count * size
    segments = max(ceiling(total, _GLOO_SEGMENT), 2 * ranks)
    segments = ceiling(segments, ranks) * ranks
    segment = ceiling(ceiling(total, segments), size) * size
    return segments // ranks * segment // size


def parts_of(order: str, count: int, ranks: int, size: int, scatters: bool) -> list[Part]:
    """How a message of `count` elements of `size` bytes is cut, and with which rank each chunk begins."""
    output = ceiling(count, ranks)
    if order == GLOO_RING:
        return [Part(0, count, gloo_chunk(count, ranks, size), -1, -1)]
    if order == OWN_FIRST:
        return [Part(0, count, output)]
    if order == NCCL_RING and scatters:
        return [Part(0, count, output, 1)]
    if order == NCCL_RING:
        chunk, grain = _NCCL_CHUNK // size, _NCCL_GRAIN // size
        full = count // (chunk * ranks) * chunk * ranks
        last = ceiling(ceiling(count - full, ranks), grain) * grain
        return [part for part in (Part(0, full, chunk, 1), Part(full, count, last, 1)) if part.end > part.begin]
    if order == NCCL_PAT:
        return [Part(0, count, output, 0, -1)]
    return [Part(0, count, 0)]  # one order for all elements


def arranged(xp: Any, x: Any, part: Part) -> Any:
    """The terms (N, elements) of a part in the order in which they are added, of x, the numbers (N, n) of each rank."""
    ranks, count = x.shape[0], part.end - part.begin
    if not part.chunk:
        return x
    chunks = ceiling(count, part.chunk)
    x = xp.pad(x[:, part.begin : part.end], [(0, 0), (0, chunks * part.chunk - count)])
    index = np.arange(chunks)
    ranks_of = (part.first + index + part.step * np.arange(ranks)[:, None]) % ranks
    rows = x.reshape(ranks * chunks, part.chunk)[(ranks_of * chunks + index).ravel()]
    return rows.reshape(ranks, chunks * part.chunk)[:, :count]


@lru_cache(maxsize=64)
def levels(order: str, ranks: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """A tree's additions in an order that is possible: nodes, and the child that each adds next. Rank 0 is the root."""
    children = _tree_children if order == NCCL_TREE else _pat_children
    waiting = {node: children(node, ranks) for node in range(ranks)}
    found, done = [], {node for node, left in waiting.items() if not left}
    while len(done) < ranks:
        ready = [node for node, left in waiting.items() if left and left[0] in done]
        found.append((tuple(ready), tuple(waiting[node].pop(0) for node in ready)))
        done.update(node for node in ready if not waiting[node])
    return tuple(found)


def _tree_children(node: int, ranks: int) -> list[int]:
    """The children of a node of NCCL's first tree, in the order in which it adds them."""
    if node == 0:
        return [1 << ((ranks - 1).bit_length() - 1)]
    low = (node & -node) >> 1
    if not low:
        return []
    upper = low
    while upper and node + upper >= ranks:
        upper >>= 1
    return [node - low, node + upper] if upper else [node - low]


def _pat_children(offset: int, ranks: int) -> list[int]:
    """The offsets that an offset of PAT's binomial tree adds, in order."""
    top = (offset & -offset).bit_length() - 1 if offset else (ranks - 1).bit_length()
    return [offset + (1 << k) for k in reversed(range(top)) if offset + (1 << k) < ranks]


def _by_tree(names: Namespaces, terms: Any, law: Collective) -> Any:
    """The sum of terms (N, n) by a tree: every step adds a child to each node that is ready for one."""
    accumulator: Any = law.accumulator
    totals = names(SUM).float64(terms)
    row = {node: node for node in range(terms.shape[0])}  # where a node's newest total is
    for level, (nodes, children) in enumerate(levels(law.order, terms.shape[0])):
        xp = names(LEVELS + level)
        pair = [totals[np.array([row[node] for node in some])] for some in (nodes, children)]
        found = rounded_sum(xp, xp.plus(pair[0], pair[1]), accumulator, 0)
        row.update({node: totals.shape[0] + place for place, node in enumerate(nodes)})
        totals = xp.concatenate([totals, found])
    return totals[row[0]]


def split_factor(ranks: int) -> int:
    """FSDP's first factor of float16: doubled from 1 while it divides the ranks and is below the other factor."""
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return factor


def _sent(names: Namespaces, x: Any, law: Collective, dtype: Number) -> Any:
    """What ranks send, float32 of x's shape (N, n), of which row r belongs to rank r."""
    if law.wire == dtype:
        return x
    xp = names(TERMS)
    return xp.float32(xp.rounded(xp.float64(x), law.wire, law.rounding, 0, _RANDOM_BITS))


def _divided(names: Namespaces, terms: Any, law: Collective) -> Any:
    """The terms before they are added, divided if the law divides there."""
    xp, number, ranks = names(DIVIDED), law.wire, terms.shape[0]
    wide = xp.float64(terms)
    if law.divide == PREMULTIPLY:
        found = wide * float(quantize(np.float64(1 / ranks), number))  # type: ignore[arg-type]
    elif law.divide in (BEFORE, SPLIT):
        found = xp.divide(wide, float(ranks if law.divide == BEFORE else split_factor(ranks)))
    else:
        return terms
    return xp.float32(xp.rounded(found, number, law.rounding, 0, _RANDOM_BITS))


def run(names: Namespaces, x: Any, law: Collective, dtype: Number, call: str) -> Any:
    """The numbers after a collective call: float64 numbers of the arrays' dtype, (n,), or (N, n) after a gather.

    Args:
        names: the array namespace for each role of a key.
        x: float32 numbers (N, n) of each rank, with at least one element.
        law: a collective with nothing left open.
        dtype: the format of the arrays' dtype.
        call: REDUCE, SCATTER or GATHER.
    """
    terms = _sent(names, x, law, dtype)
    if call != GATHER:
        terms = _divided(names, terms, law)
    if call == GATHER:
        total = names(SUM).float64(terms)
    elif x.shape[0] > 1 or (call == SCATTER and law.start != FIRST):
        total = _total(names, terms, law, call == SCATTER)
    else:  # an all-reduce of one rank adds nothing, so not to +0 either
        total = names(SUM).float64(terms[0])
    return total if law.wire == dtype else names(RESULT).rounded(total, dtype, Rounding.NEAREST, 0, _RANDOM_BITS)


def _total(names: Namespaces, terms: Any, law: Collective, scatters: bool) -> Any:
    """The result of ranks' terms (N, n), as it is sent on."""
    ranks, count = terms.shape
    assert law.wire is not None  # as nothing is left open
    assert law.accumulator is not None
    parts = parts_of(law.order, count, ranks, ceiling(law.wire.bits, 8), scatters)
    xp = names(SUM)
    terms = xp.concatenate([arranged(xp, terms, part) for part in parts], 1)
    if law.flush:
        terms = xp.float32(flushed(xp, xp.float64(terms)))
    if law.order in TREES:
        total = _by_tree(names, terms, law)
    elif law.start == FIRST:
        total = add_terms(xp, terms[1:], law.accumulator, terms[0])
    else:
        zeros = xp.materialize(xp.zeros((count,), terms))  # or compilers leave out the sum with it, and keep -0
        total = add_terms(xp, terms, law.accumulator, zeros)
    xp = names(RESULT)
    if law.divide in (AFTER, SPLIT):
        factor = ranks if law.divide == AFTER else ranks / split_factor(ranks)
        total = rounded_sum(xp, xp.divide(total, float(factor)), law.accumulator, 0)
    # A hop has rounded to the wire already.
    return total if law.accumulator.number == law.wire else xp.rounded(total, law.wire, law.rounding, 1, _RANDOM_BITS)
