"""Operations on float32 numbers with defined bits, for JAX arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qcore.reproducible import operations
from qjax import _namespace as namespace


class Names(operations.Names, namespace.Names):
    """`qcore.reproducible.operations.Names` for JAX arrays, traced ones included.

    Example:
        >>> Names.add(jnp.float32(1), jnp.float32(2.0**-140))  # subnormal numbers are zeros
        Array(1., dtype=float32)
    """

    root = staticmethod(jnp.sqrt)

    @staticmethod
    def is_float32(x: jax.Array) -> bool:
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
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return namespace.Names.rounded(a * b)


class UnroundedNames(operations.Unrounded, Names):
    """Names that JAX differentiates, see `qcore.reproducible.operations.Unrounded`."""
