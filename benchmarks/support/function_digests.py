"""Elementary functions in NumPy, PyTorch and JAX over ranges of bit patterns, and digests of their results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
import torch

from qcore.reproducible.elementary import ELEMENTARY
from qcore.reproducible.operations import Names
from qjax.reproducible.operations import Names as ArrayNames
from qtorch.reproducible.operations import Names as TensorNames

KINDS = ("function", "derivative")
BACKENDS = ("torch compiled", "jax jit", "numpy", "torch eager", "jax eager")  # the fast ones first
CHUNK = 1 << 17  # elements at a time: they stay in the cache, and a call costs little
_PART = 1 << 15  # that NumPy does at a time, for its temporaries
_WEIGHTS = np.random.default_rng(20_261_124).integers(0, 1 << 64, CHUNK, np.uint64)

Function = Callable[[np.ndarray], np.ndarray]


def digest(name: str, kind: str, backend: str, start: int, stop: int) -> str:
    """A hash of the bits of a function, or its derivative, of the float32 numbers with patterns from `start` on.

    The hash is a SHA-256 of numbers of 64 bits, one for each 2^17 results: the sum of their bits times random weights,
    modulo 2^64. Results that differ have the same sum for at most one of 2^33 choices of the weights (multilinear
    hashing: Carter and Wegman, "Universal Classes of Hash Functions", 1979).
    """
    function, found = function_of(name, kind, backend), hashlib.sha256()
    for _, x in _chunks(start, stop):
        bits = function(x).view(np.uint32)
        found.update((bits * _WEIGHTS[: bits.size]).sum(dtype=np.uint64).tobytes())
    return found.hexdigest()[:16]


def difference(name: str, kind: str, backends: tuple[str, str], start: int, stop: int) -> str:
    """How many results of two backends differ, and the first of them, as a text."""
    functions, count, first = [function_of(name, kind, backend) for backend in backends], 0, ""
    for begin, x in _chunks(start, stop):
        results = [function(x).view(np.uint32) for function in functions]
        places = np.flatnonzero(results[0] != results[1])
        if places.size and not count:
            bits = " and ".join(f"{found[places[0]]:08x}" for found in results)
            first = f", the first of {begin + int(places[0]):08x}: {bits}"
        count += places.size
    return f"{name}, {kind}, {' and '.join(backends)}: {count:,} results differ{first}"


def _chunks(start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
    for begin in range(start, stop, CHUNK):
        yield begin, np.arange(begin, min(begin + CHUNK, stop), dtype=np.uint32).view(np.float32)


@cache
def function_of(name: str, kind: str, backend: str) -> Function:
    """A function, or its derivative, as a backend computes it, in one thread."""
    torch.set_num_threads(1)
    if backend == "numpy":
        reference = _evaluated(Names, name, kind)
        return lambda x: np.concatenate([reference(x[begin : begin + _PART]) for begin in range(0, x.size, _PART)])
    if backend.startswith("jax"):
        on_arrays = _evaluated(ArrayNames, name, kind)
        run = jax.jit(on_arrays) if backend == "jax jit" else on_arrays
        return lambda x: np.asarray(run(jax.numpy.asarray(x)))
    function = _evaluated(TensorNames, name, kind)
    if backend == "torch compiled":
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, dynamic=False)
    return lambda x: function(torch.from_numpy(x)).numpy()


def _evaluated(xp: Any, name: str, kind: str) -> Callable[[Any], Any]:
    law = ELEMENTARY[name]

    def function(x: Any) -> Any:
        result, saved = law.run(xp, (x,), {})
        return result if kind == "function" else law.gradients(xp, saved, xp.zeros(tuple(x.shape), x) + 1.0, {})[0]

    return function
