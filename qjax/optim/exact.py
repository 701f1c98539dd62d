"""Sums of floats that come out as they are written, although XLA fuses, and the updates that lead to given sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qjax.dispatch import same_bits


def settle(x: jax.Array) -> jax.Array:
    """x itself, in such a way that XLA does not contract a product that makes x and a sum that uses it to one FMA."""
    return jnp.where(x == x, x, jnp.full_like(x, jnp.nan))


def difference(p: jax.Array, q: jax.Array) -> jax.Array:
    """The d nearest to q - p such that p + d has the bits of q; where there is none, q - p rounded.

    The sums that round to q reach half a step of q to either side, so if any float d leads there, the nearest below
    or above q - p does: q - p rounded is one of them, and the other is its neighbour. No d leads to q where its steps
    are finer than those of q - p (p = 1, q = 1e-9), to -0.0 from another number, from infinity to a number, nor,
    where XLA flushes subnormal numbers, to and from these.

    Args:
        p, q: float arrays of one shape and dtype.

    Returns:
        An array like p and q.
    """
    nearest = (q - p).view(f"int{8 * p.dtype.itemsize}")
    result = nearest.view(p.dtype)
    for step in (-1, 1, 0):
        d = (nearest + step).view(p.dtype)
        result = jnp.where(same_bits(p + d, q), d, result)
    return jnp.where(same_bits(p, q), jnp.full_like(p, -0.0), result)  # adding -0.0 changes nothing, not even -0.0
