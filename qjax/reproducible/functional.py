"""Functions of JAX arrays."""

from __future__ import annotations

import jax

from qcore.numerics.elementary import EXP
from qcore.numerics.softmax import SOFTMAX, SUM
from qjax.reproducible.call import differentiable

_sum, _softmax = differentiable(SUM), differentiable(SOFTMAX)
exp = differentiable(EXP)


def sum(x: jax.Array, axis: int = -1) -> jax.Array:
    return _sum(x, axes=(axis,), keepdims=False)


def softmax(x: jax.Array, axis: int = -1) -> jax.Array:
    return _softmax(x, axis=axis)
