"""Sums over many ranks in one process, which gives the gradients of one rank after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from itertools import islice
from math import prod
from operator import itemgetter
from typing import Any, Literal, Self

import numpy as np

from qcore import arrays
from qcore.arguments import check_choice, check_int, check_seed, missing_key, quoted
from qcore.distributed.arrays import Terms, checked_dtype, reduce, reduce_scatter
from qcore.distributed.backends import CollectiveLike, check_collective
from qcore.distributed.collective import CUT, GATHER, NCCL_PAT, REDUCE, SCATTER, Collective
from qcore.distributed.law import SUM, OfLevel
from qcore.distributed.scale import RANKS as OF_RANKS
from qcore.distributed.stream import Level, Steps, Stream
from qcore.formats.number import check_number
from qcore.notices import progress
from qcore.random.threefry import fold_in

ROTATED, RANKS = "rotated", "ranks"
MOST_RANKS = 1 << 24
_FEW = 100  # ranks, for which no bar is shown


class Reduction:
    """What the `Reducer`s of the packages share: which gradients came, of which shapes, and how they are numbered."""

    classes: Any
    allowed: str
    terms: Any  # the array namespace

    def __init__(
        self,
        collective: CollectiveLike,
        ranks: int,
        *,
        labels: Literal["rotated", "ranks"] = ROTATED,
        key: Any = None,
    ) -> None:
        self.collective = collective
        self.ranks = check_int("ranks", ranks, 1, MOST_RANKS)
        check_choice("labels", labels, (ROTATED, RANKS))
        self._call = SCATTER if _is_pat(check_collective(collective, "float32", GATHER)) else REDUCE
        law = check_collective(collective, "float32", self._call, ranks)
        if _shares_scales(law):
            raise ValueError(
                f"collective={quoted(collective)} has scales of all ranks; allowed is `reduce` of all at once"
            )
        self.labels = labels if _is_cut(law) else RANKS
        self._keeps = self.labels == RANKS and _is_cut(law)
        self._key = self._words(key, law.stochastic)
        self._shapes: tuple[Any, ...] | None = None
        self.came = 0
        self._stack: list[Any] = []
        self._stream: Stream | None = None
        self._bar, self._show = ExitStack(), _nothing
        self._found: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """What came so far, for pickle and copy: a copy goes on with the same bits, without a bar."""
        return {name: value for name, value in vars(self).items() if name not in ("_bar", "_show")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _bar=ExitStack(), _show=_nothing)

    def __copy__(self) -> Self:
        return deepcopy(self)  # two sums in one memory would add each other's gradients

    def __repr__(self) -> str:
        law = self.collective if isinstance(self.collective, str) else self.collective.text
        return f"<Reducer of {self.ranks} ranks by {law}, labels: {self.labels}; {self.came} came>"

    def add(self, gradient: Any) -> None:
        """Adds the gradient of the next rank."""
        leaves, make = self._flattened(gradient)
        shapes = self._shapes_of(leaves)
        if self.came == self.ranks:
            raise ValueError(f"gradient is one more than ranks={self.ranks}; allowed is result(), which has their sum")
        if self._shapes is None:
            self._begin(shapes, leaves, make)
        elif shapes != self._shapes:
            raise ValueError(f"gradient has shapes {_shown(shapes)}; allowed are those before, {_shown(self._shapes)}")
        elif self._structure(make) != self._structure(self._make):
            raise ValueError("gradient has other names, or another order of them, than before; allowed are the first's")
        if self._keeps:
            self._stack.append(self._message(leaves, True))
        elif self._size:
            assert self._stream is not None  # as the first gradient made it
            with self.terms.arithmetic():
                self._stream.add(self._message(leaves, False))
        self.came += 1
        self._show(self.came / self.ranks)
        if self.came == self.ranks:
            self._found, self._stream, self._stack = self._sum(), None, []
            self._bar.close()

    def result(self) -> Any:
        """The sum of all ranks, or their mean, in the structure, shapes and dtype of a gradient."""
        if self.came < self.ranks:
            raise ValueError(f"result() after {self.came} gradients; allowed is it after ranks={self.ranks}")
        return self._make(self._parts())

    def _begin(self, shapes: tuple[Any, ...], leaves: list[Any], make: Callable[..., Any]) -> None:
        """Chooses the law for the dtype of the first gradient."""
        dtype = shapes[0][1]
        law = check_collective(self.collective, dtype, self._call, self.ranks)
        self._size = sum(prod(shape) for shape, _ in shapes)
        if self._keeps and self._call == SCATTER and self._size % self.ranks:
            raise ValueError(f"gradient has {self._size} numbers; allowed is a multiple of ranks={self.ranks}")
        self._like, self._make = self._message([leaves[0].reshape(-1)[:0]], True), make
        self._shape = shape = shapes[0][0] if len(shapes) == 1 else (self._size,)
        self._stream = Stream(Level(law, self.ranks, check_number(dtype), shape), self._names, self._steps)
        if self.ranks > _FEW:
            self._show = self._bar.enter_context(progress(f"{self.ranks:,} ranks, labels: {self.labels}"))
        self._shapes = shapes

    def _shapes_of(self, leaves: list[Any]) -> tuple[Any, ...]:
        """The shapes and dtypes of a gradient's arrays, of which there is at least one, all of one dtype."""
        if not leaves:
            raise ValueError("gradient has no arrays; allowed is at least one")
        dtypes = [checked_dtype("gradient", leaf, self.classes, self.allowed) for leaf in leaves]
        if len({*dtypes}) > 1:
            raise ValueError(f"gradient has dtypes {', '.join(sorted({*dtypes}))}; allowed is one: it is one message")
        return tuple((tuple(leaf.shape), dtype) for leaf, dtype in zip(leaves, dtypes, strict=True))

    def _sum(self) -> Any:
        """The whole message after the call, in one dimension."""
        if not self._size:
            return self._message([self._like], True)
        if self._keeps:
            return self._of_stack()
        assert self._stream is not None  # as gradients came
        with self.terms.arithmetic():
            return self._of_total(self._stream.result())

    def _parts(self) -> list[Any]:
        """The arrays of the result, in memory of their own: users write to them, and may ask for them again."""
        assert self._shapes is not None  # as gradients came
        shapes = [shape for shape, _ in self._shapes]
        ends = np.cumsum([prod(shape) for shape in shapes]).tolist()
        found = [self._found[end - prod(shape) : end] for shape, end in zip(shapes, ends, strict=True)]
        return [self._message([part], True).reshape(shape) for shape, part in zip(shapes, found, strict=True)]

    # What packages do in their own ways.

    def _words(self, key: Any, stochastic: bool) -> Any:
        """The words of the user's key."""
        raise NotImplementedError

    def _flattened(self, gradient: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
        """The arrays in a gradient, and a function that makes its structure of others."""
        return flattened(gradient)

    def _structure(self, make: Callable[[list[Any]], Any]) -> Any:
        """What tells structures apart: one with the places of its arrays in a message."""
        return make([*range(len(self._shapes or ()))])

    def _message(self, leaves: list[Any], kept: bool) -> Any:
        """The arrays as one of one dimension; in memory of its own if it is kept."""
        raise NotImplementedError

    def _names(self, flush: bool, role: int) -> Any:
        """The array namespace for a role of the key."""
        raise NotImplementedError

    def _steps(self, level: Level, names: OfLevel) -> Steps:
        """The steps of a level's sum."""
        return Steps(level, names)

    def _of_total(self, total: Any) -> Any:
        """A total of a stream in the gradients' dtype."""
        raise NotImplementedError

    def _of_stack(self) -> Any:
        """The call on all messages, in one dimension."""
        raise NotImplementedError


class Reducer(Reduction):
    """The sum of many ranks' gradients, given one after the other: one process simulates N.

    It has the bits of `reduce` of the stack of all gradients, for which it needs less memory: one sum where all
    elements begin with the same rank, log2(N) + 1 of them for a tree, and those of each level where there are several.
    An accumulator with chunks of c terms keeps c gradients. Of more than 100 ranks, a bar on standard error shows how
    many came, if this is a terminal and `rich` is installed.

    Chunks of a ring begin with different ranks, so no pass over the gradients in one order has all of them. `labels`
    says what is done, also as the attribute:

    - "rotated": in each chunk the k-th gradient is that of the rank whose number is added as the k-th. It has the law
      of the ring, for gradients that are alike in distribution, and the bits of `reduce` in chunk 0 of ranks renamed.
    - "ranks": the k-th gradient is that of rank k, in all chunks. Rings keep all gradients until the last one.

    Orders other than rings, "own_first" and "nccl_pat" have "ranks" always.

    `pickle` and `copy` keep what came so far: a copy goes on with the same bits.

    Args:
        collective: as for `reduce`; also NCCL's PAT, which has a reduce-scatter alone: its parts, one after the other.
        ranks: how many gradients will be added, N.
        labels: how gradients are numbered, "rotated" or "ranks".
        key: as for `reduce`.

    Attributes:
        labels: the labels that are used.
        came: how many gradients were added.

    Raises:
        ValueError: if ranks fill no nodes of the collective, or stochastic rounding has no key.

    Example:
        >>> reducer = Reducer("nccl.ring.bf16", ranks=3)
        >>> for number in 1.0, 256.0, 1.0:  # 257 is no bfloat16
        ...     reducer.add({"weight": np.float32([number])})
        >>> reducer.result(), reducer.labels
        ({'weight': array([256.], dtype=float32)}, 'rotated')
    """

    classes, allowed, terms = np.ndarray, "a NumPy array", Terms
    _key: tuple[int, int] | None

    def _words(self, key: arrays.Key, stochastic: bool) -> Any:
        if stochastic and key is None:
            raise missing_key()
        return None if key is None else check_seed(key)

    def _message(self, leaves: list[Any], kept: bool) -> Any:
        x = leaves[0].reshape(-1) if len(leaves) == 1 else np.concatenate([leaf.reshape(-1) for leaf in leaves])
        return np.array(x) if kept else x.astype(np.float32, copy=False)

    def _names(self, flush: bool, role: int) -> Terms:
        return Terms(self._key if role == SUM or self._key is None else fold_in(self._key, role), flush)

    def _of_total(self, total: Any) -> Any:
        found = total.astype(np.float32).astype(self._like.dtype)
        found[np.isnan(found)] = np.nan
        return found

    def _of_stack(self) -> Any:
        call = reduce if self._call == REDUCE else reduce_scatter
        return call(np.stack(self._stack).reshape(self.ranks, *self._shape), self.collective, key=self._key).reshape(-1)


def flattened(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of lists, tuples and dictionaries inside each other, and a function that makes the same of others.

    It is one that pickle takes.
    """
    if isinstance(tree, dict):
        leaves, make = flattened(list(tree.values()))
        return leaves, partial(_dictionary, list(tree), make)
    if not isinstance(tree, list | tuple):
        return [tree], itemgetter(0)
    parts = [flattened(part) for part in tree]
    places = [(len(leaves), make) for leaves, make in parts]
    return [leaf for leaves, _ in parts for leaf in leaves], partial(_sequence, type(tree), places)


def _dictionary(names: list[Any], make: Callable[[list[Any]], Any], leaves: list[Any]) -> dict[Any, Any]:
    return dict(zip(names, make(leaves), strict=True))


def _sequence(container: Any, parts: list[tuple[int, Callable[[list[Any]], Any]]], leaves: list[Any]) -> Any:
    """A list or a tuple of parts, each with the number of its leaves and the function that makes it of them."""
    rest = iter(leaves)
    items = [make([*islice(rest, count)]) for count, make in parts]
    return container(*items) if hasattr(container, "_fields") else container(items)


def _nothing(part: float) -> None:
    """Where no bar is shown."""


def _is_pat(law: Collective) -> bool:
    return law.order == NCCL_PAT or (law.inner is not None and _is_pat(law.inner))


def _is_cut(law: Collective) -> bool:
    return law.order in CUT or (law.inner is not None and _is_cut(law.inner))


def _shares_scales(law: Collective) -> bool:
    of_all = law.scale is not None and law.scale.group == OF_RANKS
    return of_all or (law.inner is not None and _shares_scales(law.inner))


def _shown(shapes: tuple[Any, ...]) -> str:
    return ", ".join(f"{shape} of {dtype}" for shape, dtype in shapes)
