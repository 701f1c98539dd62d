"""Codes of any width side by side in bytes, as JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from qcore.packing import check_packing, pack_lanes, storage, unpack_lanes


def pack(codes: jax.Array, bits: int) -> jax.Array:
    """Packs codes along the last axis, the first code in the lowest bits; see `qcore.pack`.

    Args:
        codes: integer array of shape (..., n), at least one dimension; bits above a code's highest are ignored.
        bits: the width of a code, 1 to 32.

    Returns:
        A uint8 array of shape (..., ceil(n * bits / 8)).

    Raises:
        TypeError: if codes is no array of integers, or bits no integer.
        ValueError: if bits is out of range, or codes has no dimension.

    Example:
        >>> pack(jnp.uint8(jnp.array([1, 2, 3])), 4)
        Array([33,  3], dtype=uint8)
    """
    bits = check_packing(bits, check_codes(codes).shape)
    return pack_lanes(jnp, codes.astype(jnp.int32), bits, jnp.arange(32, dtype=jnp.int32)).astype(jnp.uint8)


def unpack(packed: jax.Array, bits: int, size: int) -> jax.Array:
    """The inverse of `pack`; see `qcore.unpack`.

    Args:
        packed: uint8 array of shape (..., ceil(size * bits / 8)).
        bits: the width of a code, 1 to 32.
        size: the number of codes along the last axis.

    Returns:
        An array of shape (..., size), uint8, uint16 or uint32 by the width.

    Raises:
        TypeError: if packed is no array of integers, or bits or size no integer.
        ValueError: if bits or size is out of range, or packed has another length than they ask for.

    Example:
        >>> unpack(jnp.uint8(jnp.array([33, 3])), 4, 3)
        Array([1, 2, 3], dtype=uint8)
    """
    bits = check_packing(bits, check_codes(packed, "packed").shape, size)
    lanes = unpack_lanes(packed.astype(jnp.int32), bits, size, jnp.arange(32, dtype=jnp.int32))
    return lanes.astype(f"uint{storage(bits)}")


def check_codes(codes: Any, name: str = "codes") -> jax.Array:
    if not isinstance(codes, jax.Array) or not jnp.issubdtype(codes.dtype, jnp.integer):
        kind = f"array of {codes.dtype}" if isinstance(codes, jax.Array) else type(codes).__name__
        raise TypeError(f"{name} is a {kind}; allowed is a jax.Array of integers")
    return codes
