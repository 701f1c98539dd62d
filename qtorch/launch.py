"""Running kernels on tensors of any shape, strides, memory format and size."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

import torch

from qcore import Number, Rounding
from qcore.law import Block, block_grid
from qcore.random import Noise, as_lane
from qtorch import kernels
from qtorch.lanes import Names, result_dtype, to_lanes
from qtorch.plan import Plan, plan_for

KERNEL_LIMIT = 1 << 31  # elements: a kernel's indices have 31 bits
_PIECE = 1 << 25  # elements at a time beyond that


def by_kernel(x: torch.Tensor, plan: Plan, noise: Noise | None) -> torch.Tensor | None:
    """Rounds an ordinary tensor that has elements; None where there is no kernel for it."""
    if not plan.flat:
        return _by_block(x, plan, noise)
    if x.is_contiguous():
        if x.dim() == 1:
            return _flat(x, plan, noise)
        return _shaped(_flat(x.ravel(), plan, noise), x)
    if noise is None and torch.ops.aten.is_non_overlapping_and_dense(x):  # only random words care about order
        result = _flat(x.as_strided((x.numel(),), (1,)), plan, noise)
        return None if result is None else result.as_strided(x.shape, x.stride())
    return _formatted(_flat(x.contiguous().view(-1), plan, noise), x)


def _flat(x: torch.Tensor, plan: Plan, noise: Noise | None) -> torch.Tensor | None:
    size = x.numel()
    if size >= KERNEL_LIMIT:
        return _in_pieces(x, plan, noise)
    if plan.pairs and x.is_cpu and size % 2 == 0 and x.storage_offset() % 2 == 0:
        return _in_pairs(x, plan, plan.pairs, noise)
    kernel, constants = plan.runner("flat", x.device)
    return None if kernel is None else kernels.launch(kernel, [_aligned(x), constants, *(noise or ())], size)[0]


def _in_pairs(x: torch.Tensor, plan: Plan, integers: torch.dtype, noise: Noise | None) -> torch.Tensor | None:
    kernel, constants = plan.runner("pairs", x.device)
    if kernel is None:
        return None
    result = kernels.launch(kernel, [x.view(integers), constants, *(noise or ())], x.numel())[0]
    return result.view(torch.int16 if plan.program.codes else x.dtype).to(result_dtype(plan.program, x.dtype))


def round_rows(x: torch.Tensor, number: Number, keys: torch.Tensor) -> torch.Tensor | None:
    """Stochastic rounding of rows with keys of their own, see `run_keyed`; None where there is no kernel for it."""
    plan = plan_for(number, Rounding.STOCHASTIC, x.dtype, None, False)
    kernel, constants = plan.runner("keyed", x.device)
    return None if kernel is None else kernels.launch(kernel, [x, constants, keys], x.numel())[0]


def _in_pieces(x: torch.Tensor, plan: Plan, noise: Noise | None) -> torch.Tensor | None:
    if plan.program.kind == "block":
        plan = _grid_of_all(x, plan)
    result = torch.empty_like(x, dtype=result_dtype(plan.program, x.dtype))
    for begin in range(0, x.numel(), _PIECE):
        piece = _flat(x[begin : begin + _PIECE], plan, _shifted(noise, begin) if noise else None)
        if piece is None:
            return None
        result[begin : begin + _PIECE] = piece
    return result


def _grid_of_all(x: torch.Tensor, plan: Plan) -> Plan:
    """The grid of a block too large for one call: that of its piece with the largest magnitude."""
    carrier, constants = plan.program.carrier, Block(*plan.constants)
    grids = [block_grid(Names, to_lanes(piece, carrier), carrier, constants, (0,)) for piece in x.split(_PIECE)]
    largest = max(grids, key=lambda grid: int(grid.limit))
    return Plan(plan.number, replace(plan.program, kind="grid"), tuple(int(field) for field in largest))


def _shifted(noise: Noise, elements: int) -> Noise:
    high, low, mask = noise.window.tolist()
    start = ((high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF) + elements
    words = (as_lane(start >> 32 & 0xFFFFFFFF), as_lane(start & 0xFFFFFFFF), mask)
    return Noise(noise.key, torch.tensor(words, dtype=torch.int32, device=noise.window.device))


def _by_block(x: torch.Tensor, plan: Plan, noise: Noise | None) -> torch.Tensor | None:
    if x.numel() >= KERNEL_LIMIT:
        return None
    layout, shape = _block_layout(plan, x.shape)
    kernel, constants = plan.runner(layout, x.device)
    if kernel is None:
        return None
    lanes = x.contiguous()
    lanes = lanes if lanes.shape == shape else lanes.view(shape)
    return _formatted(kernels.launch(kernel, [_aligned(lanes), constants, *(noise or ())], x.numel())[0], x)


@lru_cache(maxsize=1024)
def _block_layout(plan: Plan, shape: torch.Size) -> tuple[str, torch.Size]:
    """The kernel layout for blocks along one dimension, and a contiguous tensor's shape in it."""
    axes = plan.number.axes(len(shape))
    (kept,) = (axis for axis in range(len(shape)) if axis not in axes)
    outer, blocks, inner = prod(shape[:kept]), shape[kept], prod(shape[kept + 1 :])
    if blocks == 1:
        return "flat", torch.Size((outer * inner,))
    if outer == 1 and inner > 1:
        return "rows", torch.Size((blocks, inner))
    return ("columns", torch.Size((outer, blocks))) if inner == 1 else ("middle", torch.Size((outer, blocks, inner)))


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy of it where a GPU kernel could not load whole vectors."""
    return x.clone() if x.is_cuda and x.data_ptr() % 16 else x


def _shaped(result: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """A fresh contiguous result in x's shape; a view would cost more than twice as much as resizing it."""
    return None if result is None else result.resize_as_(x)


def _formatted(result: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """A contiguous result in x's shape, and in the memory format that operations on x keep."""
    result = _shaped(result, x)
    if result is None or x.is_contiguous():
        return result
    kept = torch.empty_like(x, dtype=result.dtype)
    return result if kept.is_contiguous() else kept.copy_(result)
