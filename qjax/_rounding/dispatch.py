"""Rounding JAX arrays: checks, the law as one jitted function, and the straight-through derivative."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from qcore import Number, Rounding
from qcore.arguments import missing_key
from qcore.formats.block import Scales, check_float_scales, check_scales
from qcore.formats.foreign import BytesNumber, BytesProgram, NestedNumber, NestedProgram
from qcore.formats.names import Encode, EncodeResult
from qcore.formats.number import check_number, prepare, with_overflow
from qcore.law.carrier import CARRIERS, Carrier, check_result_dtype
from qcore.law.program import Decoding, Program
from qcore.law.rounding import RoundingLike, check_rounding, rounds_distance
from qcore.law.tiles import Sizes, block_counts, is_flat, tiles
from qcore.random.threefry import Noise, identity, leading_bits_mask, rounding_words
from qjax._namespace import Names, names_for
from qjax._rounding.array_law import arange, from_lanes, materialize, pad, to_lanes
from qjax._rounding.inputs import ArrayLike, as_array, as_integers
from qjax._rounding.keys import Key, key_words, window_words
from qjax._rounding.scopes import DECODE, ROUND, operation, text_in_scope

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def quantize(
    x: ArrayLike,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> jax.Array:
    """Rounds every element to the nearest, or another, neighbour in a number format; see `qcore.quantize`.

    The result has the same bits in all packages, on any device and under any sharding. Gradients and tangents pass
    unchanged ("straight through"). All arguments but x and key are static.

    Args:
        x: JAX or NumPy array of any shape; float32, float16, bfloat16 or, where x64 is enabled, float64.
        number, rounding, random_bits, start, overflow: as for `qcore.quantize`.
        key: for stochastic rounding: a typed threefry key, two 32-bit words (also as a uint32 array), or an int from
            0 to 2^64 - 1. Under vmap an unbatched key gives every example the same random words.

    Returns:
        A new array of x's shape, dtype and sharding.

    Raises:
        TypeError, ValueError: as `qcore.quantize`, and TypeError for float64 where x64 is not enabled.

    Example:
        >>> from qjax import FloatingPoint
        >>> quantize(jnp.float32([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2))
        Array([ 0.125,  0.375, -0.75 ], dtype=float32)
    """
    return _apply(x, number, rounding, key, random_bits, start, overflow, coded=False)


def _overloaded(function: Any) -> Encode[ArrayLike, Key, jax.Array]:
    """The function, with the types of its results by the kind of format."""
    return function


@_overloaded
def encode(
    x: ArrayLike,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> EncodeResult[jax.Array]:
    """Rounds as `quantize` does, and returns the integer codes of the results; see `qcore.encode`.

    A view of the codes is an array of JAX's own dtype: `encode(x, "e5m2").view(jnp.float8_e5m2)`.

    Args:
        x, number, rounding, key, random_bits, start, overflow: as for `quantize`.

    Returns:
        The results of `qcore.encode` as JAX arrays: unsigned integers of x's shape, with the scales of blocks.

    Raises:
        TypeError, ValueError: as `quantize` does, and if the format has no codes.

    Example:
        >>> encode(jnp.float32([1.0, -1.5, 448]), "e4m3fn")
        Array([ 56, 188, 126], dtype=uint8)
    """
    return _apply(x, number, rounding, key, random_bits, start, overflow, coded=True)


def decode(
    codes: ArrayLike,
    number: Number | str,
    dtype: DTypeLike = jnp.float32,
    *,
    scales: Scales[ArrayLike] | None = None,
) -> jax.Array:
    """The exact numbers of integer codes; see `qcore.decode`.

    Args:
        codes: array of integers.
        number: the format, or its text.
        dtype: the dtype of the result: float32, float16, bfloat16 or, where x64 is enabled, float64.
        scales: the scales of a block format, as `encode` returns them; None for other formats.

    Returns:
        An array of codes' shape.

    Example:
        >>> decode(jnp.uint8(jnp.array([56, 188, 126, 127])), "e4m3fn")
        Array([  1. ,  -1.5, 448. ,   nan], dtype=float32)
    """
    codes, number = as_integers(codes, "codes"), check_number(number)
    dtype, carrier = check_result_dtype(dtype)
    if carrier.lane_bits == 64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TypeError('dtype is float64; allowed only after jax.config.update("jax_enable_x64", True)')
    if isinstance(number, BytesNumber):
        return _from_bytes(number, dtype.name, codes, scales)
    if isinstance(number, NestedNumber):
        seconds, largest, offset = number.check_scales(codes.shape, scales)
        found = number._sums(Names, decode(seconds, number.second, scales=largest), jnp.asarray(offset, jnp.float32))
        return decode(codes, number.first, dtype, scales=found)
    decoding, constants = number.decoding(carrier)
    scales, array_scale = check_scales(number, codes.shape, scales)
    if decoding.scales == "floats":
        check_float_scales(scales, jnp.issubdtype(getattr(scales, "dtype", int), jnp.floating), "JAX or NumPy array")
        scales = jnp.asarray(scales, f"float{carrier.lane_bits}")
    elif scales is not None:
        scales = as_integers(scales, "scales")
    sizes = number.block_sizes(codes.ndim)
    with jax.named_scope(f"{DECODE}{text_in_scope(number)}"):
        given = codes, _lanes_of(carrier, constants), scales, array_scale
        return _decode(decoding, sizes, dtype.name, number.bits, *given)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _decode(
    decoding: Decoding,
    sizes: Sizes,
    dtype: str,
    bits: int,
    codes: jax.Array,
    constants: tuple[Any, ...],
    scales: Any,
    scale: Any,
) -> jax.Array:
    if codes.size == 0:
        return jnp.empty(codes.shape, dtype)
    few = scales is not None and bits <= 8 and _PAIRS * (_count_scales(scales) << bits) <= codes.size
    law = partial(_look_up, bits) if few else _decode_blocks
    decoded = _over_blocks(partial(law, decoding, sizes, dtype), codes, sizes)
    arrays = {"scales": scales is not None, "scale": scale is not None}
    with operation("decode", *jax.tree.leaves((codes, constants, scales, scale)), **arrays):
        return decoded(codes, constants, scales, scale)


def _decode_blocks(
    decoding: Decoding, sizes: Sizes, dtype: str, codes: jax.Array, constants: tuple[Any, ...], scales: Any, scale: Any
) -> jax.Array:
    carrier = decoding.carrier
    blocks = tiles(codes.shape or (1,), sizes or (1,))
    lanes = blocks.split(codes.reshape(blocks.shape).astype(f"int{carrier.lane_bits}"), pad)
    lanes = _decode_lanes(decoding, lanes, constants, None if scales is None else blocks.spread(scales), scale)
    return from_lanes(blocks.merge(lanes), carrier, jax.ShapeDtypeStruct(codes.shape, dtype))


def _decode_lanes(decoding: Decoding, lanes: jax.Array, constants: tuple[Any, ...], scales: Any, scale: Any) -> Any:
    """The numbers of codes in lanes; the blocks' scales broadcast with them."""
    if scales is not None:
        scales = scales.view(lanes.dtype) if decoding.scales == "floats" else scales.astype(lanes.dtype)
    if scale is not None:
        scale = jnp.asarray(scale, f"float{decoding.carrier.lane_bits}").reshape((1,) * lanes.ndim).view(lanes.dtype)
    return decoding.run(Names, lanes, constants, scales, scale)


_PAIRS = 4  # times as many elements as pairs of a scale and a code, from where on a table takes less time than the law


def _count_scales(scales: jax.Array) -> int:
    """The different scales: codes of 8 bits are often fewer than blocks."""
    return min(scales.size, 1 << 8) if scales.dtype == jnp.uint8 else scales.size


def _look_up(
    bits: int,
    decoding: Decoding,
    sizes: Sizes,
    dtype: str,
    codes: jax.Array,
    constants: tuple[Any, ...],
    scales: jax.Array,
    scale: Any,
) -> jax.Array:
    """What `_decode_blocks` returns. Its dozens of operations run once for each pair of a scale and a code."""
    rows, row = scales.reshape(-1), jnp.arange(scales.size, dtype=jnp.uint32).reshape(scales.shape)
    if _count_scales(scales) < scales.size:
        rows, row = jnp.arange(1 << 8, dtype=scales.dtype), scales.astype(jnp.uint32)
    columns = jnp.arange(1 << bits, dtype=f"int{decoding.carrier.lane_bits}")
    (pairs,) = materialize((_decode_lanes(decoding, columns[None], constants, rows[:, None], scale).reshape(-1),))
    # Two copies, one of which is read: XLA would compute a single one again for each element.
    pairs = jnp.broadcast_to(pairs, (2, pairs.size)).reshape(-1)
    table = from_lanes(pairs, decoding.carrier, jax.ShapeDtypeStruct(pairs.shape, dtype))
    # Codes that `unpack` puts in turns meet their scales before that, which XLA makes one loop of.
    together = 8 // gcd(bits, 8)
    inner = _divided(sizes, together)
    if inner is None or codes.shape[-1] % together:
        together, inner = 1, sizes
    parts = codes.reshape(*codes.shape[:-1], -1, together)
    blocks = tiles(parts.shape[:-1], inner)

    def pair(part: jax.Array) -> jax.Array:
        lanes = part.reshape(blocks.shape).astype(jnp.uint32) & (1 << bits) - 1
        return blocks.merge(blocks.spread(row) << bits | blocks.split(lanes, pad))

    found = jnp.stack([pair(parts[..., one]) for one in range(together)], -1).reshape(codes.shape)
    return table.at[found].get(mode="promise_in_bounds")


def _divided(sizes: Sizes, by: int) -> Sizes | None:
    """The sizes of blocks in an array of each `by`-th element along the last axis; None if blocks share elements."""
    *others, last = sizes
    if is_flat(sizes) or isinstance(last, tuple):
        return None
    if last is None:
        return sizes
    return None if last % by else (*others, last // by)


@partial(jax.jit, static_argnums=(0, 1))
def _from_bytes(number: BytesNumber, dtype: str, codes: jax.Array, scales: Any) -> jax.Array:
    carrier = CARRIERS[dtype]
    lanes = number.from_bytes(Names, codes.astype(jnp.int32), carrier, scales)
    return from_lanes(lanes, carrier, jax.ShapeDtypeStruct(lanes.shape, dtype))


@partial(jax.jit, static_argnums=0)
def _to_bytes(number: BytesNumber, x: jax.Array) -> jax.Array:
    carrier = CARRIERS[x.dtype.name]
    return number.to_bytes(Names, to_lanes(x, carrier), carrier)


def _lanes_of(carrier: Carrier, constants: Any) -> tuple[Any, ...]:
    """A program's constants as lanes; rows are arrays."""
    make = np.int32 if carrier.lane_bits == 32 else np.int64
    return tuple(np.array(value, make) if isinstance(value, tuple) else make(value) for value in constants)


class _RoundingPlan(NamedTuple):
    """The program and constants of a format, a mode and a dtype, and the sizes of blocks for a number of dimensions."""

    program: Program
    sizes: Sizes
    constants: tuple[Any, ...]
    scope: str


def _make_plan(number: Any, rounding: Any, dtype: str, overflow: Any, coded: bool, ndim: int) -> _RoundingPlan:
    number, mode, carrier = check_number(number), check_rounding(rounding), CARRIERS[dtype]
    program, constants = prepare(number, mode, carrier, overflow, coded)
    sizes = number.tile_sizes(ndim)
    text = text_in_scope(with_overflow(number, overflow))
    return _RoundingPlan(program, sizes, _lanes_of(carrier, constants), f"{ROUND}{text}")


_plan_for = lru_cache(maxsize=1024, typed=True)(_make_plan)
_DEFAULT_WINDOW = window_words(24, 0)


def _make_noise(mode: Rounding, key: Any, random_bits: Any, start: Any) -> Noise | None:
    """The noise of a stochastic mode; the arguments are checked in every mode."""
    default = type(random_bits) is type(start) is int and (random_bits, start) == (24, 0)
    window = _DEFAULT_WINDOW if default else window_words(random_bits, start)
    words = None if key is None else key_words(key)
    if not mode.stochastic:
        return None
    if words is None:
        raise missing_key()
    return Noise(words, window)


def round_operand(x: jax.Array, number: Number, rounding: RoundingLike, key: Key, coded: bool) -> Any:
    """`quantize`, or `encode`, for an operand of a product, which takes much longer to run than a rounding.

    So that the program has few loops, each element computes the grid of its block again.
    """
    return _apply(x, number, rounding, key, 24, 0, None, coded, few_loops=True)


def _apply(
    x: Any,
    number: Any,
    rounding: Any,
    key: Any,
    random_bits: Any,
    start: Any,
    overflow: Any,
    coded: bool,
    few_loops: bool = False,
) -> Any:
    x = as_array(x)
    arguments = number, rounding, x.dtype.name, overflow, coded, x.ndim
    try:
        program, sizes, constants, scope = _plan_for(*arguments)
    except TypeError:  # an argument has no hash: `_make_plan` raises an error that names the argument
        program, sizes, constants, scope = _make_plan(*arguments)
    noise = _make_noise(program.mode, key, random_bits, start)
    if coded and isinstance(program, BytesProgram):
        return _to_bytes(program.number, x)
    if x.size > 0 or isinstance(program, NestedProgram):
        if coded:
            return _encode(program, sizes, few_loops, x, constants, noise)
        with jax.named_scope(scope):
            return _round(program, sizes, few_loops, x, constants, noise)
    result = jnp.empty(x.shape, f"uint{program.storage}" if coded else x.dtype)
    if not (coded and program.shared):
        return result
    floats = f"float{program.carrier.lane_bits}"
    scales = jnp.empty(block_counts(x.shape, sizes), floats if program.float_scales else f"uint{program.scale_storage}")
    array_scale = jnp.ones((), floats)
    return result, (scales, array_scale) if program.has_array_scale else scales


def quantize_rows(rows: jax.Array, number: Number, mode: Rounding, keys: jax.Array | None, starts: Any) -> jax.Array:
    """Rounds each row of an array as `quantize` does, each with its own key and start.

    Args:
        rows: array of shape (n, ...).
        number, mode: the format and the rounding mode.
        keys: for stochastic rounding: uint32 array of shape (n, 2).
        starts: the 32-bit indices of the rows' first elements: int32 array of shape (n,).
    """
    carrier = CARRIERS[rows.dtype.name]
    program, constants = prepare(number, mode, carrier, None, coded=False)
    noise = None
    if mode.stochastic:
        if keys is None:
            raise missing_key()
        window = jnp.zeros_like(starts), starts, jnp.full_like(starts, leading_bits_mask(24))
        noise = Noise(keys.view(jnp.int32), jnp.stack(window, axis=1))
    sizes = number.tile_sizes(rows.ndim - 1)
    return jax.vmap(partial(_round, program, sizes, False), (0, None, 0))(rows, _lanes_of(carrier, constants), noise)


def same_bits(x: jax.Array, y: jax.Array) -> jax.Array:
    """True where two arrays of one dtype have the same bits: -0.0 differs from 0.0, and a NaN equals itself."""
    integers = f"int{8 * x.dtype.itemsize}"
    return x.view(integers) == y.view(integers)


def _law(
    program: Program, sizes: Sizes, few_loops: bool, x: jax.Array, constants: tuple[Any, ...], noise: Noise | None
) -> Any:
    if isinstance(program, NestedProgram):
        return _nested_law(program, x, noise)
    law = _over_blocks(partial(_law_of_blocks, program, sizes, few_loops), x, sizes, scaled=bool(program.codes))
    operands = jax.tree.leaves((x, constants, noise))
    with operation("encode" if program.codes else "round", *operands, mode=program.mode.value):
        return law(x, constants, noise)


def _nested_law(program: NestedProgram, x: jax.Array, noise: Noise | None) -> Any:
    """The laws of a `NestedNumber`: numbers, or codes and the triple of scales."""
    number = program.number

    def encoded(x: jax.Array, number: Number, mode: Rounding, noise: Noise | None) -> Any:
        plan = _plan_for(number, mode, x.dtype.name, None, True, x.ndim)
        if x.size > 0:
            return _law(plan.program, plan.sizes, False, x, plan.constants, noise)
        return encode(x, number)

    codes, scales = encoded(x, number.first, program.mode, noise)
    differences, offset = number._differences(Names, scales)
    seconds, largest = encoded(differences, number.second, Rounding.NEAREST, None)
    if program.codes:
        return codes, (seconds, largest, offset)
    found = number._sums(Names, decode(seconds, number.second, scales=largest), offset)
    return jnp.where(x != x, x, decode(codes, number.first, x.dtype, scales=found))  # NaN has no code


def _law_of_blocks(
    program: Program, sizes: Sizes, few_loops: bool, x: jax.Array, constants: tuple[Any, ...], noise: Any
) -> Any:
    carrier, word = program.carrier, None
    lanes = to_lanes(x, carrier).reshape(x.shape or (1,))
    blocks = tiles(lanes.shape, sizes or (1,))
    if noise is not None:
        noise = Noise(*map(jnp.asarray, noise))  # NumPy arrays where jit is disabled: their scalars warn of overflow
        word = rounding_words(arange, lanes.shape, noise, rounds_distance(program.mode))
        word = blocks.split(word.astype(lanes.dtype) << (carrier.lane_bits - 32), pad)
    lanes = blocks.split(lanes, pad)
    # The numbers that a float scale gives a block take many operations, those of a power of two few.
    kept = identity if few_loops and not program.float_scaled else materialize
    result = program.run(names_for(carrier.lane_bits), lanes, constants, blocks.axes, word, kept, around=blocks.around)
    if not program.codes:
        return from_lanes(blocks.merge(result), carrier, x)
    codes, *scales = result if program.shared else (result,)
    codes = blocks.merge(codes).astype(f"uint{program.storage}").reshape(x.shape)
    if not scales:
        return codes
    scales, *array_scale = scales
    floats = f"float{carrier.lane_bits}"
    scales = scales.view(floats) if program.float_scales else scales.astype(f"uint{program.scale_storage}")
    scales = blocks.collect(scales).reshape(blocks.counts[: x.ndim])
    return codes, (scales, array_scale[0].view(floats).reshape(())) if array_scale else scales


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _straight_through(
    program: Program, sizes: Sizes, few_loops: bool, x: jax.Array, constants: tuple[Any, ...], noise: Noise | None
) -> jax.Array:
    return _law(program, sizes, few_loops, x, constants, noise)


@_straight_through.defjvp
def _derivative(program: Program, sizes: Sizes, few_loops: bool, primals: Any, tangents: Any) -> tuple[jax.Array, Any]:
    """The tangent of x passes without arithmetic, and so does the gradient, its transpose."""
    return _straight_through(program, sizes, few_loops, *primals), tangents[0]


_round = jax.jit(_straight_through, static_argnums=(0, 1, 2))
_encode = jax.jit(_law, static_argnums=(0, 1, 2))


def _over_blocks(function: Callable[..., Any], x: jax.Array, sizes: Sizes | None, scaled: bool = False) -> Any:
    """A function of arrays like x with blocks of these sizes, where axes of x may be sharded explicitly.

    If shards cut blocks, the compiler chooses the shardings inside. The result is sharded like x. A `scaled` function
    returns a pair, whose second part is replicated.
    """
    sharding = jax.typeof(x).sharding
    if not sizes or AxisType.Explicit not in sharding.mesh.axis_types:
        return function
    parts = sharding.shard_shape(x.shape)
    whole = [size[0] if isinstance(size, tuple) else size for size in sizes]
    cut = is_flat(sizes) or any(
        size and part < length and part % size for size, part, length in zip(whole, parts, x.shape, strict=True)
    )
    if not cut:
        return function
    same = sharding.update(spec=PartitionSpec())
    return jax.sharding.auto_axes(function, out_sharding=(sharding, same) if scaled else sharding)
