"""The functions of NumPy arrays, which are the reference, and the list of all laws."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arguments import check_seed
from qcore.binding import NUMPY
from qcore.random.threefry import as_lane
from qcore.reproducible import companded, elementwise, moves, muon, norms, optimizers, pooling, reductions, state_codes
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary import ELEMENTARY, PIECEWISE
from qcore.reproducible.operations import Names
from qcore.reproducible.state_codes import StateFunctions

# A package binds all laws to its arrays when it is imported, because a traced program cannot do it.
LAWS = (
    *ELEMENTARY.values(),
    *PIECEWISE.values(),
    *(
        law
        for file in (elementwise, reductions, norms, moves, pooling, optimizers, companded, state_codes, muon)
        for law in vars(file).values()
        if isinstance(law, Differentiable)
    ),
)


def apply(law: Differentiable, *arrays: Any, **options: Any) -> Any:
    """The result of a law on NumPy arrays."""
    return law.run(Names, arrays, options)[0]


class Arrays(StateFunctions, package=__name__.rpartition(".")[0], words=NUMPY):
    """The functions of NumPy arrays."""

    xp = Names

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        return apply(law, *arrays, **options)

    def float32(self, name: str, x: Any) -> Any:
        return _of_dtype(name, x, np.float32, "float32")

    def integers(self, name: str, x: Any) -> Any:
        return _of_dtype(name, x, np.integer, "integers")

    def bools(self, name: str, x: Any) -> Any:
        return _of_dtype(name, x, np.bool_, "bools")

    def detached(self, x: Any) -> Any:
        return x

    def number(self, value: float, like: Any) -> Any:
        return np.float32(value)

    def constants(self, array: np.ndarray, like: Any) -> np.ndarray:
        return array

    def known(self, x: Any) -> float:
        return float(x)

    def key_words(self, key: Any) -> np.ndarray:
        return np.array([as_lane(word) for word in check_seed(key)], np.int32)


FUNCTIONS = Arrays()


def _of_dtype(name: str, x: Any, scalar: type, allowed: str) -> Any:
    found = x.dtype if isinstance(x, np.ndarray | np.generic) else None
    if found is None or not np.issubdtype(found, scalar):
        came = f"a {type(x).__name__}" if found is None else f"an array of {found}"
        raise TypeError(f"{name} is {came}; allowed is a NumPy array of {allowed}")
    return x
