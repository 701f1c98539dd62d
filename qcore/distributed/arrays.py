"""Sums over ranks on NumPy arrays: the reference that the other packages must equal bit for bit."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from qcore import arrays
from qcore.arguments import check_seed, check_type, missing_key
from qcore.distributed.backends import DTYPES, CollectiveLike, check_collective
from qcore.distributed.collective import GATHER, REDUCE, SCATTER
from qcore.distributed.law import SUM, Signed, run
from qcore.formats.number import Number, check_number
from qcore.law.rounding import Rounding
from qcore.linalg.namespace import Float64
from qcore.random.threefry import fold_in


class Terms(Signed, Float64):
    """The array namespace of sums over ranks.

    `each_rounded(x, number, mode, first)` rounds the float32 arrays of x's first axis to a format, each with the words
    of `fold_in(key, first + place)`.
    """

    def each_rounded(self, x: np.ndarray, number: Number, mode: Rounding, first: int) -> np.ndarray:
        keys = [None if self.key is None else fold_in(self.key, first + place) for place in range(len(x))]
        return np.stack([arrays.quantize(one, number, mode, key=key) for one, key in zip(x, keys, strict=True)])


def reduce(stack: np.ndarray, collective: CollectiveLike, *, key: arrays.Key = None) -> np.ndarray:
    """The sum of N ranks' arrays that every rank has after an all-reduce, or their mean.

    Args:
        stack: array of shape (N, ...), float32, float16 or bfloat16: the array of each rank. It is one message, cut as
            the collective cuts it. A bucket of several arrays is their concatenation.
        collective: a name of `BACKENDS`, such as "gloo" or "nccl.ring.bf16", with ".avg" after it for the mean; or a
            `Collective`, or its text.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, or two 32-bit words.

    Returns:
        An array of shape (...) and stack's dtype. Every NaN is the same positive one. One rank's array is rounded to
        the wire alone. Infinities and overflow are those of the formats.

    Raises:
        TypeError: if stack has another dtype; sums of integers are exact in every order.
        ValueError: if the collective has no all-reduce, or stochastic rounding has no key.

    Example:
        >>> ranks = np.float32([[1.0], [256.0], [1.0]])  # 257 is no bfloat16
        >>> reduce(ranks, "nccl.ring.bf16"), reduce(ranks, "nccl.ring.fp32"), reduce(ranks, "gloo.avg")
        (array([256.], dtype=float32), array([258.], dtype=float32), array([86.], dtype=float32))
    """
    return _run(REDUCE, stack, collective, key).reshape(stack.shape[1:])


def reduce_scatter(stack: np.ndarray, collective: CollectiveLike, *, key: arrays.Key = None) -> np.ndarray:
    """What each of N ranks has after a reduce-scatter: its part of the sum of all arrays, or of their mean.

    Args:
        stack: array of shape (N, n, ...), whose n is a multiple of N; dtypes as for `reduce`.
        collective, key: as for `reduce`.

    Returns:
        An array of shape (N, n / N, ...) and stack's dtype, with the part of each rank.

    Raises:
        ValueError: if N does not divide n, the collective has no reduce-scatter, or stochastic rounding has no key.

    Example:
        >>> reduce_scatter(np.float32([[1, 2], [3, 4]]), "nccl.pat")
        array([[4.],
               [6.]], dtype=float32)
    """
    return _run(SCATTER, stack, collective, key).reshape(scattered(stack.shape))


def all_gather(stack: np.ndarray, collective: CollectiveLike, *, key: arrays.Key = None) -> np.ndarray:
    """What every rank has after an all-gather: the arrays of all ranks, rounded to the wire.

    Args:
        stack, collective, key: as for `reduce`.

    Returns:
        An array of stack's shape and dtype.

    Raises:
        ValueError: if stochastic rounding has no key.

    Example:
        >>> all_gather(np.float32([[0.3], [1.0]]), "collective(wire=e4m3fn)")
        array([[0.3125],
               [1.    ]], dtype=float32)
    """
    return _run(GATHER, stack, collective, key).reshape(stack.shape)


def check_stack(stack: Any, classes: Any, allowed: str, scatters: bool) -> str:
    """The name of the dtype of a user's array, whose shape and dtype fit.

    Args:
        stack: the user's array.
        classes, allowed: the classes that it may have, and their names in messages.
        scatters: True for a reduce-scatter.
    """
    dtype = checked_dtype("stack", stack, classes, allowed)
    if stack.ndim < 1 + scatters or stack.shape[0] < 1:
        dimensions = "(ranks, n, ...)" if scatters else "(ranks, ...)"
        raise ValueError(f"stack has shape {tuple(stack.shape)}; allowed is {dimensions}, of at least one rank")
    if scatters and stack.shape[1] % stack.shape[0]:
        raise ValueError(f"stack has shape {tuple(stack.shape)}; allowed is a multiple of {stack.shape[0]} in axis 1")
    return dtype


def checked_dtype(name: str, x: Any, classes: Any, allowed: str) -> str:
    """The name of the dtype of a user's array that ranks can add; `name` is the argument's."""
    check_type(name, x, classes, f"{allowed} of {', '.join(DTYPES)}")
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {dtype}; allowed are {', '.join(DTYPES)}")
    return dtype


def scattered(shape: Any) -> tuple[int, ...]:
    """The shape of a reduce-scatter's result."""
    ranks, count = shape[:2]
    return (ranks, count // ranks, *shape[2:])


def _run(call: str, stack: np.ndarray, collective: Any, key: arrays.Key) -> np.ndarray:
    """The result of a call on each element, in one dimension or for a gather in two."""
    dtype = check_stack(stack, np.ndarray, "a NumPy array", call == SCATTER)
    law = check_collective(collective, dtype, call, stack.shape[0])
    words = None if key is None else check_seed(key)
    if law.stochastic and words is None:
        raise missing_key()
    x = stack.reshape(stack.shape[0], prod(stack.shape[1:])).astype(np.float32)
    if x.size == 0:
        return x.astype(stack.dtype) if call == GATHER else np.zeros(x.shape[1:], stack.dtype)

    def names(flush: bool, role: int) -> Terms:
        return Terms(words if role == SUM or words is None else fold_in(words, role), flush)

    with np.errstate(all="ignore"):
        found = run(names, x, law, check_number(dtype), call, stack.shape[1:]).astype(np.float32).astype(stack.dtype)
    found[np.isnan(found)] = np.nan
    return found
