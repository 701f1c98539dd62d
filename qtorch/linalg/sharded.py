"""Products of tensors whose parts lie in several processes (DTensor), with the bits of the whole tensors' product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from qtorch._rounding.sharded import is_sharded

Axes = dict[int, int]


def check_placed(names: tuple[str, str], a: torch.Tensor, b: torch.Tensor) -> None:
    """Refuses a DTensor beside a tensor of one process, on another mesh, or in a traced program."""
    if not is_sharded(a, b):
        return
    if torch.compiler.is_dynamo_compiling():
        raise TypeError(f"{names[0]} or {names[1]} is a DTensor in torch.compile; allowed there are plain tensors")
    meshes = [getattr(x, "device_mesh", None) for x in (a, b)]
    if meshes[0] != meshes[1]:
        raise TypeError(
            f"{names[0]} and {names[1]} lie on {meshes[0]} and {meshes[1]}; allowed are DTensors of one mesh"
        )


def multiply_shards(
    first: Any,
    second: Any,
    shape: Sequence[int],
    kept: tuple[Axes, Axes],
    multiply: Callable[[torch.Tensor, torch.Tensor, tuple[int, ...]], torch.Tensor],
) -> Any:
    """A product of DTensors: each process computes its part of the result.

    Operands that are sharded along what is summed over are gathered first, so that sums keep their order.

    Args:
        first, second: the operands, as they are multiplied.
        shape: of the result.
        kept: for each operand, the axes along which the product may be sharded, and the result's axis for each.
        multiply: the product of two tensors of one process, with a result of a shape.
    """
    from torch.distributed.tensor import DTensor

    mesh = first.device_mesh
    chosen = [_placement(*both, kept) for both in zip(first.placements, second.placements, strict=True)]
    placed, others, results = zip(*chosen, strict=True)
    x, y = (one.redistribute(mesh, p).to_local() for one, p in ((first, placed), (second, others)))
    local = list(shape)
    for part, whole, axes in zip((x, y), (first, second), kept, strict=True):
        for axis, of_result in axes.items():
            if part.shape[axis] != whole.shape[axis]:
                local[of_result] = part.shape[axis]
    found = multiply(x, y, tuple(local))
    strides = torch.empty(tuple(shape), device="meta").stride()
    return DTensor.from_local(found, mesh, results, run_check=False, shape=torch.Size(shape), stride=strides)


def _placement(first: Any, second: Any, kept: tuple[Axes, Axes]) -> tuple[Any, Any, Any]:
    """Where operands and the result lie along a dimension of the mesh."""
    from torch.distributed.tensor import Replicate, Shard

    for index, placement in enumerate((first, second)):
        if type(placement) is not Shard or placement.dim not in kept[index]:
            continue
        of_result = kept[index][placement.dim]
        same = [axis for axis, target in kept[1 - index].items() if target == of_result]  # of batches
        other = Shard(same[0]) if same else Replicate()
        left, right = (placement, other) if index == 0 else (other, placement)
        return left, right, Shard(of_result)
    return Replicate(), Replicate(), Replicate()
