"""Stacks of layers: scans each of whose iterations has weights of its own, and so counts as layers of its own.

A weight is of an iteration if it is a slice of what the scan slices, or is read at the scan's counter. A scan over
microbatches, or over the time of a recurrent layer, has the same weights in all iterations, and is no stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from qcore import Recipe
from qcore.linalg.product import Products
from qcore.recipes.recipe import CONV, LINEAR

LAYERS = (LINEAR, CONV)
WHILE = -1  # stands for a while_loop where depths of scans do: its number of iterations is not known


class Loop(NamedTuple):
    """A scan around a product.

    Attributes:
        begin: how many products the program has before the scan.
        length: the number of iterations.
        at: the iteration that is planned, in the order of their run.
    """

    begin: int
    length: int
    at: int = 0


@dataclass
class ProgramProduct:
    """A product of a program, which a recipe may lower.

    Attributes:
        name: its dotted name scope, or without a scope the path of its weight.
        kind: one of the types of a recipe's entries.
        weight: the operand that is the second factor; in a layer the weight.
        shapes: the shapes of the operands.
        size: the number of elements of a layer's weight, else 0.
        multiply_adds: the number of multiply-adds in all iterations; None if it depends on values.
        reason: the reason why a recipe cannot lower it, or "".
        own: the name of the function around it that has a derivative of its own, or "".
        loops: the scans around it, from the outside.
        sliced: the depths among these scans whose iterations have weights of their own here, in a layer.
    """

    name: str
    kind: str
    weight: int
    shapes: tuple[tuple[int, ...], ...]
    size: int
    multiply_adds: int | None
    reason: str
    own: str = ""
    loops: tuple[Loop, ...] = ()
    sliced: frozenset[int] = frozenset()


class State(NamedTuple):
    """The state of a layer's delayed scales.

    Attributes:
        stack: the depths of the scans that have a state for each iteration, and these scans.
        rows, history: the sizes of the state of an iteration.
    """

    stack: tuple[tuple[int, Loop], ...]
    rows: int
    history: int

    @property
    def shape(self) -> tuple[int, ...]:
        return *(loop.length for _, loop in self.stack), self.rows, 1 + self.history


Instance = tuple[int, tuple[int, ...]]  # a product, and the iterations of its stacks


class Stacks:
    """The stacks of a program's products.

    Attributes:
        found: the products.
        depths: for each product the depths of the scans in which each iteration has a product of its own.
    """

    def __init__(self, found: Sequence[ProgramProduct]) -> None:
        self.found = found
        layers = (one for one in found if one.kind in LAYERS)
        self._holding = {(depth, one.loops[depth].begin) for one in layers for depth in one.sliced if depth != WHILE}
        self.depths = [
            tuple(depth for depth in self.around(one.loops) if one.kind not in LAYERS or depth in one.sliced)
            for one in found
        ]

    def around(self, loops: Sequence[Loop]) -> list[int]:
        """The depths of those scans that are stacks."""
        return [depth for depth, loop in enumerate(loops) if (depth, loop.begin) in self._holding]

    def instances(self) -> list[Instance]:
        """All products in the order of their run; one that all iterations share is in the first."""
        return list(self._run(range(len(self.found)), ()))

    def _run(self, products: Sequence[int], at: tuple[int, ...]) -> Iterator[Instance]:
        depth = len(at)

        def loop_of(one: int) -> Loop | None:
            return next(iter(self.found[one].loops[depth:]), None)

        for loop, group in groupby(products, loop_of):
            inside = list(group)
            if loop is not None:
                length = loop.length if any(depth in self.depths[one] for one in inside) else 1
                for i in range(length):
                    yield from self._run(inside, (*at, i))
                continue
            for one in inside:
                own = self.depths[one]
                if not any(i for d, i in enumerate(at) if d not in own):
                    yield one, tuple(at[d] for d in own)

    def choose(self, recipe: Recipe) -> list[dict[tuple[int, ...], Products | None]]:
        """The recipe's products at each place of each product that can be lowered."""
        reached = [one for one in self.instances() if not self.found[one[0]].reason]
        layers = [(self.found[one].name, self.found[one].kind) for one, _ in reached]
        chosen: list[dict[tuple[int, ...], Products | None]] = [{} for _ in self.found]
        for (one, at), products in zip(reached, recipe._products_of(layers), strict=True):
            chosen[one][at] = products
        return chosen

    def runs(
        self, chosen: Sequence[dict[tuple[int, ...], Products | None]], begin: int, loops: Sequence[Loop], length: int
    ) -> list[tuple[int, int]]:
        """The runs of iterations with the same products, of a scan inside of loops that begins at a product."""
        depth, products = len(loops), defaultdict[int, list[Any]](list)
        for one in range(begin, len(self.found)):
            inside = self.found[one].loops[depth : depth + 1]
            if not inside or inside[0].begin != begin:
                break
            for at, its in chosen[one].items():
                place = dict(zip(self.depths[one], at, strict=True))
                if depth in place and all(place.get(d, loop.at) == loop.at for d, loop in enumerate(loops)):
                    products[place[depth]].append(its)
        if not length:
            return [(0, 0)]
        runs, end = [], 0
        for _, group in groupby(range(length), lambda i: products.get(i)):
            end += len(list(group))
            runs.append((runs[-1][1] if runs else 0, end))
        return runs
