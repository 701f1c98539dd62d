"""Functions of several steps of JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from qcore.arithmetic.composed import Stepwise
from qjax import linalg
from qjax.arithmetic.functions import FUNCTIONS


class Arrays(Stepwise):
    """The steps of a function on JAX arrays."""

    functions, matmul = FUNCTIONS, staticmethod(linalg.matmul)

    @staticmethod
    def scalar(value: float, like: jax.Array) -> jax.Array:
        return jnp.float32(value)

    @staticmethod
    def ones(rows: int, columns: int, like: jax.Array) -> jax.Array:
        return jnp.ones((rows, columns), jnp.float32)

    @staticmethod
    def greatest(x: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(x).max(-1, keepdims=True)

    def __call__(self, x: jax.Array, *parameters: Any, **options: Any) -> jax.Array:
        """The function of an array of float32, float16 or bfloat16, in its dtype."""
        self.check_result(FUNCTIONS.floats("x", x)[1])
        wide = [one if one is None else one.astype(jnp.float32) for one in (x, *parameters)]
        return self.run(*wide, **options).astype(x.dtype)
