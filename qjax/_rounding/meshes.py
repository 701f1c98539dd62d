"""Meshes whose axes are sharded explicitly: JAX then wants a sharding for each result, also inside a law."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec


def is_explicit(x: Any) -> bool:
    """True if an array's mesh has axes that are sharded explicitly."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def on_meshes(function: Callable[..., Any], sharding: Callable[[], Any], *operands: Any) -> Any:
    """function(*operands), inside of which the compiler chooses shardings.

    Args:
        function: of arrays; it must not use other arrays than its operands.
        sharding: gives the result's sharding; called on a mesh with explicit axes.
        operands: pytrees of arrays.
    """
    if not any(is_explicit(x) for x in jax.tree.leaves(operands)):
        return function(*operands)
    return jax.sharding.auto_axes(function, out_sharding=sharding())(*operands)


def product_sharding(operands: Any, shape: tuple[int, ...], kept: Any) -> Any:
    """The sharding of a product: each axis of the result is sharded as the operand's axis that it is.

    Args:
        operands: both arrays.
        shape: the shape of the result.
        kept: for each operand its axes that are not summed over, and the result's axis for each. Of two axes that an
            axis of the mesh shards, the first one of the result keeps it.
    """
    shardings = [jax.typeof(x).sharding for x in operands]
    explicit = next(one for one in shardings if AxisType.Explicit in one.mesh.axis_types)
    spec: list[Any] = [None] * len(shape)
    free = set(explicit.mesh.axis_names)
    for sharding, axes in zip(shardings, kept, strict=True):
        for axis, of_result in axes.items():
            names = _names(sharding.spec, axis)
            ways = prod(explicit.mesh.shape[name] for name in names)
            if names and spec[of_result] is None and free.issuperset(names) and shape[of_result] % ways == 0:
                spec[of_result] = names
                free -= set(names)
    return explicit.update(spec=PartitionSpec(*spec))


def _names(spec: Any, axis: int) -> tuple[str, ...]:
    """The axes of a mesh that shard an array's axis."""
    found = spec[axis] if axis < len(spec) else None
    return (found,) if isinstance(found, str) else tuple(found or ())
