"""Arrays whose axes are sharded explicitly, across blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from qcore.law.tiles import Sizes


def over_blocks(function: Callable[..., Any], x: jax.Array, sizes: Sizes | None, scaled: bool = False) -> Any:
    """A function of arrays like x, of blocks of these sizes; where shards cut them, the compiler shards what is inside.

    Its result is sharded like x; where it is `scaled`, it is a pair, and what comes second is everywhere the same.
    """
    sharding = jax.typeof(x).sharding
    if not sizes or AxisType.Explicit not in sharding.mesh.axis_types:
        return function
    parts = sharding.shard_shape(x.shape)
    if not any(
        size and part < length and part % size for size, part, length in zip(sizes, parts, x.shape, strict=True)
    ):
        return function
    same = sharding.update(spec=PartitionSpec())
    return jax.sharding.auto_axes(function, out_sharding=(sharding, same) if scaled else sharding)
