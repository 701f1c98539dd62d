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

    All that lies within half a step of q is rounded to q. So where any float d leads there, the nearest to q - p does;
    but for powers of two, whose steps toward zero are half as long, it may be the next one away from zero. (If d and q
    have different signs, d is shorter than p, both are multiples of d's step, and d is exact or none is.) No d leads
    to q where its steps are finer than those of q - p (p = 1, q = 1e-9), to -0.0 from another number, from infinity to
    a number, nor, where XLA flushes subnormal numbers, to and from these.

    Args:
        p, q: float arrays of one shape and dtype.

    Returns:
        An array like p and q.
    """
    nearest = q - p
    beyond = (nearest.view(f"int{8 * p.dtype.itemsize}") + 1).view(p.dtype)
    d = jnp.where(same_bits(p + beyond, q) & ~same_bits(p + nearest, q), beyond, nearest)
    return jnp.where(same_bits(p, q), jnp.full_like(p, -0.0), d)  # adding -0.0 changes nothing, not even -0.0
