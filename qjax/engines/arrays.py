"""Attention of engines on JAX arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import check_type
from qcore.engines.arrays import check_call
from qcore.engines.engine import EngineLike
from qcore.engines.law import AttentionCall, attend, gradients
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import ArrayLike, as_array
from qjax.linalg.matrices import matmul
from qjax.reproducible.operations import Names


class Attending(Names):
    """The array namespace of attention."""

    exp2 = staticmethod(jnp.exp2)
    settled_positive = Names.settled

    @staticmethod
    def multiply(a: Any, b: Any, c: Any, operands: Any, accumulator: Any) -> jax.Array:
        return matmul(a, b, c, operands=operands, accumulator=accumulator)

    @staticmethod
    def quantized(x: Any, number: Any) -> jax.Array:
        return quantize(x, number)


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    engine: EngineLike,
    causal: bool = True,
    *,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
) -> jax.Array:
    """Attention as an engine computes it: softmax(scale q k^T) v, of keys and values that passed its cache.

    It has the bits of `qcore.engines.attention`, which says more, also in jit. Its gradients are those of exact
    attention at the rounded operands: straight through all roundings, with the bits of `qtorch.engines`. They have no
    defined second derivatives. All arguments but q, k, v, mask and sinks are static.

    Args:
        q: float32 array of shape (batch, heads, queries, head size). Note that `jax.nn.dot_product_attention` has the
            heads after the queries.
        k: float32 array of shape (batch, key heads, keys, head size).
        v: float32 array of k's shape.
        engine: a name of `qcore.engines.ENGINES`, such as "fa3.hopper.fp8", an `Engine`, or its text.
        causal: True lets query i of L see the first keys - L + 1 + i keys.
        scale: of the scores, rounded to float32; None is 1 / sqrt(head size).
        mask: bools that broadcast to (batch, heads, queries, keys), True where a key counts.
        window: the number of keys that a query sees, the last of them its own; None is all.
        softcap: a bound of scores; None is none.
        sinks: array of shape (heads,): for each head one more score, which has no value; None is none.

    Returns:
        A float32 array of q's shape. Queries without keys have zeros.

    Raises:
        ValueError: if shapes do not fit, or the engine does not know tiles for this head size, windows, soft caps or
            sinks.

    Example:
        >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 97, 128)).astype(np.float32)
        >>> step, whole = attention(q[:, :, -1:], k, v, "exact"), attention(q, k, v, "exact")
        >>> bool((step == whole[:, :, -1:]).all())
        True
    """
    q, k, v = as_array(q, "q"), as_array(k, "k"), as_array(v, "v")
    check_type("mask", mask, jax.Array | np.ndarray | None, "an array of bools, or None")
    sinks = None if sinks is None else as_array(sinks, "sinks")
    call = check_call(q, k, v, mask, sinks, engine, causal, scale, window, softcap)
    return _attend(call, q, k, v, None if mask is None else jnp.asarray(mask), sinks)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def _attend(call: AttentionCall, q: jax.Array, k: jax.Array, v: jax.Array, mask: Any, sinks: Any) -> jax.Array:
    with Attending.arithmetic():
        return Attending.one_nan(attend(Attending, q, k, v, mask, sinks, call))


def _forward(call: AttentionCall, *arrays: Any) -> tuple[jax.Array, Any]:
    return _attend(call, *arrays), arrays


@partial(jax.jit, static_argnums=0)
def _gradients(call: AttentionCall, arrays: Any, gradient: jax.Array) -> tuple[jax.Array | None, ...]:
    q, k, v, mask, sinks = arrays
    with Attending.arithmetic():
        found = gradients(Attending, q, k, v, mask, sinks, gradient, call)
        return tuple(None if x is None else Attending.one_nan(x) for x in found)


def _backward(call: AttentionCall, arrays: Any, gradient: jax.Array) -> tuple[Any, ...]:
    *of_others, of_sinks = _gradients(call, arrays, gradient)
    return *of_others, None, of_sinks


_attend.defvjp(_forward, _backward)
