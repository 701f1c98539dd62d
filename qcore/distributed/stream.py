"""Sums over ranks that come one by one: what is kept until all have come.

An order in which all elements begin with the same rank needs one sum, a tree those of at most log2(N) + 1 nodes. A
ring's chunks begin with different ranks, so a stream takes the ranks of each chunk in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from qcore.distributed import law
from qcore.distributed.collective import FIRST, TREES, Collective
from qcore.distributed.law import SUM, OfLevel, levels
from qcore.distributed.scale import Groups, groups_of
from qcore.formats.number import Number


class Level(NamedTuple):
    """One level of a collective.

    Attributes:
        law: its law, with nothing left open.
        ranks: the ranks that it adds.
        dtype: the format of the arrays' dtype.
        shape: the shape of a rank's array.
    """

    law: Collective
    ranks: int
    dtype: Number
    shape: tuple[int, ...]

    @property
    def groups(self) -> Groups | None:
        """The numbers that share scales on the wire."""
        return groups_of(self.law.scale, self.shape, self.ranks) if self.law.grouped else None

    @property
    def adds(self) -> bool:
        """False if one rank's numbers are the result: nothing is added, so not to +0 either."""
        return self.ranks > 1 or self.law.grouped


class Steps:
    """The steps of a sum, each on arrays of one dimension; packages have faster ones with the same bits.

    `x` are numbers of the arrays' dtype, terms are float32, and totals float64.
    """

    def __init__(self, level: Level, names: OfLevel) -> None:
        self.level, self.names = level, names

    def term(self, x: Any, rank: int) -> Any:
        """What a rank sends, of its float32 numbers; it may be the same array."""
        return term(self.level, self.names, x, rank)

    def kept(self, term: Any) -> Any:
        """A term, or a node's total, in memory of its own, as users write to their gradients."""
        return self.names(SUM).copy(term)

    def stored(self, total: Any) -> Any:
        """A total or a term as pickle keeps all of its bits."""
        return total

    def started(self, term: Any) -> tuple[Any, bool]:
        """The total at which a sum starts, and True if the first term is in it."""
        if not self.level.adds:
            return self.names(SUM).float64(term), True
        total, begun = law.started(self.names(SUM), term[None], self.level.law)
        return self.names(SUM).float64(total), bool(begun)

    def added(self, total: Any, terms: Sequence[Any], step: int) -> Any:
        """The total and terms, after so many roundings."""
        return added(self.level, self.names, total, terms, step)

    def node(self, term: Any) -> Any:
        """The total of a node of a tree before it has added its children; it may be the term's memory."""
        return node(self.level, self.names, term)

    def hop(self, total: Any, child: Any, level: int, row: int) -> Any:
        """The sum of the totals of a node of a tree and of its child, in any order; it may overwrite all but terms."""
        return hop(self.level, self.names, total, child, level, row)

    def result(self, total: Any) -> Any:
        """Numbers of the arrays' dtype, in float64."""
        return result(self.level, self.names, total)


def term(level: Level, names: OfLevel, x: Any, rank: Any) -> Any:
    sent = law.sent(names, x[None], level.law, level.dtype, rank, level.groups)
    return law.divided(names, sent, level.law, level.ranks, rank)[0]


def added(level: Level, names: OfLevel, total: Any, terms: Sequence[Any], step: Any) -> Any:
    return law.added(names(SUM), total, names(SUM).stack(terms), level.law, step)


def node(level: Level, names: OfLevel, term: Any) -> Any:
    return names(SUM).float64(law.flushed_terms(names(SUM), term, level.law))


def hop(level: Level, names: OfLevel, total: Any, child: Any, of_tree: int, row: Any) -> Any:
    return law.hop(names, total[None], child[None], level.law, of_tree, row)[0]


def result(level: Level, names: OfLevel, total: Any) -> Any:
    if level.adds:
        total = law.result(names, total, level.law, level.ranks, level.groups)
    return law.finished(names, total, level.law, level.dtype)


class Chain:
    """A sum in the order in which terms come, with as many of them in memory as the accumulator's chunk has."""

    def __init__(self, level: Level, steps: Steps) -> None:
        self.level, self.steps = level, steps
        self.total: Any = None
        self.waiting: list[Any] = []
        self.summed = 0
        self.terms = level.ranks - (level.law.start == FIRST)

    def __getstate__(self) -> dict[str, Any]:
        total = None if self.total is None else self.steps.stored(self.total)
        return vars(self) | {"total": total, "waiting": [*map(self.steps.stored, self.waiting)]}

    def add(self, rank: int, term: Any) -> None:
        if self.total is None:
            self.total, begun = self.steps.started(term)
            if begun:
                return
        assert self.level.law.accumulator is not None
        length = self.level.law.accumulator.length(self.terms)
        self.waiting.append(term if length == 1 else self.steps.kept(term))
        if len(self.waiting) == length or self.summed + len(self.waiting) == self.terms:
            step = self.level.law.accumulator._roundings(self.summed)
            self.total = self.steps.added(self.total, self.waiting, step)
            self.summed += len(self.waiting)
            self.waiting = []


class Join(NamedTuple):
    """Where a tree adds a node: to which one, in which step of the tree, and where in this step."""

    parent: int
    level: int
    row: int


@lru_cache(maxsize=8)
def joins(order: str, ranks: int, aggregation: int) -> tuple[dict[int, Join], dict[int, list[int]]]:
    """The place of each node but the root, and the children of each node that has some, in the order of additions."""
    found: dict[int, Join] = {}
    children: dict[int, list[int]] = {}
    for level, (nodes, added) in enumerate(levels(order, ranks, aggregation)):
        for row, (parent, child) in enumerate(zip(nodes, added, strict=True)):
            found[child] = Join(parent, level, row)
            children.setdefault(parent, []).append(child)
    return found, children


class Tree:
    """A sum by a tree: a node's children are added as soon as they are complete."""

    def __init__(self, level: Level, steps: Steps) -> None:
        self.steps = steps
        self.joins, self.children = joins(level.law.order, level.ranks, level.law.aggregation)
        self.totals: dict[int, Any] = {}
        self.next: dict[int, int] = {}  # of nodes that wait, the number of children that are in their totals

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"totals": {rank: self.steps.stored(total) for rank, total in self.totals.items()}}

    def add(self, rank: int, term: Any) -> None:
        self.totals[rank], self.next[rank] = self.steps.node(term), 0
        new = rank  # whose total is in the term's memory, until it is added: most are, so few are copied
        while True:
            children = self.children.get(rank, [])
            while self.next[rank] < len(children) and self._complete(children[self.next[rank]]):
                child = children[self.next[rank]]
                of_child = self.joins[child]
                del self.next[child]
                pair = self.totals[rank], self.totals.pop(child)
                kept, added = pair[::-1] if rank == new else pair
                self.totals[rank] = self.steps.hop(kept, added, of_child.level, of_child.row)
                self.next[rank] += 1
                new = -1 if new in (rank, child) else new
            if not self._complete(rank) or rank == 0 or self.joins[rank].parent not in self.next:
                if new >= 0:
                    self.totals[new] = self.steps.kept(self.totals[new])
                return
            rank = self.joins[rank].parent

    def _complete(self, node: int) -> bool:
        return self.next.get(node) == len(self.children.get(node, []))

    @property
    def total(self) -> Any:
        return self.totals[0]


class Stream:
    """A collective's sum of ranks that come one by one, numbered as they come.

    Args:
        level: the law and the number of ranks.
        names: the array namespaces, as for `law.run`.
        steps: makes the steps of a level from it and its namespaces.
    """

    def __init__(self, level: Level, names: law.Namespaces, steps: Callable[[Level, OfLevel], Steps]) -> None:
        self.whole, self.names, self.make = level, names, steps
        nodes = level.ranks // level.law.inner_ranks
        self.level = level._replace(ranks=nodes)
        self.steps = steps(self.level, partial(names, level.law.flush))
        self.fold = (Tree if level.law.order in TREES and nodes > 1 else Chain)(self.level, self.steps)
        self.inner: Stream | None = None
        self.came = 0

    def add(self, x: Any) -> None:
        """Adds the next rank's numbers."""
        of_rank, inner = self.came, self.whole.law.inner
        self.came += 1
        if inner is not None:
            node, place = divmod(of_rank, self.whole.law.inner_ranks)
            if self.inner is None:
                names = law.of_node(self.names, node, self.level.ranks)
                self.inner = Stream(self.whole._replace(law=inner, ranks=self.whole.law.inner_ranks), names, self.make)
            self.inner.add(x)
            if place + 1 < self.whole.law.inner_ranks:
                return
            x, self.inner = self.names(inner.flush, SUM).float32(self.inner.result()), None
            of_rank = node
        self.fold.add(of_rank, self.steps.term(x, of_rank))

    def result(self) -> Any:
        """The sum of all ranks: numbers of the arrays' dtype, in float64."""
        return self.steps.result(self.fold.total)
