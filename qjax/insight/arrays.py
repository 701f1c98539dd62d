"""Statistics of JAX arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number, Rounding
from qcore.formats.number import check_number
from qcore.insight.bounds import Range, bounds, check_carrier, range_of
from qcore.insight.lanes import DIGIT, LENGTH
from qcore.insight.law import ERROR_FIELDS, FIELDS, Bounds, Effects, effects, to_float32
from qcore.insight.statistics import Statistics
from qcore.law.blocks.tiles import Sizes, tiles
from qcore.law.carrier import Carrier
from qjax._rounding.array_law import Names, pad, to_lanes
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import ArrayLike, as_array
from qjax._rounding.keys import Key

jax.tree_util.register_pytree_node(
    Statistics, lambda one: ((one.lanes,), one.number), lambda number, lanes: Statistics(number, *lanes)
)

_CHUNK = 14  # sums of 2^14 squares of at most 2^16 fit int32
_HALF = 15  # bits of a chunk's sums that are added up by themselves
_MOST = 1 << 30  # elements


def statistics_of(
    x: ArrayLike,
    number: Number | str,
    rounding: str | Rounding = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> Statistics:
    """What `quantize` with the same arguments does to an array; see `qcore.insight.statistics_of`.

    The statistics are a pytree with one leaf, and can be results of jit, scan and vmap. They are read outside.

    Args:
        x: JAX or NumPy array of any shape; float32, float16 or bfloat16.
        number, rounding, key, random_bits, start, overflow: as for `qjax.quantize`.

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
    """What a rounding did that made y of x; see `qcore.insight.statistics_between`.

    Args:
        x: JAX or NumPy array of any shape; float32, float16 or bfloat16.
        y: what x was rounded to, of the same shape and dtype.
        number: the format, or its text.

    Example:
        >>> statistics_between(jnp.float32([0.1, 900]), jnp.float32([0, 448]), "e4m3fn")
        Statistics (number=e4m3fn, elements=2, underflowed=1, saturated=1, sqnr=6.0 dB)
    """
    x, y = as_array(x), as_array(y)
    carrier, number = check_carrier(x.dtype.name), check_number(number)
    if y.dtype != x.dtype or y.shape != x.shape:
        raise ValueError(f"y is {y.dtype}{list(y.shape)}; allowed is x's {x.dtype}{list(x.shape)}")
    if x.size >= _MOST:
        raise ValueError(f"x has {x.size} elements; allowed are fewer than {_MOST}: merge the statistics of parts")
    found, sizes = range_of(number, carrier), number.block_sizes(x.ndim)
    if x.size == 0:
        return Statistics(number.text, jnp.zeros(LENGTH, jnp.int32))
    constants = tuple(map(np.int32, found.constants))
    return Statistics(number.text, _lanes(carrier, found.kind, sizes, constants, *map(jax.lax.stop_gradient, (x, y))))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _lanes(
    carrier: Carrier, kind: str, sizes: Sizes, constants: tuple[Any, ...], x: jax.Array, y: jax.Array
) -> jax.Array:
    found = Range(carrier, kind, constants)
    bits, result = (to_lanes(one, carrier).reshape(x.shape or (1,)) for one in (x, y))
    blocks = tiles(bits.shape, sizes or (1,))
    ends = bounds(Names, blocks.split(bits, pad), found, blocks)
    ends = Bounds(*(_spread(end, blocks) for end in ends))
    before, after = (to_float32(Names, lanes, carrier) for lanes in (bits, result))
    return _tabulate(effects(Names, before, after, ends))


def _spread(end: Any, blocks: Any) -> Any:
    return end if jnp.ndim(end) == 0 else blocks.merge(jnp.broadcast_to(end, blocks.tiled))


def _tabulate(found: Effects) -> jax.Array:
    """The sums as lanes; int32 holds those of chunks."""
    ones = jnp.ones_like(found.number_field)
    flags = jnp.stack([jnp.int32(ones.size), *(jnp.sum(flag, dtype=jnp.int32) for flag in found.flags)])
    numbers = _table(found.number_field, (ones, *found.number_columns), FIELDS)
    errors = _table(found.error_field, found.error_columns, ERROR_FIELDS)
    high, low = (jnp.concatenate(parts) for parts in zip((flags & 0, flags), numbers, errors, strict=True))
    magnitudes = jnp.stack([jnp.max(lanes) for lanes in found.magnitudes])
    return jnp.concatenate([high, low, magnitudes])


def _table(field: jax.Array, columns: tuple[Any, ...], fields: int) -> tuple[jax.Array, jax.Array]:
    """The sums of columns by field, as their higher parts and lower `DIGIT` bits."""
    index = jnp.arange(field.size, dtype=jnp.int32) >> _CHUNK
    places = index * fields + field.reshape(-1)
    added = jnp.stack([column.reshape(-1) for column in columns], -1)
    chunks = -(-field.size >> _CHUNK)
    table = jnp.zeros((chunks * fields, len(columns)), jnp.int32).at[places].add(added, mode="promise_in_bounds")
    table = table.reshape(chunks, -1)
    low = jnp.sum(table & ((1 << _HALF) - 1), 0, dtype=jnp.int32)
    high = jnp.sum(table >> _HALF, 0, dtype=jnp.int32) + (low >> _HALF)
    digits = (high & ((1 << DIGIT - _HALF) - 1)) << _HALF
    return high >> (DIGIT - _HALF), digits | (low & ((1 << _HALF) - 1))
