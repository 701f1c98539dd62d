"""The array namespace of JAX: `qcore.namespace.Names` for JAX arrays, also traced ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from qcore import namespace

_VECTORS = 16, 32, 64  # int32 lanes whose maxima XLA on CPU computes together; among the last it takes them one by one
_STEP = 32  # elements; of more XLA on CPU makes a tree, for which it writes what is reduced to memory

_keep = jax.lax.optimization_barrier  # XLA makes one of two reductions after each other


class Names(namespace.Names):
    """`qcore.namespace.Names` for JAX arrays, also traced ones.

    XLA contracts products with sums, multiplies by reciprocals instead of dividing, and drops additions of 0. The
    functions below are written so that XLA cannot change their results.
    """

    where = staticmethod(jnp.where)
    clip = staticmethod(jnp.clip)
    quotient_error = 3
    short = True

    @staticmethod
    def amax(x: jax.Array, axis: tuple[int, ...], keepdims: bool) -> jax.Array:
        """The maximum along axes, in steps: XLA on CPU reduces int32 with vectors only where the last axis stays."""
        *others, length = x.shape
        last = len(others)
        rows = tuple(a for a in axis if a != last)
        vector = _vector(length, bool(rows))
        if last in axis and vector:
            x, rows = x.reshape(*others, length // vector, vector), (*rows, last)
        if last in axis and rows:
            x = _in_steps(x, rows[-1])
        if rows:
            x = _keep(jnp.max(x, axis=rows, keepdims=True))
        if last not in axis:
            return x
        return jnp.max(x, axis=tuple(range(last, x.ndim)), keepdims=True).reshape(*x.shape[:last], 1)

    @staticmethod
    def take(row: jax.Array | tuple[int, ...], places: jax.Array) -> jax.Array:
        return jnp.asarray(row, places.dtype).at[places].get(mode="promise_in_bounds")

    trunc = staticmethod(jnp.trunc)
    floor = staticmethod(jnp.floor)
    exp = staticmethod(jnp.exp)
    log = staticmethod(jnp.log)
    log1p = staticmethod(jnp.log1p)
    tanh = staticmethod(jnp.tanh)
    sin = staticmethod(jnp.sin)
    cos = staticmethod(jnp.cos)
    sqrt = staticmethod(jnp.sqrt)
    minimum = staticmethod(jnp.minimum)
    maximum = staticmethod(jnp.maximum)
    extremes = staticmethod(lambda x, axes: (jnp.min(x, axes), jnp.max(x, axes)))
    greatest = staticmethod(lambda x, axes: jnp.max(x, axes, keepdims=True))
    materialize = staticmethod(jax.lax.optimization_barrier)

    @staticmethod
    @contextmanager
    def arithmetic() -> Iterator[None]:
        """Elements of float64 meet scales of float32, which users may have forbidden for their own arithmetic."""
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            yield

    @staticmethod
    def unsigned(x: jax.Array) -> jax.Array:
        """Not by an addition of 0, which XLA leaves out."""
        return jnp.where(x == 0, 0.0, x)

    @staticmethod
    def rint(x: jax.Array) -> jax.Array:
        """rint without -0.0: XLA leaves out the addition of a zero point of 0, which would make +0.0 of it."""
        return Names.unsigned(jnp.rint(x))

    @staticmethod
    def divide(a: jax.Array, b: Any) -> jax.Array:
        """The divisor differs from element to element as far as XLA can tell; else it would take its reciprocal."""
        return jax.lax.div(*jnp.broadcast_arrays(a, jnp.where(a != a, a, b)))

    @staticmethod
    def rounded(product: jax.Array) -> jax.Array:
        """The product, behind a choice that keeps XLA from contracting it: twice the product, if it equals the product.

        LLVM removes a choice by NaN if both factors are known, such as converted integers and a constant scale.
        """
        largest = jnp.finfo(product.dtype).max
        return jnp.where(jnp.abs(product) <= largest, product, product + product)

    @staticmethod
    def astype(x: jax.Array, dtype: str) -> jax.Array:
        if x.dtype == jnp.bfloat16 and dtype == "float32":  # by bits: XLA may hand over a sum that it has not rounded
            return (x.view(jnp.uint16).astype(jnp.uint32) << 16).view(jnp.float32)
        return x.astype(dtype)

    full = staticmethod(jnp.full)
    full_like = staticmethod(jnp.full_like)
    arange = staticmethod(lambda size, like: jnp.arange(size, dtype=jnp.int32))
    zeros = staticmethod(lambda shape, like: jnp.zeros(shape, like.dtype))
    constant = staticmethod(lambda numbers, dtype, like: jnp.array(numbers, dtype))
    asarray = staticmethod(jnp.asarray)

    @staticmethod
    def concrete(x: Any) -> np.ndarray | None:
        """None also for an array with a part on another host."""
        if isinstance(x, Tracer) or (isinstance(x, jax.Array) and not x.is_fully_addressable):
            return None
        return np.asarray(x)

    copy = staticmethod(jnp.copy)
    stack = staticmethod(jnp.stack)
    concatenate = staticmethod(jnp.concatenate)
    broadcast_to = staticmethod(jnp.broadcast_to)
    repeat = staticmethod(jnp.repeat)
    einsum = staticmethod(partial(jnp.einsum, precision="highest"))
    total = staticmethod(lambda x, axes: jnp.sum(x, axes, jnp.int64, keepdims=True))

    @staticmethod
    def pad(x: jax.Array, widths: Sequence[tuple[int, int]], value: float = 0) -> jax.Array:
        return jnp.pad(x, widths, constant_values=value)

    program = staticmethod(lambda law, arrays, *settings: _program(law, settings, *arrays))
    cumsum = staticmethod(jnp.cumsum)
    argsort = staticmethod(lambda x: jnp.argsort(x, stable=True))
    cond = staticmethod(jax.lax.cond)  # type: ignore[assignment]
    while_loop = staticmethod(jax.lax.while_loop)  # type: ignore[assignment]

    @staticmethod
    def searchsorted(edges: jax.Array, x: jax.Array, right: bool = False) -> jax.Array:
        return jnp.searchsorted(edges, x, side="right" if right else "left").astype(jnp.int32)

    @staticmethod
    def bincount(index: jax.Array, weight: jax.Array, size: int) -> jax.Array:
        sums = jnp.zeros(size, jnp.float32).at[index].add(weight)
        return jax.lax.optimization_barrier(sums)  # else XLA adds the weights to whatever the sums are added to


@partial(jax.jit, static_argnums=(0, 1))
def _program(law: Callable[..., Any], settings: tuple[Any, ...], *arrays: Any) -> Any:
    return law(*arrays, *settings)


class WithFloat64(Names):
    """The names for lanes of 32 bits on devices that divide numbers of float64, which CPUs and GPUs do.

    A quotient of two integers of 24 bits is never nearer than 2^-49 of it to the middle of two float32 numbers. So in
    float64 it may be a few units off, as after a product with a reciprocal, and is rounded as the exact one is.
    """

    quotient_error = 0

    @staticmethod
    def quotient_bits(a: Any, b: Any) -> jax.Array:
        with jax.enable_x64(True):
            x, y = (jnp.asarray(one).astype(jnp.float64) for one in (a, b))
            return jax.lax.div(*jnp.broadcast_arrays(x, y)).astype(jnp.float32).view(jnp.int32)


def names_for(lane_bits: int) -> type[Names]:
    """The names for the law of rounding on lanes, by the platform of the programs that are traced."""
    exact = lane_bits == 32 and jax.default_backend() in ("cpu", "cuda", "rocm", "gpu")
    return WithFloat64 if exact else Names


def _vector(length: int, in_rows: bool) -> int:
    """The number of neighbours of the last axis that are reduced together, or 0.

    With `in_rows` other axes are reduced too; then a short last axis is itself the vector.
    """
    sizes = [size for size in _VECTORS if length > size and length % size == 0]
    if in_rows:
        return sizes[0] if sizes and length > _VECTORS[-1] else 0
    few = [size for size in sizes if length // size <= _STEP]
    return few[0] if few else sizes[-1] if sizes else 8 * (length > 8 and length % 8 == 0)


def _in_steps(x: jax.Array, axis: int) -> jax.Array:
    """Maxima of `_STEP` elements each along an axis, if it has a multiple of that; else the elements."""
    size = x.shape[axis]
    if size % _STEP or size == _STEP:
        return x
    steps = x.reshape(*x.shape[:axis], size // _STEP, _STEP, *x.shape[axis + 1 :])
    return _keep(jnp.max(steps, axis=axis + 1))
