"""Keys of stochastic rounding as JAX arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import check_int, check_seed, check_start
from qcore.random.threefry import as_lane, leading_bits_mask, threefry
from qjax._rounding.array_law import materialize

Key = int | tuple[int, int] | jax.Array | np.ndarray | None


def key_words(key: Any) -> Any:
    """A key's two words: an int32 array, traced if the key is."""
    if type(key) is int:
        return _cached_seed(key)
    if not isinstance(key, (jax.Array, np.ndarray)):
        return _seed_words(key)
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


def _seed_words(key: Any) -> np.ndarray:
    words = np.array([as_lane(word) for word in check_seed(key)], np.int32)
    words.flags.writeable = False  # the cache returns the same array to later calls
    return words


_cached_seed = lru_cache(maxsize=1024)(_seed_words)


def window_words(random_bits: Any, start: Any) -> np.ndarray:
    """See `Noise.window`."""
    mask = leading_bits_mask(check_int("random_bits", random_bits, 1, 24))
    return np.array([*map(as_lane, check_start(start)), mask], np.int32)


def fold_in(key: Any, data: Any) -> jax.Array:
    """`jax.random.fold_in` for arrays of keys, uint32 of shape (..., 2), and of integers, which broadcast with them."""
    if isinstance(data, jax.Array):
        return _folded(key, jnp.stack([jnp.zeros_like(data), data, jnp.zeros_like(data)], -1).astype(jnp.int32))
    return _folded(key, np.stack([np.zeros_like(data), data, np.zeros_like(data)], -1).astype(np.int32))


@jax.jit
def _folded(key: Any, counters: Any) -> jax.Array:
    """The key of (0, n, 0) for each integer n.

    XLA compiles equal loops once, and these are equal for all n: it makes no scalars of three numbers out of line.
    """
    key = jnp.asarray(key).view(jnp.int32)
    words = jnp.stack([key[..., 0], key[..., 1], key[..., 1]], -1) + counters
    key0, key1 = words[..., 0], words[..., 2]
    (found,) = materialize([jnp.stack(threefry(key0, key1, 0, words[..., 1] - key1), axis=-1)])
    return found.view(jnp.uint32)
