"""The law of sums over ranks, once, for every array namespace: who adds what, and when it is rounded."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
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
from qcore.distributed.scale import Groups, groups_of
from qcore.distributed.scaling import scaled
from qcore.formats.number import Number
from qcore.law.rounding import Rounding
from qcore.linalg.law import add_terms, rounded_sum
from qcore.random.threefry import row_step

# What is folded into a key for the roundings that are not of the sum; from LEVELS on for the levels of a tree, and from
# NODES on for sums within nodes.
SUM, TERMS, DIVIDED, RESULT, LEVELS = range(5)
NODES = 256
_RANDOM_BITS = 24
_SMALLEST = 2.0**-126  # of float32's normal numbers
_GLOO_SEGMENT = 1 << 20  # bytes
_NCCL_CHUNK, _NCCL_GRAIN = 1 << 21, 16  # bytes
Namespaces = Callable[[bool, int], Any]  # the array namespace for a law's `flush` and the roundings of a role
OfLevel = Callable[[int], Any]  # the same, of one law


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


def parts_of(order: str, count: int, ranks: int, size: int, scatters: bool, unit: int = 1) -> list[Part]:
    """How a message of `count` elements of `size` bytes is cut, and with which rank each chunk begins.

    `unit` elements stay together where each rank adds a chunk of its own.
    """
    output = ceiling(count, ranks)
    if order == GLOO_RING:
        return [Part(0, count, gloo_chunk(count, ranks, size), -1, -1)]
    if order == OWN_FIRST:
        return [Part(0, count, ceiling(ceiling(count, unit), ranks) * unit)]
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
def levels(order: str, ranks: int, aggregation: int = 1) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """A tree's additions in an order that is possible: nodes, and the child that each adds next. Rank 0 is the root."""
    children = _tree_children if order == NCCL_TREE else partial(_pat_children, aggregation=aggregation)
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


def _pat_children(offset: int, ranks: int, aggregation: int) -> list[int]:
    """The offsets that an offset of PAT's binomial tree adds, in order."""
    whole = (ranks - 1).bit_length()
    top = (offset & -offset).bit_length() - 1 if offset else whole
    # Steps of several destinations are sent together from this distance on, nearest first, before those of distance 1.
    far = whole - (aggregation.bit_length() - 1)
    order = [*reversed(range(1, min(top, far))), *range(far, top), *range(min(top, 1))]
    return [offset + (1 << k) for k in order if offset + (1 << k) < ranks]


def _by_tree(names: OfLevel, terms: Any, law: Collective) -> Any:
    """The sum of terms (N, n) by a tree: every step adds a child to each node that is ready for one."""
    totals = names(SUM).float64(terms)
    row = {node: node for node in range(terms.shape[0])}  # where a node's newest total is
    for level, (nodes, children) in enumerate(levels(law.order, terms.shape[0], law.aggregation)):
        pair = [totals[np.array([row[node] for node in some])] for some in (nodes, children)]
        found = hop(names, pair[0], pair[1], law, level)
        row.update({node: totals.shape[0] + place for place, node in enumerate(nodes)})
        totals = names(SUM).concatenate([totals, found])
    return totals[row[0]]


def split_factor(ranks: int) -> int:
    """FSDP's first factor of float16: doubled from 1 while it divides the ranks and is below the other factor."""
    factor = 1
    while ranks % factor == 0 and ranks / factor > factor:
        factor *= 2
    return factor


def run(names: Namespaces, x: Any, law: Collective, dtype: Number, call: str, shape: tuple[int, ...]) -> Any:
    """The numbers after a collective call: float64 numbers of the arrays' dtype, (n,), or (N, n) after a gather.

    Args:
        names: the array namespace for a law's `flush` and the role of a key.
        x: float32 numbers (N, n) of each rank, with at least one element.
        law: a collective with nothing left open.
        dtype: the format of the arrays' dtype.
        call: REDUCE, SCATTER or GATHER.
        shape: the shape of a rank's array.
    """
    if law.inner is not None:
        x = _of_nodes(names, x, law, dtype, call, shape)
    xp, ranks = partial(names, law.flush), x.shape[0]
    groups = groups_of(law.scale, shape, ranks) if law.grouped else None
    if call == GATHER:
        return finished(xp, xp(SUM).float64(sent(xp, x, law, dtype, 0, groups, adds=False)), law, dtype)
    terms = divided(xp, sent(xp, x, law, dtype, 0, groups), law, ranks)
    if ranks > 1 or law.grouped or (call == SCATTER and law.start != FIRST):
        total = result(xp, _total(xp, terms, law, call == SCATTER, groups), law, ranks, groups)
    else:  # an all-reduce of one rank adds nothing, so not to +0 either
        total = xp(SUM).float64(terms[0])
    return finished(xp, total, law, dtype)


def _of_nodes(names: Namespaces, x: Any, law: Collective, dtype: Number, call: str, shape: tuple[int, ...]) -> Any:
    """What each node has after its own call, float32 numbers (N / inner_ranks, n), or (N, n) after a gather."""
    size, count = law.inner_ranks, x.shape[0] // law.inner_ranks
    nodes = [x[node * size : node * size + size] for node in range(count)]
    found = [
        run(of_node(names, node, count), rows, law.inner, dtype, call, shape)  # type: ignore[arg-type]
        for node, rows in enumerate(nodes)
    ]
    xp = names(law.flush, SUM)
    return xp.float32(xp.concatenate(found if call == GATHER else [row[None] for row in found]))


def of_node(names: Namespaces, node: int, count: int) -> Namespaces:
    """The array namespaces of one of `count` nodes: no role of a key is that of another node or level."""
    return partial(_named_by_node, names, node, count)


def _named_by_node(names: Namespaces, node: int, count: int, flush: bool, role: int) -> Any:
    return names(flush, NODES + role * count + node)


def sent(
    names: OfLevel,
    x: Any,
    law: Collective,
    dtype: Number,
    rank: int = 0,
    groups: Groups | None = None,
    adds: bool = True,
) -> Any:
    """What ranks send: float32 of the shape of x, (k, n), from rank `rank` on; k is 1 if rank is not 0.

    `groups` share scales, if the law is grouped; `adds` is True if receivers add the numbers.
    """
    xp = names(TERMS)
    if groups is not None:
        return _shared(xp, x, law, groups, rank, is_term=adds)
    if law.wire == dtype:
        return x
    return xp.float32(xp.rounded(xp.float64(x), law.wire, law.rounding, rank, _RANDOM_BITS))


def _shared(xp: Any, x: Any, law: Collective, groups: Groups, first: Any, ranks: int = 1, is_term: bool = False) -> Any:
    """Float32 numbers (k, n) as those of a wire on which they share scales; other arguments as for `scaled`."""
    assert law.wire is not None  # as nothing is left open
    if law.scale is not None:
        return scaled(xp, x, law.wire, law.rounding, law.scale, groups, first, ranks, is_term)
    messages = x.reshape(x.shape[0], *groups.shape)
    return xp.each_rounded(messages, law.wire, law.rounding, first).reshape(x.shape)


def divided(names: OfLevel, terms: Any, law: Collective, ranks: int, rank: int = 0) -> Any:
    """The terms before they are added, divided if the law divides there; shapes as for `sent`."""
    xp, number = names(DIVIDED), law.wire
    wide = xp.float64(terms)
    if law.divide == PREMULTIPLY:
        found = wide * float(quantize(np.float64(1 / ranks), number))  # type: ignore[arg-type]
    elif law.divide in (BEFORE, SPLIT):
        found = xp.divide(wide, float(ranks if law.divide == BEFORE else split_factor(ranks)))
    else:
        return terms
    return xp.float32(xp.rounded(found, number, law.rounding, rank, _RANDOM_BITS))


def _total(names: OfLevel, terms: Any, law: Collective, scatters: bool, groups: Groups | None) -> Any:
    """The sum of ranks' terms (N, n), float64 numbers (n,)."""
    ranks, count = terms.shape
    assert law.wire is not None  # as nothing is left open
    size = 1 if groups is not None and law.scale is None else ceiling(law.wire.bits, 8)
    parts = parts_of(law.order, count, ranks, size, scatters, 1 if groups is None else groups.unit)
    xp = names(SUM)
    terms = xp.concatenate([arranged(xp, terms, part) for part in parts], 1)
    if law.order in TREES:
        return _by_tree(names, flushed_terms(xp, terms, law), law)
    total, begun = started(xp, terms, law)
    return added(xp, total, terms[begun:], law, 0)


def flushed_terms(xp: Any, terms: Any, law: Collective) -> Any:
    """The terms, with zeros for subnormal numbers if the law has none."""
    return xp.float32(flushed(xp, xp.float64(terms))) if law.flush else terms


def started(xp: Any, terms: Any, law: Collective) -> tuple[Any, int]:
    """The float32 numbers (n,) at which a sum of terms (k, n) starts, and how many terms are in them."""
    if law.start == FIRST:
        return flushed_terms(xp, terms[0], law), 1
    # In memory, or compilers leave out the sum with it, and keep -0.
    return xp.materialize(xp.zeros(terms.shape[1:], terms)), 0


def added(xp: Any, total: Any, terms: Any, law: Collective, step: int) -> Any:
    """The total (n,) and terms (k, n) in ascending order; `step` is the number of earlier roundings of the sum."""
    assert law.accumulator is not None  # as nothing is left open
    return add_terms(xp, flushed_terms(xp, terms, law), law.accumulator, total, step)


def hop(names: OfLevel, totals: Any, found: Any, law: Collective, level: int, place: int = 0) -> Any:
    """The float64 sums of nodes of a tree and of their children (k, n), from a place of a level on."""
    accumulator: Any = law.accumulator
    xp = names(LEVELS + level)
    return rounded_sum(xp, xp.plus(totals, found), accumulator, row_step(place, accumulator.random_bits))


def result(names: OfLevel, total: Any, law: Collective, ranks: int, groups: Groups | None = None) -> Any:
    """The sum as it is sent on: divided if the law divides there, and rounded to the wire; `groups` share scales."""
    assert law.accumulator is not None  # as nothing is left open
    xp = names(RESULT)
    if law.scale is not None:
        assert groups is not None  # as there is a scale
        mean = ranks if law.divide == AFTER else 1
        return xp.float64(_shared(xp, xp.float32(total)[None], law, groups, 1, mean))[0]
    if law.divide in (AFTER, SPLIT):
        factor = ranks if law.divide == AFTER else ranks / split_factor(ranks)
        total = rounded_sum(xp, xp.divide(total, float(factor)), law.accumulator, 0)
    if groups is not None:
        return xp.float64(_shared(xp, xp.float32(total)[None], law, groups, 0))[0]
    # A hop has rounded to the wire already.
    if law.accumulator.number == law.wire:
        return total
    return xp.rounded(total, law.wire, law.rounding, 1, _RANDOM_BITS)


def finished(names: OfLevel, total: Any, law: Collective, dtype: Number) -> Any:
    """Numbers of the wire as numbers of the arrays' dtype, in float64."""
    if law.wire == dtype and not law.grouped:
        return total
    return names(RESULT).rounded(total, dtype, Rounding.NEAREST, 0, _RANDOM_BITS)
