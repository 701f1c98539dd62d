"""What a worker of a sweep of elementary functions does: all bit patterns of a range in NumPy, PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import jax
import numpy as np
import torch

from benchmarks.support.comparison import Case, Piece
from benchmarks.support.report import environment
from benchmarks.support.sweep_piece import CHUNK
from qcore.numerics.elementary.laws import ELEMENTARY
from qcore.numerics.operations import Names
from qjax.reproducible.array_names import Names as ArrayNames
from qtorch.reproducible.tensor_names import Names as TensorNames

KINDS = ("function", "derivative")
_PART = 1 << 15  # elements that NumPy does at a time: its temporaries then stay in a core's cache

Function = Callable[[Any], Any]


def function_piece(name: str, kind: str, start: int, stop: int) -> tuple[list[Case], dict[str, str]]:
    """Compares a function, or its derivative, of the float32 numbers with patterns from `start` to below `stop`.

    Returns:
        A case for each backend, and the versions of all that took part.
    """
    backends = _backends(name, kind)
    cases = {backend: Case(name, kind, backend) for backend in backends}
    for begin in range(start, stop, CHUNK):
        x = np.arange(begin, min(begin + CHUNK, stop), dtype=np.uint32).view(np.float32)
        expected = None
        for backend, function in backends.items():
            clock = perf_counter()
            result = function(x)
            seconds = perf_counter() - clock
            expected = result if expected is None else expected
            cases[backend].add(Piece(x, begin), expected, result, seconds)
    return list(cases.values()), _versions()


@cache
def _backends(name: str, kind: str) -> dict[str, Function]:
    torch.set_num_threads(1)  # other workers have the other processors
    torch._dynamo.reset()
    compiled = torch.compile(_evaluated(TensorNames, name, kind), fullgraph=True, dynamic=False)
    jitted = jax.jit(_evaluated(ArrayNames, name, kind))
    reference = _evaluated(Names, name, kind)

    def in_parts(x: np.ndarray) -> np.ndarray:
        return np.concatenate([reference(x[begin : begin + _PART]) for begin in range(0, x.size, _PART)])

    return {
        "numpy": in_parts,
        "torch eager": lambda x: _evaluated(TensorNames, name, kind)(torch.from_numpy(x)).numpy(),
        "torch compiled": lambda x: compiled(torch.from_numpy(x)).numpy(),
        "jax jit": lambda x: np.asarray(jitted(x)),
    }


def _evaluated(xp: Any, name: str, kind: str) -> Function:
    law = ELEMENTARY[name]

    def function(x: Any) -> Any:
        result, saved = law.run(xp, (x,), {})
        return result if kind == "function" else law.gradients(xp, saved, xp.zeros(tuple(x.shape), x) + 1.0, {})[0]

    return function


@cache
def _versions() -> dict[str, str]:
    return environment()["versions"]
