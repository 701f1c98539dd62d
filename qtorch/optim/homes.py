"""Tensors that others hold, as weights and momenta are, moved side by side so that no step copies them to and fro."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

import torch

from qtorch.optim.many import Bundle, copy_all

LIMIT = 1 << 16  # elements: a call more for larger tensors is nothing beside the call's work
_address = torch.Tensor.data_ptr
_contiguous = torch.Tensor.is_contiguous


class Homes(Bundle):
    """A bundle whose places may become the memory of the tensors themselves.

    What lives elsewhere is copied in and out. Any tensor may leave: others may assign its `data`, or move it to shared
    memory, which addresses tell. From then on all are copied.

    Attributes:
        homes: tensors in the memory of the places. On the CPU each has a storage of its own, so that whoever saves,
            pickles or copies it gets its elements, and not those of all. It cannot be made larger.
    """

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        super().__init__(like, LIMIT)
        self.homes = [_own_storage(place) if place.is_cpu else place for place in self.places]
        self._addresses: list[int | None] = list(map(_address, self.homes))
        self._moved: set[int] = set()  # those whose memory the homes are
        self._away: list[int] = []  # which homes were not the memory of the tensors last looked for

    @torch.no_grad()
    def move_in(self, tensors: Sequence[torch.Tensor]) -> None:
        """Moves those small ones that nobody else would miss where they are."""
        for n, (i, home) in enumerate(zip(self.small, self.homes, strict=True)):
            if _may_move(tensors[i]):
                tensors[i].data = home.copy_(tensors[i])
                self._moved.add(n)

    def locate(self, tensors: Sequence[torch.Tensor]) -> None:
        """Looks which of the small ones are here."""
        self._away = self._not_here([tensors[i] for i in self.small])
        if not self._moved.isdisjoint(self._away):
            self._abandon()

    def take(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.locate(tensors)
        copy_all([self.places[n] for n in self._away], [tensors[self.small[n]] for n in self._away])
        return self.parts_with(tensors)

    def outside(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Those whose memory the flat tensors are not."""
        return tuple(tensors[i] for i in [*self.large, *(self.small[n] for n in self._away)])

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies back what `take` has copied in."""
        copy_all([tensors[self.small[n]] for n in self._away], [self.places[n] for n in self._away])

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Whether the small ones are `homes` themselves, and none has left."""
        return (
            len(tensors) == len(self.small) + len(self.large)
            and all(map(operator.is_, small := [tensors[i] for i in self.small], self.homes))
            and list(map(_address, small)) == self._addresses
        )

    def _abandon(self) -> None:
        """Leaves the homes to whoever may have kept one: nothing is written there any more."""
        self.flats = [torch.zeros_like(flat) for flat in self.flats]
        self.places = self._views(self.flats)
        self._moved, self._addresses = set(), [None] * len(self.small)
        self._away = list(range(len(self.small)))

    def _not_here(self, small: Sequence[torch.Tensor]) -> list[int]:
        """Which homes are not the memory of the small ones."""
        if list(map(_address, small)) == self._addresses and all(map(_contiguous, small)):
            return []
        there = zip(small, self._addresses, strict=True)
        return [n for n, (x, address) in enumerate(there) if x.data_ptr() != address or not x.is_contiguous()]


def _own_storage(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor in the same memory, which is all of its storage."""
    begin = x.storage_offset() * x.element_size()
    storage = x.untyped_storage()[begin : begin + x.nbytes]
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, 0, x.shape)  # type: ignore[call-overload]


def _references(x: torch.Tensor) -> tuple[int, int]:
    """How many tensors and others refer to the storage of x, and to Python's object for it."""
    storage = x.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


_ALONE = _references(torch.nn.Parameter(torch.empty(1)))


def _may_move(x: torch.Tensor) -> bool:
    """Whether nobody but x has its memory.

    Others may be views, NumPy arrays and state dicts (which refer to it), other processes (shared memory), and whoever
    gave the memory (which torch then cannot resize). Recorded CUDA graphs leave no trace.
    """
    if not x.is_cpu or not x.is_contiguous() or _references(x) != _ALONE:
        return False
    storage = x.untyped_storage()
    return storage.resizable() and not storage.is_shared()
