"""What laws of float32 numbers use of an array namespace, for JAX arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.reproducible import operations


class Names(operations.Names):
    """`qcore.reproducible.operations.Names` for JAX arrays, traced ones included.

    Example:
        >>> Names.add(jnp.float32(1), jnp.float32(2.0**-140))  # subnormal numbers are zeros
        Array(1., dtype=float32)
    """

    where = staticmethod(jnp.where)
    exp = staticmethod(jnp.exp)
    log = staticmethod(jnp.log)
    log1p = staticmethod(jnp.log1p)
    tanh = staticmethod(jnp.tanh)
    sin = staticmethod(jnp.sin)
    cos = staticmethod(jnp.cos)
    root = staticmethod(jnp.sqrt)
    floor = staticmethod(jnp.floor)
    minimum = staticmethod(jnp.minimum)
    concatenate = staticmethod(jnp.concatenate)
    broadcast_to = staticmethod(jnp.broadcast_to)

    searchsorted = staticmethod(jnp.searchsorted)
    materialize = staticmethod(jax.lax.optimization_barrier)

    @staticmethod
    def argsort(x: jax.Array) -> jax.Array:
        return jnp.argsort(x, stable=True)

    @staticmethod
    @contextmanager
    def arithmetic() -> Iterator[None]:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            yield

    @staticmethod
    def from_numpy(x: np.ndarray) -> jax.Array:
        return jnp.asarray(x)

    @staticmethod
    def is_float32(x: Any) -> bool:
        return x.dtype == jnp.float32

    @staticmethod
    def to_float32(x: jax.Array) -> jax.Array:
        return x.astype(jnp.float32)

    @staticmethod
    def to_float64(x: jax.Array) -> jax.Array:
        return x.astype(jnp.float64)

    @staticmethod
    def to_int32(x: jax.Array) -> jax.Array:
        return x.astype(jnp.int32)

    @staticmethod
    def bits(x: jax.Array) -> jax.Array:
        return x.view(jnp.int32)

    @staticmethod
    def floats(bits: jax.Array) -> jax.Array:
        return bits.view(jnp.float32)

    @staticmethod
    def product(a: Any, b: Any) -> jax.Array:
        """A choice stands between the product and a sum: twice the product, where that is the product too."""
        found = a * b
        return jnp.where(jnp.abs(found) <= jnp.finfo(jnp.float64).max, found, found + found)

    @staticmethod
    def arange(size: int, like: jax.Array) -> jax.Array:
        return jnp.arange(size, dtype=jnp.int32)

    @staticmethod
    def zeros(shape: Sequence[int], like: jax.Array) -> jax.Array:
        return jnp.zeros(shape, like.dtype)

    @staticmethod
    def greatest(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        return jnp.max(x, axes, keepdims=True)


class UnroundedNames(operations.Unrounded, Names):
    """Names that JAX differentiates, see `qcore.reproducible.operations.Unrounded`."""
