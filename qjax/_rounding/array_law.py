"""Lanes of JAX arrays, for the law."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from qcore.law.carrier import Carrier


def materialize(lanes: Sequence[jax.Array]) -> list[jax.Array]:
    """The same integers, computed once. XLA computes all but divisions again for each element that reads them.

    The lanes, which may be smaller along axes of size 1, become one array, for which XLA compiles one loop: a loop for
    each would compute again what they share. The first lane is computed twice, so it should take the fewest operations.
    """
    one = jnp.minimum(jnp.maximum(lanes[0], 1), 1)  # 1 for every number, but XLA cannot simplify it
    return list(jax.lax.div(*jnp.broadcast_arrays(jnp.stack(jnp.broadcast_arrays(*lanes)), one)))


def pad(array: jax.Array, missing: tuple[int, ...]) -> jax.Array:
    return jnp.pad(array, [(0, count) for count in missing])


def arange(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32)


def to_lanes(x: jax.Array, carrier: Carrier) -> jax.Array:
    """The lanes of numbers; 16-bit numbers become the upper end of a lane of 32 bits."""
    if carrier.padding == 0:
        return x.view(f"int{carrier.lane_bits}")
    return x.view(jnp.int16).astype(jnp.int32) << carrier.padding


def from_lanes(bits: jax.Array, carrier: Carrier, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
    if carrier.padding == 0:
        return bits.view(like.dtype).reshape(like.shape)
    return (bits >> carrier.padding).astype(jnp.int16).view(like.dtype).reshape(like.shape)
