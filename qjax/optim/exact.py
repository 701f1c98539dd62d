"""Float sums that XLA does not contract to an FMA, and updates that lead to given sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qjax._rounding.dispatch import same_bits


def prevent_fma(x: jax.Array) -> jax.Array:
    """x itself; XLA does not contract a product that gives x and a sum that uses x to one FMA."""
    return jnp.where(x == x, x, jnp.full_like(x, jnp.nan))


def difference(p: jax.Array, q: jax.Array) -> jax.Array:
    """The d nearest to q - p such that p + d has the bits of q; where no float d does, q - p rounded.

    All sums within half a step of q are rounded to q. So if any float d leads to q, the one nearest to q - p does; only
    where q is a power of two, whose steps toward zero are half as long, it may be the next one away from zero. (If d
    and q have different signs, d is shorter than p, both are multiples of d's step, and d is exact or none is.) No d
    leads to q where q's steps are finer than those of q - p (p = 1, q = 1e-9); to -0.0 from another number; from
    infinity to a number; nor, where XLA flushes subnormal numbers, to or from these.
    """
    nearest = q - p
    beyond = (nearest.view(f"int{8 * p.dtype.itemsize}") + 1).view(p.dtype)
    d = jnp.where(same_bits(p + beyond, q) & ~same_bits(p + nearest, q), beyond, nearest)
    return jnp.where(same_bits(p, q), jnp.full_like(p, -0.0), d)  # adding -0.0 changes nothing, not even -0.0
