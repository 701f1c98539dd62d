"""Rounding JAX arrays: checks, the law as one jitted function, and the straight-through gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number, Rounding
from qcore import codes as law
from qcore.arguments import check_dtype, check_int, check_result_dtype, check_rounding, check_start, missing_key
from qcore.block import check_scales
from qcore.carrier import CARRIERS, Carrier
from qcore.named import check_number
from qcore.program import Program, decode_blocks, prepare
from qcore.random import Noise, as_lane, leading_bits_mask, rounding_words
from qcore.tiles import Sizes, block_counts, tiles
from qjax.keys import Key, key_words
from qjax.packing import check_codes

_VECTOR = 64  # int32 lanes


def quantize(
    x: jax.Array,
    number: Number | str,
    rounding: str | Rounding = "stochastic",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> jax.Array:
    """Rounds every element to the nearest, or another, neighbour in a number format.

    The result has the bits that `qcore.quantize` and `qtorch.quantize` give for the same arguments, on any device
    and under any sharding. Its gradient is the incoming gradient, unchanged ("straight through"). All arguments but
    x and key are static.

    Args:
        x: array of any shape; float32, float16, bfloat16 or, where x64 is enabled, float64.
        number: the format, or its name (see `NAMED`).
        rounding: a name or member of `Rounding`.
        key: for stochastic rounding: a typed threefry key, two 32-bit words (also as a uint32 array), or an int from
            0 to 2^64 - 1. Under vmap an unbatched key gives every example the same random words.
        random_bits: how many random bits an element's rounding uses, 1 to 24.
        start: the 64-bit index of x's first element: a chunk of a larger array gets the larger array's bits.
        overflow: what numbers beyond the format's range become: "saturate", "inf", "nan", or for fixed point "wrap";
            None is the format's own policy.

    Returns:
        A new array of x's shape, dtype and sharding.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> from qjax import FloatingPoint
        >>> quantize(jnp.float32([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2), "nearest")
        Array([ 0.125,  0.375, -0.75 ], dtype=float32)
    """
    return _apply(x, number, rounding, key, random_bits, start, overflow, coded=False)


def encode(
    x: jax.Array,
    number: Number | str,
    rounding: str | Rounding = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> Any:
    """Rounds as `quantize` does, and returns the integer codes of the results: the bits of the format's standard.

    The codes are those of `qcore.encode`, which says what has no code.

    Args:
        x, number, rounding, key, random_bits, start, overflow: as for `quantize`; the rounding is nearest by default.

    Returns:
        An array of x's shape: uint8 for formats of up to 8 bits, uint16 up to 16, uint32 up to 32. A view of it is an
        array of JAX's own dtype, say `encode(x, "e5m2").view(jnp.float8_e5m2)`. For blocks a pair of such an array and
        the codes of their scales, as in `qcore.encode`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or the format has no codes, or codes of more than 32 bits.

    Example:
        >>> encode(jnp.float32([1.0, -1.5, 448]), "e4m3fn")
        Array([ 56, 188, 126], dtype=uint8)
    """
    return _apply(x, number, rounding, key, random_bits, start, overflow, coded=True)


def decode(codes: jax.Array, number: Number | str, dtype: Any = jnp.float32, *, scales: Any = None) -> jax.Array:
    """The numbers that integer codes stand for, exactly; see `qcore.decode`.

    Args:
        codes: integer array of any shape; bits above a code's highest are ignored.
        number: the format, or its name (see `NAMED`).
        dtype: of the result: float32, float16, bfloat16 or, where x64 is enabled, float64; it must hold all the
            format's numbers, of blocks all of the elements' before they are scaled.
        scales: for blocks, and only for them, their scales as `encode` returns them.

    Returns:
        An array of codes' shape. Codes that stand for no number are NaN. For blocks see `qcore.decode`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the format has no codes, codes of more than 32 bits, or numbers that are not in dtype; if
            scales are missing, unasked for, or of the wrong shape.

    Example:
        >>> decode(jnp.uint8(jnp.array([56, 188, 126, 127])), "e4m3fn")
        Array([  1. ,  -1.5, 448. ,   nan], dtype=float32)
    """
    codes, number = check_codes(codes), check_number(number)
    dtype, carrier = check_result_dtype(dtype)
    if carrier.lane_bits == 64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TypeError('dtype is float64; allowed only after jax.config.update("jax_enable_x64", True)')
    number.check_exact(carrier)
    block, whole = check_scales(number, codes.shape, scales)
    if block is None:
        return _decode(carrier, type(layout := number.codes(carrier)), dtype.name, codes, _lanes_of(carrier, layout))
    return _decode_blocks(carrier, number, dtype.name, codes, check_codes(block, "scales"), whole)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _decode(carrier: Carrier, layout: Any, dtype: str, codes: jax.Array, fields: tuple[Any, ...]) -> jax.Array:
    lanes = law.decode(_Names, codes.astype(f"int{carrier.lane_bits}"), carrier, layout(*fields))
    return _from_lanes(lanes, carrier, jax.ShapeDtypeStruct(codes.shape, dtype))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _decode_blocks(
    carrier: Carrier, number: Number, dtype: str, codes: jax.Array, scales: Any, whole: Any
) -> jax.Array:
    if codes.size == 0:
        return jnp.empty(codes.shape, dtype)
    blocks = tiles(codes.shape or (1,), number.block_sizes(codes.ndim) or (1,))
    split = blocks.apart(codes.reshape(blocks.shape).astype(f"int{carrier.lane_bits}"), _pad)
    if whole is not None:
        whole = jnp.asarray(whole, f"float{carrier.lane_bits}").reshape((1,) * split.ndim).view(split.dtype)
    lanes = decode_blocks(_Names, split, carrier, number, blocks.spread(scales.astype(split.dtype)), whole)
    return _from_lanes(blocks.together(lanes), carrier, jax.ShapeDtypeStruct(codes.shape, dtype))


def _lanes_of(carrier: Carrier, constants: Any) -> tuple[Any, ...]:
    make = np.int32 if carrier.lane_bits == 32 else np.int64
    return tuple(make(value) for value in constants)


def _apply(
    x: Any, number: Any, rounding: Any, key: Any, random_bits: Any, start: Any, overflow: Any, coded: bool
) -> Any:
    number, mode = check_number(number), check_rounding(rounding)
    random_bits, (high, low) = check_int("random_bits", random_bits, 1, 24), check_start(start)
    words = None if key is None else key_words(key)
    carrier = check_array(x)
    program, constants = prepare(number, mode, carrier, overflow, coded)
    sizes = number.block_sizes(x.ndim)
    noise = None
    if mode is Rounding.STOCHASTIC:
        if words is None:
            raise missing_key()
        noise = Noise(words, np.array((as_lane(high), as_lane(low), leading_bits_mask(random_bits)), np.int32))
    if x.size == 0:
        result = jnp.empty(x.shape, f"uint{program.storage}" if coded else x.dtype)
        if not (coded and program.shared):
            return result
        block = jnp.empty(block_counts(x.shape, sizes), jnp.uint8)
        return result, (block, jnp.ones((), f"float{carrier.lane_bits}")) if program.kind == "nvfp4" else block
    return _round(program, sizes, x, _lanes_of(carrier, constants), noise)


def quantize_rows(rows: jax.Array, number: Number, mode: Rounding, keys: jax.Array | None, starts: Any) -> jax.Array:
    """Rounds each row of an array as `quantize` would, with a key and a start of its own.

    Args:
        rows: array of shape (n, ...).
        number: the format.
        mode: the rounding mode.
        keys: for stochastic rounding: uint32 array of shape (n, 2).
        starts: the 32-bit indices of the rows' first elements, an int32 array of shape (n,).
    """
    carrier = check_array(rows)
    program, constants = prepare(number, mode, carrier, None, coded=False)
    noise = None
    if mode is Rounding.STOCHASTIC:
        if keys is None:
            raise missing_key()
        window = jnp.zeros_like(starts), starts, jnp.full_like(starts, leading_bits_mask(24))
        noise = Noise(keys.view(jnp.int32), jnp.stack(window, axis=1))
    sizes = number.block_sizes(rows.ndim - 1)
    return jax.vmap(partial(_round, program, sizes), (0, None, 0))(rows, _lanes_of(carrier, constants), noise)


def check_array(x: Any) -> Carrier:
    """The carrier of a JAX array or tracer."""
    if not isinstance(x, jax.Array):
        raise TypeError(f"x is a {type(x).__name__}; allowed is a jax.Array of {', '.join(CARRIERS)}")
    return check_dtype(x.dtype.name)


def same_bits(x: jax.Array, y: jax.Array) -> jax.Array:
    """Where two arrays of one dtype have the same bits; unlike ==, this tells -0.0 from 0.0 and knows NaN."""
    lanes = f"int{8 * x.dtype.itemsize}"
    return x.view(lanes) == y.view(lanes)


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

    @staticmethod
    def float_bits(lanes: jax.Array) -> jax.Array:
        return lanes.astype(f"float{lanes.dtype.itemsize * 8}").view(lanes.dtype)

    @staticmethod
    def integers(bits: jax.Array) -> jax.Array:
        return bits.view(f"float{bits.dtype.itemsize * 8}").astype(bits.dtype)

    @staticmethod
    def quotient_bits(a: jax.Array, b: Any) -> jax.Array:
        floats = f"float{a.dtype.itemsize * 8}"
        return (a.astype(floats) / jnp.asarray(b, a.dtype).astype(floats)).view(a.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _law(program: Program, sizes: Sizes, x: jax.Array, constants: tuple[Any, ...], noise: Noise | None) -> Any:
    carrier, word = program.carrier, None
    lanes = _to_lanes(x, carrier).reshape(x.shape or (1,))
    blocks = tiles(lanes.shape, sizes or (1,))
    if noise is not None:
        noise = Noise(*map(jnp.asarray, noise))  # where jit is disabled these are NumPy's, whose scalars warn
        word = rounding_words(_arange, lanes.shape, noise, x.size >= 2**31)
        word = blocks.apart(word.astype(lanes.dtype) << (carrier.lane_bits - 32), _pad)
    result = program.run(_Names, blocks.apart(lanes, _pad), constants, blocks.axes, word, _settle)
    if not program.codes:
        return _from_lanes(blocks.together(result), carrier, x)
    codes, *scales = result if program.shared else (result,)
    codes = blocks.together(codes).astype(f"uint{program.storage}").reshape(x.shape)
    if not scales:
        return codes
    block, *whole = scales
    block = block.reshape(blocks.counts[: x.ndim]).astype(jnp.uint8)
    return codes, (block, whole[0].view(f"float{carrier.lane_bits}").reshape(())) if whole else block


def _pad(array: jax.Array, missing: tuple[int, ...]) -> jax.Array:
    return jnp.pad(array, [(0, count) for count in missing])


def _forward(
    program: Program, sizes: Sizes, x: jax.Array, constants: tuple[Any, ...], noise: Noise | None
) -> tuple[jax.Array, None]:
    return _law(program, sizes, x, constants, noise), None


def _backward(program: Program, sizes: Sizes, _: None, grad: jax.Array) -> tuple[jax.Array, None, None]:
    return grad, None, None


_law.defvjp(_forward, _backward)
_round = jax.jit(_law, static_argnums=(0, 1))


def _arange(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32)


def _to_lanes(x: jax.Array, carrier: Carrier) -> jax.Array:
    if carrier.padding == 0:
        return x.view(f"int{carrier.lane_bits}")
    return x.view(jnp.int16).astype(jnp.int32) << carrier.padding


def _from_lanes(bits: jax.Array, carrier: Carrier, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
    if carrier.padding == 0:
        return bits.view(like.dtype).reshape(like.shape)
    return (bits >> carrier.padding).astype(jnp.int16).view(like.dtype).reshape(like.shape)
