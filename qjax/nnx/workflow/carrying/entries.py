"""Arrays by name, and which of them were used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_IGNORED = "num_batches_tracked", "eps"


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

    def take(self, name: str) -> np.ndarray:
        """An array, which counts as used."""
        if name not in self:
            raise ValueError(f"tensors has no {self.prefix + name!r}")
        self.used.add(self.prefix + name)
        return np.asarray(self.tensors[self.prefix + name])

    def maybe(self, name: str) -> np.ndarray | None:
        """An array, or None."""
        return self.take(name) if name in self else None

    def check_all_used(self) -> None:
        """Raises ValueError if an array belongs to no module."""
        left = [name for name in self.tensors if name not in self.used and name.rpartition(".")[2] not in _IGNORED]
        if left:
            raise ValueError(
                f"tensors has {', '.join(sorted(left)[:8])}, for which model has no module of this name and kind"
            )
