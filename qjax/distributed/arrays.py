"""Sums over ranks on JAX arrays."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import missing_key
from qcore.distributed.arrays import check_stack, checked_dtype, scattered
from qcore.distributed.backends import CollectiveLike, check_collective
from qcore.distributed.collective import GATHER, REDUCE, SCATTER, Collective
from qcore.distributed.law import SUM, Signed, run
from qcore.formats.number import Number, check_number
from qcore.law.rounding import Rounding
from qjax._rounding.dispatch import quantize_rows
from qjax._rounding.inputs import ArrayLike, as_array
from qjax._rounding.keys import Key, fold_in, key_words
from qjax.linalg.namespace import Float64

_ARRAYS = (jax.Array, np.ndarray), "a jax.Array or NumPy array"


class Terms(Signed, Float64):
    """The array namespace of sums over ranks, see `qcore.distributed.arrays.Terms`."""

    def each_rounded(self, x: jax.Array, number: Number, mode: Rounding, first: Any) -> jax.Array:
        places = first + jnp.arange(x.shape[0], dtype=jnp.int32)
        keys = None if self.key is None else fold_in(self.key.view(jnp.uint32), places)
        return quantize_rows(x, number, mode, keys, jnp.zeros_like(places))


def reduce(stack: ArrayLike, collective: CollectiveLike, *, key: Key = None) -> jax.Array:
    """The sum of N ranks' arrays that every rank has after an all-reduce, or their mean.

    It has the bits of `qcore.distributed.reduce`, also in jit and vmap.

    Args:
        stack: array of shape (N, ...), float32, float16 or bfloat16: the array of each rank. It is one message, cut as
            the collective cuts it. A bucket of several arrays is their concatenation.
        collective: a name of `qcore.distributed.BACKENDS`, such as "gloo" or "nccl.ring.bf16", with ".avg" after it for
            the mean; or a `Collective`, or its text.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, two 32-bit words, a uint32 array of two words, or a
            key of jax.random.

    Returns:
        An array of shape (...) and stack's dtype. It has no derivative.

    Raises:
        TypeError: if stack has another dtype (sums of integers are exact in every order), or is differentiated.
        ValueError: if the collective has no all-reduce, or stochastic rounding has no key.

    Example:
        >>> reduce(jnp.float32([[1.0], [256.0], [1.0]]), "nccl.ring.bf16")  # 257 is no bfloat16
        Array([256.], dtype=float32)
    """
    return _call(REDUCE, stack, collective, key)


def reduce_scatter(stack: ArrayLike, collective: CollectiveLike, *, key: Key = None) -> jax.Array:
    """What each of N ranks has after a reduce-scatter: its part of the sum of all arrays, or of their mean.

    Args:
        stack: array of shape (N, n, ...), whose n is a multiple of N; dtypes as for `reduce`.
        collective, key: as for `reduce`.

    Returns:
        An array of shape (N, n / N, ...) and stack's dtype, with the part of each rank.

    Raises:
        ValueError: if N does not divide n, the collective has no reduce-scatter, or stochastic rounding has no key.

    Example:
        >>> reduce_scatter(jnp.float32([[1.0, 2.0], [3.0, 4.0]]), "nccl.pat")
        Array([[4.],
               [6.]], dtype=float32)
    """
    return _call(SCATTER, stack, collective, key)


def all_gather(stack: ArrayLike, collective: CollectiveLike, *, key: Key = None) -> jax.Array:
    """What every rank has after an all-gather: the arrays of all ranks, rounded to the wire.

    Args:
        stack, collective, key: as for `reduce`.

    Returns:
        An array of stack's shape and dtype.

    Raises:
        ValueError: if stochastic rounding has no key.

    Example:
        >>> all_gather(jnp.float32([[0.3], [1.0]]), "collective(wire=e4m3fn)")
        Array([[0.3125],
               [1.    ]], dtype=float32)
    """
    return _call(GATHER, stack, collective, key)


def psum(x: ArrayLike, axis_name: Hashable, collective: CollectiveLike, *, key: Key = None) -> jax.Array:
    """`jax.lax.psum` of an array as a program computes it: equal bits in `jax.shard_map` and in `jax.vmap`.

    All ranks' arrays are gathered, and each rank computes `reduce` of them.

    Args:
        x: the array of this rank, float32, float16 or bfloat16.
        axis_name: the axis of the mesh or of vmap, or a tuple of several, whose ranks are counted in row-major order.
        collective, key: as for `reduce`; all ranks have the same key.

    Returns:
        An array of x's shape and dtype, equal on all ranks.

    Raises:
        TypeError: if x has another dtype, or is differentiated.
        ValueError: if the collective has no all-reduce, or stochastic rounding has no key.

    Example:
        >>> ranks = jnp.float32([1.0, 256.0, 1.0])  # 257 is no bfloat16
        >>> jax.vmap(lambda x: psum(x, "ranks", "nccl.ring.bf16"), axis_name="ranks")(ranks)
        Array([256., 256., 256.], dtype=float32)
    """
    checked_dtype("x", x, *_ARRAYS)
    axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    # Only a mesh knows that all devices have the same stack.
    on_mesh = set(axes) <= set(jax.sharding.get_abstract_mesh().manual_axes)
    stack = jax.lax.all_gather(as_array(x), axis_name, to="invarying" if on_mesh else "varying")
    return reduce(stack, collective, key=key)


def _call(call: str, stack: Any, collective: Any, key: Any) -> jax.Array:
    dtype = check_stack(stack, *_ARRAYS, call == SCATTER)
    law = check_collective(collective, dtype, call, stack.shape[0])
    if law.stochastic and key is None:
        raise missing_key()
    words = None if key is None else key_words(key)
    return _run(law, call, as_array(stack, "stack"), words)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
@partial(jax.jit, static_argnums=(0, 1))
def _run(law: Collective, call: str, stack: jax.Array, key: Any) -> jax.Array:
    shapes = {REDUCE: lambda shape: shape[1:], SCATTER: scattered, GATHER: lambda shape: shape}
    shape = shapes[call](stack.shape)
    if stack.size == 0:
        return jnp.zeros(shape, stack.dtype)
    with jax.enable_x64(True):
        x = to_float32(stack.reshape(stack.shape[0], prod(stack.shape[1:])))
        found = run(partial(names_of, key), x, law, check_number(stack.dtype.name), call, stack.shape[1:])
        return from_float32(Float64.float32(found), stack.dtype).reshape(shape)


@_run.defjvp
def _refuse(law: Collective, call: str, primals: Any, tangents: Any) -> Any:
    raise TypeError(f"stack is differentiated, and {call} has no derivative; allowed is jax.lax.stop_gradient(stack)")


def names_of(key: Any, flush: bool, role: int) -> Terms:
    """The namespace for a role of a key."""
    if key is None:
        return Terms(None, flush)
    return Terms(jnp.asarray(key if role == SUM else fold_in(key, role)).view(jnp.int32), flush)


def to_float32(x: jax.Array) -> jax.Array:
    """Bfloat16 by its bits: XLA's conversion on CPUs may make zeros of subnormal numbers."""
    if x.dtype != jnp.bfloat16:
        return x.astype(jnp.float32)
    return (x.view(jnp.int16).astype(jnp.int32) << 16).view(jnp.float32)


def from_float32(x: jax.Array, dtype: Any) -> jax.Array:
    """Float32 numbers that the dtype has, in it."""
    if dtype != jnp.bfloat16:
        return x.astype(dtype)
    return (x.view(jnp.int32) >> 16).astype(jnp.int16).view(jnp.bfloat16)
