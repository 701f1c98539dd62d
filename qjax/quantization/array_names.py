"""The names of the affine law for JAX arrays; see `qcore.affine.Names` for what each must do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

import qcore.affine


class Names(qcore.affine.Names):
    """The vocabulary for JAX arrays, traced ones included; what is decided on another host is not concrete."""

    where = staticmethod(jnp.where)
    clip = staticmethod(jnp.clip)
    floor = staticmethod(jnp.floor)
    exp = staticmethod(jnp.exp)
    tanh = staticmethod(jnp.tanh)
    sqrt = staticmethod(jnp.sqrt)
    minimum = staticmethod(jnp.minimum)
    maximum = staticmethod(jnp.maximum)
    full = staticmethod(jnp.full)
    full_like = staticmethod(jnp.full_like)
    cumsum = staticmethod(jnp.cumsum)
    repeat = staticmethod(jnp.repeat)
    concatenate = staticmethod(jnp.concatenate)
    einsum = staticmethod(partial(jnp.einsum, precision="highest"))
    copy = staticmethod(jnp.copy)
    asarray = staticmethod(jnp.asarray)
    constant = staticmethod(lambda numbers, dtype, like: jnp.array(numbers, dtype))
    total = staticmethod(lambda x, axes: jnp.sum(x, axes, jnp.int64, keepdims=True))
    pad = staticmethod(lambda x, widths, value: jnp.pad(x, widths, constant_values=value))
    cond = staticmethod(jax.lax.cond)  # type: ignore[assignment]
    while_loop = staticmethod(jax.lax.while_loop)  # type: ignore[assignment]
    arange = staticmethod(lambda size, like: jnp.arange(size, dtype=jnp.int32))
    extremes = staticmethod(lambda x, axes: (jnp.min(x, axes), jnp.max(x, axes)))

    @staticmethod
    @contextmanager
    def arithmetic() -> Iterator[None]:
        """Elements of float64 meet scales of float32, which users may have forbidden for their own arithmetic."""
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            yield

    @staticmethod
    def concrete(x: Any) -> np.ndarray | None:
        if isinstance(x, Tracer) or (isinstance(x, jax.Array) and not x.is_fully_addressable):
            return None
        return np.asarray(x)

    @staticmethod
    def astype(x: jax.Array, dtype: str) -> jax.Array:
        if x.dtype == jnp.bfloat16 and dtype == "float32":  # by bits: XLA may hand over a sum that it has not rounded
            return (x.view(jnp.uint16).astype(jnp.uint32) << 16).view(jnp.float32)
        return x.astype(dtype)

    @staticmethod
    def unsigned(x: jax.Array) -> jax.Array:
        """Not by an addition of 0, which XLA leaves out."""
        return jnp.where(x == 0, 0.0, x)

    @staticmethod
    def rint(x: jax.Array) -> jax.Array:
        """Zeros have no sign: XLA leaves out the addition of a zero point of 0, which would take it from -0.0."""
        return Names.unsigned(jnp.rint(x))

    @staticmethod
    def divide(a: jax.Array, b: Any) -> jax.Array:
        """The divisor differs from element to element, as far as XLA can tell, which else would take its reciprocal."""
        return jax.lax.div(*jnp.broadcast_arrays(a, jnp.where(a != a, a, b)))

    @staticmethod
    def rounded(product: jax.Array) -> jax.Array:
        """A choice stands between the product and an addition: twice the product, where that is the product too.

        LLVM removes a choice by NaN where it knows both factors, say converted integers and a constant scale.
        """
        largest = jnp.finfo(product.dtype).max
        return jnp.where(jnp.abs(product) <= largest, product, product + product)

    @staticmethod
    def bincount(index: jax.Array, weight: jax.Array, size: int) -> jax.Array:
        sums = jnp.zeros(size, jnp.float32).at[index].add(weight)
        return jax.lax.optimization_barrier(sums)  # else XLA adds the weights to whatever the sums are added to

    @staticmethod
    def searchsorted(edges: jax.Array, x: jax.Array, right: bool) -> jax.Array:
        return jnp.searchsorted(edges, x, side="right" if right else "left").astype(jnp.int32)
