"""Many arrays rounded in few calls, with the same bits as one call for each."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number, Rounding
from qcore.formats.block import BlockScaled
from qcore.linalg.operands.delayed import next_rows, round_each_delayed
from qjax._rounding.dispatch import quantize, quantize_rows
from qjax.linalg.namespace import Float64

_SMALL = 2**16  # arrays of so many elements are cheap to copy
_COLUMNS = 256


def quantize_arrays(arrays: list[Any], number: Number, mode: Rounding, keys: Any) -> list[Any]:
    """`[quantize(x, number, mode, key=key) for x, key in zip(arrays, keys)]`, with one call for all small arrays.

    XLA takes far longer to compile a rounding than to run it. `keys` is a uint32 array of shape (len(arrays), 2).
    """
    groups = defaultdict(list)
    for index, x in enumerate(arrays):
        blocks = x.shape if number.axes(x.ndim) else None
        groups[(x.dtype, blocks) if 0 < x.size <= _SMALL else index].append(index)
    results = list(arrays)
    for indices in groups.values():
        own = None if keys is None else keys[np.array(indices)]
        rounded = _quantize_group([arrays[index] for index in indices], number, mode, own)
        for index, result in zip(indices, rounded, strict=True):
            results[index] = result
    return results


@partial(jax.jit, static_argnums=(1, 2))
def quantize_delayed(
    arrays: list[Any], number: BlockScaled, mode: Rounding, keys: Any, rows: list[Any]
) -> tuple[list[Any], list[Any]]:
    """float32 arrays rounded with the delayed scales of their rows, and the next rows.

    Args:
        arrays, number, mode, keys: as for `quantize_arrays`.
        rows: of each array, its scale and the past largest magnitudes.
    """

    def round_elements(scaled: list[Any], element: Number) -> list[Any]:
        with jax.enable_x64(False):
            return quantize_arrays(scaled, element, mode, keys)

    with jax.enable_x64(True):
        rounded = round_each_delayed(Float64, arrays, number, [row[0] for row in rows], round_elements)
        return rounded, next_rows(Float64, rows, tuple(arrays), (number,) * len(arrays))


def _quantize_group(arrays: list[Any], number: Number, mode: Rounding, keys: Any) -> list[Any]:
    if len(arrays) == 1:
        return [quantize(arrays[0], number, mode, key=None if keys is None else keys[0])]
    if number.axes(arrays[0].ndim):  # blocks lie within each array; all arrays have one shape
        return list(_quantize_unfused(number, mode, jnp.stack(arrays), keys, np.zeros(len(arrays), np.int32)))
    parts = [jnp.pad(x.reshape(-1), (0, -x.size % _COLUMNS)).reshape(-1, _COLUMNS) for x in arrays]
    counts = np.array([len(part) for part in parts])
    starts = np.concatenate([np.arange(count, dtype=np.int32) * _COLUMNS for count in counts])
    keys = None if keys is None else jnp.repeat(keys, counts, axis=0, total_repeat_length=len(starts))
    rounded = _quantize_unfused(number, mode, jnp.concatenate(parts), keys, starts)
    parts = jnp.split(rounded, np.cumsum(counts)[:-1])
    return [part.reshape(-1)[: x.size].reshape(x.shape) for part, x in zip(parts, arrays, strict=True)]


@partial(jax.jit, static_argnums=(0, 1))
def _quantize_unfused(number: Number, mode: Rounding, rows: jax.Array, keys: Any, starts: Any) -> jax.Array:
    """`quantize_rows` inside a conditional, across which XLA does not fuse.

    Otherwise XLA would repeat the whole rounding in each kernel that uses one of the rows.
    """
    first = rows.reshape(-1)[0]
    always = (first == first) | (first != first)
    return jax.lax.cond(always, lambda: quantize_rows(rows, number, mode, keys, starts), lambda: rows)
