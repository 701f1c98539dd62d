"""Lanes of JAX arrays, for the law."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qcore.law.carrier import Carrier


def materialize(x: jax.Array) -> jax.Array:
    """The same integers, computed once: where many elements read one, XLA computes all but divisions for each again."""
    one = jnp.minimum(jnp.maximum(x, 1), 1)  # which XLA does not see
    return jax.lax.div(x, one)


def pad(array: jax.Array, missing: tuple[int, ...]) -> jax.Array:
    return jnp.pad(array, [(0, count) for count in missing])


def arange(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32)


def to_lanes(x: jax.Array, carrier: Carrier) -> jax.Array:
    if carrier.padding == 0:
        return x.view(f"int{carrier.lane_bits}")
    return x.view(jnp.int16).astype(jnp.int32) << carrier.padding


def from_lanes(bits: jax.Array, carrier: Carrier, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
    if carrier.padding == 0:
        return bits.view(like.dtype).reshape(like.shape)
    return (bits >> carrier.padding).astype(jnp.int16).view(like.dtype).reshape(like.shape)
