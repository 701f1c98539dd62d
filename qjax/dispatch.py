"""Rounding JAX arrays: checks, the law as one jitted function, and the straight-through gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number, Rounding
from qcore.arguments import check_dtype, check_int, check_rounding, check_start, missing_key
from qcore.carrier import Carrier
from qcore.formats import check_number
from qcore.law import Block, Grid, Program
from qcore.random import Noise, as_lane, leading_bits_mask, rounding_words
from qjax.keys import Key, key_words

_VECTOR = 64  # int32 lanes


def quantize(
    x: jax.Array,
    number: Number,
    rounding: str | Rounding = "stochastic",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
) -> jax.Array:
    """Rounds every element to the nearest, or another, neighbour in a number format.

    The result has the bits that `qcore.quantize` and `qtorch.quantize` give for the same arguments, on any device
    and under any sharding. Its gradient is the incoming gradient, unchanged ("straight through"). All arguments but
    x and key are static.

    Args:
        x: array of any shape; float32, float16 or bfloat16.
        number: the format.
        rounding: a name or member of `Rounding`.
        key: for stochastic rounding: a typed threefry key, two 32-bit words (also as a uint32 array), or an int from
            0 to 2^64 - 1. Under vmap an unbatched key gives every example the same random words.
        random_bits: how many random bits an element's rounding uses, 1 to 24.
        start: the 64-bit index of x's first element: a chunk of a larger array gets the larger array's bits.

    Returns:
        A new array of x's shape, dtype and sharding.

    Raises:
        TypeError: if an argument has the wrong type; float64 arrays are refused, not rounded on the way.
        ValueError: if an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> from qjax import FloatingPoint
        >>> quantize(jnp.float32([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2), "nearest")
        Array([ 0.125,  0.375, -0.75 ], dtype=float32)
    """
    number, mode = check_number(number), check_rounding(rounding)
    random_bits, (high, low) = check_int("random_bits", random_bits, 1, 24), check_start(start)
    words = None if key is None else key_words(key)
    carrier = check_array(x)
    kind, constants = number.reduce(carrier)
    axes = number.axes(x.ndim)
    noise = None
    if mode is Rounding.STOCHASTIC:
        if words is None:
            raise missing_key()
        noise = Noise(words, np.array((as_lane(high), as_lane(low), leading_bits_mask(random_bits)), np.int32))
    if x.size == 0:
        return jnp.array(x)
    fields = type(constants)(*(np.int32(value) for value in constants))
    return _round(Program(carrier, mode, kind), axes, x, fields, noise)


def check_array(x: Any) -> Carrier:
    """The carrier of a JAX array or tracer."""
    if not isinstance(x, jax.Array):
        raise TypeError(f"x is a {type(x).__name__}; allowed is a jax.Array of float32, float16 or bfloat16")
    return check_dtype(x.dtype.name, "x.astype(jnp.float32)")


_settle = jax.lax.optimization_barrier


def _amax(lanes: jax.Array, axis: tuple[int, ...], keepdims: bool) -> jax.Array:
    """The maximum along axes, in steps: XLA on CPU reduces int32 with vectors only where the last axis stays."""
    last, length = lanes.ndim - 1, lanes.shape[-1]
    others = tuple(a for a in axis if a != last)
    if others:
        lanes = _settle(jnp.max(lanes, axis=others, keepdims=True))
    if last not in axis:
        return lanes
    if length % _VECTOR == 0:
        lanes = _settle(jnp.max(lanes.reshape(*lanes.shape[:-1], length // _VECTOR, _VECTOR), axis=last))
    return jnp.max(lanes, axis=last, keepdims=True)


class _Names:
    """The names that the law uses of an array namespace."""

    where = staticmethod(jnp.where)
    clip = staticmethod(jnp.clip)
    amax = staticmethod(_amax)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _law(
    program: Program, axes: tuple[int, ...], x: jax.Array, constants: Grid | Block, noise: Noise | None
) -> jax.Array:
    lanes = _to_lanes(x, program.carrier).reshape(x.shape or (1,))
    word = None
    if noise is not None:
        noise = Noise(*map(jnp.asarray, noise))  # where jit is disabled these are NumPy's, whose scalars warn
        word = rounding_words(_Names, _arange, lanes.shape, noise, x.size >= 2**31)
    return _from_lanes(program.run(_Names, lanes, constants, axes, word, _settle), program.carrier, x)


def _forward(
    program: Program, axes: tuple[int, ...], x: jax.Array, constants: Grid | Block, noise: Noise | None
) -> tuple[jax.Array, None]:
    return _law(program, axes, x, constants, noise), None


def _backward(program: Program, axes: tuple[int, ...], _: None, grad: jax.Array) -> tuple[jax.Array, None, None]:
    return grad, None, None


_law.defvjp(_forward, _backward)
_round = jax.jit(_law, static_argnums=(0, 1))


def _arange(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32)


def _to_lanes(x: jax.Array, carrier: Carrier) -> jax.Array:
    if carrier.padding == 0:
        return x.view(jnp.int32)
    return x.view(jnp.int16).astype(jnp.int32) << carrier.padding


def _from_lanes(bits: jax.Array, carrier: Carrier, like: jax.Array) -> jax.Array:
    if carrier.padding == 0:
        return bits.view(like.dtype).reshape(like.shape)
    return (bits >> carrier.padding).astype(jnp.int16).view(like.dtype).reshape(like.shape)
