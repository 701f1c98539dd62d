"""The law on JAX arrays: the names it uses, and lanes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qcore.law import lanes
from qcore.law.carrier import Carrier

_VECTOR = 64  # int32 lanes
_STEP = 32  # elements; of more XLA on CPU makes a tree, for which it writes what is reduced to memory

_keep = jax.lax.optimization_barrier  # XLA makes one of two reductions after each other


def materialize(x: jax.Array) -> jax.Array:
    """The same integers, computed once: where many elements read one, XLA computes all but divisions for each again."""
    one = jnp.minimum(jnp.maximum(x, 1), 1)  # which XLA does not see
    return jax.lax.div(x, one)


def _amax(x: jax.Array, axis: tuple[int, ...], keepdims: bool) -> jax.Array:
    """The maximum along axes, in steps: XLA on CPU reduces int32 with vectors only where the last axis stays."""
    *others, length = x.shape
    last = len(others)
    rows = tuple(a for a in axis if a != last)
    if last in axis and length % _VECTOR == 0:
        x, rows = x.reshape(*others, length // _VECTOR, _VECTOR), (*rows, last)
    if last in axis and rows:
        x = _in_steps(x, rows[-1])
    if rows:
        x = _keep(jnp.max(x, axis=rows, keepdims=True))
    if last not in axis:
        return x
    return jnp.max(x, axis=tuple(range(last, x.ndim)), keepdims=True).reshape(*x.shape[:last], 1)


def _in_steps(x: jax.Array, axis: int) -> jax.Array:
    """Maxima of `_STEP` elements each along an axis, if it has a multiple of that; else the elements."""
    size = x.shape[axis]
    if size % _STEP or size == _STEP:
        return x
    steps = x.reshape(*x.shape[:axis], size // _STEP, _STEP, *x.shape[axis + 1 :])
    return _keep(jnp.max(steps, axis=axis + 1))


class Names(lanes.Names):
    """The names that the law uses of an array namespace: JAX's."""

    where = staticmethod(jnp.where)
    clip = staticmethod(jnp.clip)
    amax = staticmethod(_amax)
    asarray = staticmethod(jnp.asarray)
    quotient_error = 3


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
