"""Arrays by name, and which of them were used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qcore.affine.checkpoint import numbers_of
from qcore.arguments import check_type, quoted

_IGNORED = "num_batches_tracked", "eps"


def check_tensors(tensors: Any) -> None:
    """Raises unless an argument is a mapping of names.

    Raises:
        TypeError: if it is no mapping.
        ValueError: if a name is no text.
    """
    check_type("tensors", tensors, Mapping, "a mapping of names to arrays")
    for name in tensors:
        if not isinstance(name, str):
            raise ValueError(f"the name {quoted(name)} of tensors is a {type(name).__name__}; allowed is a str")


class Entries:
    """The arrays of a `state_dict` below a name.

    Args:
        tensors: all arrays by their whole names.
        prefix: of the names that are meant, with its dot.
        used: the whole names of arrays that were taken.
    """

    def __init__(self, tensors: Mapping[str, Any], prefix: str = "", used: set[str] | None = None) -> None:
        self.tensors, self.prefix = tensors, prefix
        self.used = set() if used is None else used

    def of(self, name: str) -> Entries:
        """Those below a name."""
        return Entries(self.tensors, f"{self.prefix}{name}." if name else self.prefix, self.used)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def take(self, name: str, ndim: int | None = None, size: int | None = None) -> np.ndarray:
        """An array of real numbers, which counts as used.

        Raises:
            ValueError: if it is missing or something else, or has another number of dimensions or elements.
        """
        whole = self.prefix + name
        if name not in self:
            raise ValueError(f"tensors has no {quoted(whole)}")
        self.used.add(whole)
        array = numbers_of(f"tensors[{quoted(whole)}]", self.tensors[whole])
        if ndim not in (None, array.ndim):
            raise ValueError(f"tensors[{quoted(whole)}] has shape {array.shape}; allowed are {ndim} dimensions")
        if size not in (None, array.size):
            raise ValueError(f"tensors[{quoted(whole)}] has shape {array.shape}; allowed are {size} elements")
        return array

    def maybe(self, name: str, ndim: int | None = None) -> np.ndarray | None:
        """An array, or None."""
        return self.take(name, ndim) if name in self else None

    def check_all_used(self) -> None:
        """Raises ValueError if an array belongs to no module."""
        left = [name for name in self.tensors if name not in self.used and name.rpartition(".")[2] not in _IGNORED]
        if left:
            raise ValueError(
                f"tensors has {', '.join(sorted(left)[:8])}, for which model has no module of this name and kind"
            )
