"""Statistics of JAX arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number
from qcore.arguments import check_type
from qcore.formats.number import check_number
from qcore.insight.bounds import Range, bounds, check_carrier, range_of
from qcore.insight.law import (
    DIGIT,
    ERROR_FIELDS,
    ERROR_KEYS,
    FIELDS,
    LENGTH,
    NUMBER_KEYS,
    Bounds,
    Effects,
    effects,
    error_weights,
    number_weights,
    to_float32,
)
from qcore.insight.statistics import Statistics, hashes
from qcore.law.carrier import Carrier
from qcore.law.program import Program
from qcore.law.rounding import RoundingLike
from qcore.law.tiles import Sizes, tiles
from qjax._namespace import Names
from qjax._rounding.array_law import pad, to_lanes
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import ArrayLike, as_array
from qjax._rounding.keys import Key

jax.tree_util.register_pytree_node(
    Statistics, lambda one: ((one.lanes,), one.number), lambda number, lanes: Statistics(number, *lanes)
)

_HALF = DIGIT // 2  # bits of counts
_LOW = (1 << _HALF) - 1
_MOST = 1 << 30  # elements


def statistics_of(
    x: ArrayLike,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> Statistics:
    """The statistics of `quantize` with the same arguments; see `qcore.insight.statistics_of`.

    The statistics are a pytree with one leaf, and can be results of jit, scan and vmap. They are read outside.

    Args:
        x: JAX or NumPy array of any shape; float32, float16 or bfloat16.
        number, rounding, key, random_bits, start, overflow: as for `qjax.quantize`.

    Returns:
        The counts, as those of NumPy for the same array.

    Raises:
        TypeError, ValueError: as `qjax.quantize`, and TypeError for float64.

    Example:
        >>> jax.jit(lambda x: statistics_of(x, "e4m3fn"))(jnp.float32([0.1, 900, 1e-9]))
        Statistics (number=e4m3fn, elements=3, underflowed=1, overflowed=1, nan_results=1, sqnr=36.1 dB)
    """
    x = as_array(x)
    check_carrier(x.dtype.name)
    y = quantize(x, number, rounding, key=key, random_bits=random_bits, start=start, overflow=overflow)
    number = check_number(number)
    return statistics_between(x, y, number if overflow is None else number.overflowing(overflow))


def statistics_between(x: ArrayLike, y: ArrayLike, number: Number | str) -> Statistics:
    """The statistics of a rounding of x to y; see `qcore.insight.statistics_between`.

    Args:
        x: JAX or NumPy array of any shape; float32, float16 or bfloat16.
        y: what x was rounded to, of the same shape and dtype.
        number: the format, or its text.

    Returns:
        `Statistics` with the counts that NumPy has for the same arrays, a pytree with one leaf.

    Raises:
        TypeError: if x or y is not an array of such a dtype, or number is neither a `Number` nor text.
        ValueError: if y has another shape or dtype than x, a text is not a format, or x has 2^30 elements or more.

    Example:
        >>> statistics_between(jnp.float32([0.1, 900]), jnp.float32([0, 448]), "e4m3fn")
        Statistics (number=e4m3fn, elements=2, underflowed=1, saturated=1, sqnr=6.0 dB)
    """
    x = as_array(x)
    check_type("y", y, ArrayLike, "a jax.Array or NumPy array like x")
    carrier, number = check_carrier(x.dtype.name), check_number(number)
    if y.dtype != x.dtype or y.shape != x.shape:
        raise ValueError(f"y is {y.dtype}{list(y.shape)}; allowed is x's {x.dtype}{list(x.shape)}")
    y = as_array(y, "y")
    if x.size >= _MOST:
        raise ValueError(f"x has {x.size} elements; allowed are fewer than {_MOST}: merge the statistics of parts")
    found, sizes = range_of(number, carrier), number.tile_sizes(x.ndim)
    if x.size == 0:
        return Statistics(number.text, jnp.zeros(LENGTH, jnp.int32))
    constants = tuple(map(np.int32, found.constants))
    lanes = over_mesh(partial(_lanes, carrier, found.program, sizes, constants), x)
    return Statistics(number.text, lanes(*map(jax.lax.stop_gradient, (x, y))))


@jax.jit
def digest_of(y: jax.Array) -> jax.Array:
    """The words of a result's digest."""
    lanes = to_lanes(y, check_carrier(y.dtype.name)).reshape(-1)
    words = hashes(lanes, jnp.arange(lanes.size, dtype=jnp.int32))
    return jnp.stack([jnp.sum(one, dtype=jnp.int32) for one in words])


def over_mesh(function: Any, x: jax.Array) -> Any:
    """A function of arrays like x that the compiler may shard inside; its result is the same on all devices."""
    sharding = jax.typeof(x).sharding
    if jax.sharding.AxisType.Explicit not in sharding.mesh.axis_types:
        return function
    return jax.sharding.auto_axes(function, out_sharding=sharding.update(spec=jax.sharding.PartitionSpec()))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _lanes(
    carrier: Carrier,
    program: Program | None,
    sizes: Sizes,
    constants: tuple[Any, ...],
    x: jax.Array,
    y: jax.Array,
) -> jax.Array:
    """The lanes, in a conditional, across which XLA does not fuse.

    Otherwise XLA would repeat what made x and y for each sum.
    """
    first = x.reshape(-1)[0] + y.reshape(-1)[0]
    always = (first == first) | (first != first)
    nothing = jnp.full(LENGTH, always & False, jnp.int32)  # varies over a mesh as the rest does
    return jax.lax.cond(always, partial(_unfused, carrier, program, sizes, constants), lambda *_: nothing, x, y)


def _unfused(
    carrier: Carrier,
    program: Program | None,
    sizes: Sizes,
    constants: tuple[Any, ...],
    x: jax.Array,
    y: jax.Array,
) -> jax.Array:
    found = Range(carrier, program, constants)
    bits, result = (to_lanes(one, carrier).reshape(x.shape or (1,)) for one in (x, y))
    blocks = tiles(bits.shape, sizes or (1,))
    ends = bounds(Names, blocks.split(bits, pad), found, blocks)
    ends = Bounds(*(_spread(end, blocks) for end in ends))
    before, after = (to_float32(Names, lanes, carrier) for lanes in (bits, result))
    return _tabulate(effects(Names, before, after, ends))


def _spread(end: Any, blocks: Any) -> Any:
    return end if jnp.ndim(end) == 0 else blocks.merge(jnp.broadcast_to(end, blocks.tiled))


def _tabulate(found: Effects) -> jax.Array:
    """The sums as lanes."""
    reduced = (*found.flags, *found.magnitudes)
    count = len(found.flags)
    flags_and_magnitudes = jax.lax.reduce(
        tuple(one.reshape(-1) for one in reduced),
        (np.int32(0),) * len(reduced),
        lambda a, b: tuple(
            x + y if i < count else jnp.maximum(x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))
        ),
        (0,),
    )
    flags = jnp.stack([jnp.int32(found.number_key.size), *(-one for one in flags_and_magnitudes[:count])])
    numbers = _sums(_counts(found.number_key, FIELDS * NUMBER_KEYS), number_weights())
    errors = _sums(_counts(found.error_key, ERROR_FIELDS * ERROR_KEYS).at[0].set(0), error_weights())
    high, low = (jnp.concatenate(parts) for parts in zip((flags & 0, flags), numbers, errors, strict=True))
    return jnp.concatenate([high, low, jnp.stack(flags_and_magnitudes[count:])])


def _counts(key: jax.Array, size: int) -> jax.Array:
    return jnp.zeros(size, jnp.int32).at[key.reshape(-1)].add(1, mode="promise_in_bounds")


def _sums(counts: jax.Array, weights: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """By fields, as their higher parts and lower `DIGIT` bits: of both halves of counts, which fit int32."""
    split = counts.reshape(-1, len(weights), 1)
    weights = weights.astype(np.int32)
    low = jnp.sum((split & _LOW) * weights, 1, dtype=jnp.int32).reshape(-1)
    high = jnp.sum((split >> _HALF) * weights, 1, dtype=jnp.int32).reshape(-1) + (low >> _HALF)
    return high >> (DIGIT - _HALF), (high & _LOW) << _HALF | (low & _LOW)
