"""Parameters whose parts lie in several processes (DTensor), as FSDP2 makes them: each process steps its own part."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from qtorch._rounding.sharded import is_sharded


def check_placements(p: Any) -> None:
    """Raises for a parameter whose parts are to be summed."""
    if is_sharded(p) and any(one.is_partial() for one in p.placements):
        raise ValueError(f"params has a DTensor with placements {p.placements}; allowed are shards and copies")


def own_part(x: Any, p: Any = None) -> torch.Tensor:
    """What this process has of a tensor, whose parts lie as those of the parameter p, if it is given."""
    if not is_sharded(x):
        return x
    return (x if p is None else x.redistribute(placements=p.placements)).to_local()


def equal_parts(p: Any) -> int:
    """How many numbers each process has of a parameter; 0 where not all have equally many."""
    if not is_sharded(p):
        return p.numel()
    sizes = list(p.shape)
    for one, count in zip(p.placements, p.device_mesh.shape, strict=True):
        if one.is_shard():
            sizes[one.dim], rest = divmod(sizes[one.dim], count)
            if rest:
                return 0
    return prod(sizes)


def as_parts(x: torch.Tensor, p: Any) -> torch.Tensor:
    """The tensor of which each process has x: of the parameter's shape, or the parts' vectors one after the other."""
    if not is_sharded(p):
        return x
    from torch.distributed.tensor import DTensor, Shard

    shape, stride, placements = p.shape, p.stride(), p.placements
    if x.shape != own_part(p).shape:
        parts = [count for one, count in zip(placements, p.device_mesh.shape, strict=True) if one.is_shard()]
        shape, stride = torch.Size([x.numel() * prod(parts)]), (1,)
        placements = [Shard(0) if one.is_shard() else one for one in placements]
    return DTensor.from_local(x, p.device_mesh, placements, run_check=False, shape=shape, stride=stride)
