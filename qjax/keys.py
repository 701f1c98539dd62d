"""Keys of stochastic rounding as JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import check_seed
from qcore.random import as_lane, threefry

Key = int | tuple[int, int] | jax.Array | np.ndarray | None


def key_words(key: Any) -> Any:
    """Two int32 words, an array that may be traced."""
    if not isinstance(key, (jax.Array, np.ndarray)):
        return np.array([as_lane(word) for word in check_seed(key)], np.int32)
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if str(jax.random.key_impl(key)) != "threefry2x32":
            raise ValueError(f"key is a {jax.random.key_impl(key)} key; allowed are threefry2x32 keys")
        key = jax.random.key_data(key)
    if key.shape != (2,) or key.dtype != np.uint32:
        raise ValueError(
            f"key has shape {key.shape} and dtype {key.dtype}; allowed is an int from 0 to 2^64 - 1, two 32-bit words, "
            "a uint32 array of two words, or one typed threefry key"
        )
    return key.view(np.int32)


@jax.jit
def fold_in(key: Any, data: Any) -> jax.Array:
    """The new key of a key and a number, as `jax.random.fold_in` makes it, for arrays of both.

    Args:
        key: uint32 array of shape (..., 2).
        data: int or integer array, taken modulo 2^32; its shape and that of the keys' array broadcast.

    Returns:
        A uint32 array of shape (..., 2).
    """
    key, data = jnp.asarray(key).view(jnp.int32), jnp.asarray(data).astype(jnp.int32)
    return jnp.stack(threefry(key[..., 0], key[..., 1], jnp.zeros_like(data), data), axis=-1).view(jnp.uint32)
