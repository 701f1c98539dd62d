"""Codes of any width side by side in bytes, as JAX arrays."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from qcore.packing import check_packing, lane_type, pack_lanes, storage, unpack_lanes
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike, as_integers


def pack(codes: ArrayLike, bits: int) -> jax.Array:
    """Packs codes along the last axis, the first code in the lowest bits; see `qcore.pack`.

    Args:
        codes: array of integers of shape (..., size).
        bits: the width of a code, 1 to 32.

    Returns:
        A uint8 array of shape (..., ceil(size * bits / 8)).

    Example:
        >>> pack(jnp.uint8(jnp.array([1, 2, 3])), 4)
        Array([33,  3], dtype=uint8)
    """
    codes = as_integers(codes, "codes")
    bits = check_packing(bits, codes.shape)
    return _packed(codes.astype(lane_type(bits)), bits)


def unpack(packed: ArrayLike, bits: int, size: int) -> jax.Array:
    """The inverse of `pack`; see `qcore.unpack`.

    Args:
        packed: uint8 array of shape (..., bytes).
        bits: the width of a code, 1 to 32.
        size: the number of codes along the last axis.

    Returns:
        An array of shape (..., size) of the smallest unsigned integers that hold the codes.

    Example:
        >>> unpack(jnp.uint8(jnp.array([33, 3])), 4, 3)
        Array([1, 2, 3], dtype=uint8)
    """
    packed = as_integers(packed, "packed")
    bits = check_packing(bits, packed.shape, size)
    return _unpacked(packed.astype(jnp.uint8), bits, size)


# One program each, where operations one by one would be a dozen for each shape.


@partial(jax.jit, static_argnames="bits")
def _packed(lanes: ArrayLike, bits: int) -> jax.Array:
    return pack_lanes(Names, lanes, bits).astype(jnp.uint8)


@partial(jax.jit, static_argnames=("bits", "size"))
def _unpacked(packed: ArrayLike, bits: int, size: int) -> jax.Array:
    lanes = unpack_lanes(Names, packed.astype(lane_type(bits)), bits, size)
    return lanes.astype(f"uint{storage(bits)}")
