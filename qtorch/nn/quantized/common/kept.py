"""What is made of a layer's buffers, and kept beside the layer until one of them changes."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeVar

import torch

from qtorch._affine.dtypes import FixedDtypes
from qtorch._rounding.paths.choice import are_plain_tensors

T = TypeVar("T")
_versions = attrgetter("_version")


def _states(tensors: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """How often tensors were written to, and where they lie: `x.data = y` is no write."""
    return (*map(_versions, tensors), *map(torch.Tensor.data_ptr, tensors))


class _Kept(NamedTuple):
    """A thing, and the tensors and settings of which it was made."""

    tensors: tuple[torch.Tensor, ...]
    states: tuple[int, ...]
    settings: Any
    made: Any


class KeepsMade(FixedDtypes):
    """A layer that keeps what kernels read of its buffers, such as a packed weight.

    It is made anew where a buffer is another tensor or has other memory, or was written to: `torch.Tensor._version`
    counts writes, but for those by way of `.data`, of another process, and of NumPy. Copies and files of the layer do
    not have it.
    """

    def kept(self, tensors: tuple[torch.Tensor, ...], settings: Any, make: Callable[[], T]) -> T:
        """What `make` makes of tensors and settings, or made of them before."""
        last: _Kept | None = self.__dict__.get("_kept")
        if (
            last is not None
            and len(last.tensors) == len(tensors)
            and all(map(is_, last.tensors, tensors))
            and last.settings == settings
            and last.states == _states(tensors)
        ):
            return last.made
        return self._make(tensors, settings, make)

    def _make(self, tensors: tuple[torch.Tensor, ...], settings: Any, make: Callable[[], T]) -> T:
        # Writes to tensors of inference mode are not counted; those without memory are an export's, not the layer's.
        if any(one.is_inference() for one in tensors) or not are_plain_tensors(tensors):
            return make()
        states = _states(tensors)
        made = make()
        self.__dict__["_kept"] = _Kept(tensors, states, settings, made)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}
