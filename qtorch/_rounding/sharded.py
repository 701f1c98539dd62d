"""Tensors whose parts lie in several processes (DTensor): each process rounds its part with the bits of the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from qcore.random.threefry import Noise
from qtorch._rounding.keys import shifted
from qtorch._rounding.plan import RoundingPlan
from qtorch._torch_internals import constant_result


def is_sharded(*tensors: Any) -> bool:
    """True if one of the tensors is a DTensor. The module of DTensor takes long to import, and is not imported here."""
    kind = _class_of_sharded()
    return kind is not None and any(issubclass(one, kind) for one in set(map(type, tensors)))


@constant_result  # Dynamo would read the whole table of modules for each program
def _class_of_sharded() -> type | None:
    """The class of DTensors, if there can be one."""
    # While another thread imports the module it is in the table, but has no class yet, and there are no DTensors.
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def check_not_transformed(x: Any) -> None:
    """Raises for a DTensor under a transform of torch.func: torch cannot shift its integers there."""
    inner = torch.func.debug_unwrap(x)
    if inner is not x and is_sharded(inner):
        raise TypeError("x is a DTensor under torch.func; allowed there is a tensor of one process")


def check_not_sharded(x: Any, name: str) -> None:
    if is_sharded(x):
        raise TypeError(f"{name} is a DTensor; allowed is a tensor of one process, such as {name}.full_tensor()")


def round_shards(
    x: Any, plan: RoundingPlan, noise: Noise | None, rounded: Callable[[torch.Tensor, Noise | None], torch.Tensor]
) -> Any:
    """Rounds a DTensor, as the whole tensor would be rounded; partial placements become replicated.

    A partial DTensor, the sum of its parts, is summed first. The noise is that of the whole tensor, equal in all
    processes. `rounded` rounds a tensor of one process.
    """
    from torch.distributed.tensor import DTensor, Replicate

    mesh, copies = x.device_mesh, [Replicate()] * x.device_mesh.ndim
    if any(placement.is_partial() for placement in x.placements):
        x = x.redistribute(placements=[Replicate() if one.is_partial() else one for one in x.placements])
    start = _start(x, plan, noise)
    if start is None:  # a block or a range of random words crosses parts
        whole = DTensor.from_local(rounded(x.full_tensor(), noise), mesh, copies)
        return whole.redistribute(placements=x.placements)
    part = rounded(x.to_local(), shifted(noise, start))
    return DTensor.from_local(part, mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride())


def _start(x: Any, plan: RoundingPlan, noise: Noise | None) -> int | None:
    """The index in the whole tensor of this process's first element; None where it cannot round its part alone."""
    from torch.distributed.tensor import Replicate, Shard

    if any(not isinstance(one, Replicate | Shard) or hasattr(one, "split_factor") for one in x.placements):
        return None  # sharded in another way, or in strides, for which torch 2.11 has a kind of Shard
    dims = {placement.dim for placement in x.placements if placement.is_shard()}
    if not dims.isdisjoint(plan.number.axes(x.dim())):
        return None
    if noise is not None and any(prod(x.shape[:dim]) > 1 for dim in dims):
        return None  # words follow the index in row-major order, and here a part is not one range of indices
    start, shape = 0, list(x.shape)
    places = x.device_mesh.get_coordinate() or [0] * len(x.placements)  # None outside the mesh, where parts are empty
    for placement, count, place in zip(x.placements, x.device_mesh.shape, places, strict=True):
        if placement.is_shard():
            dim, length = placement.dim, shape[placement.dim]
            part = -(-length // count)
            begin = min(place * part, length)  # the last processes may have no elements
            start += begin * prod(x.shape[dim + 1 :])
            shape[dim] = min(part, length - begin)
    return start
