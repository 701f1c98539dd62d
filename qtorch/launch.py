"""Running kernels on tensors of any shape, strides, memory format and size."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from qcore import Number, Rounding
from qcore.random import Noise, as_lane
from qcore.sharing import KINDS, Shared, block_grid, shared_scale
from qcore.tiles import Tiles, merged, tiles
from qtorch import kernels
from qtorch.lanes import ROW, Names, pad, result_dtype, to_lanes
from qtorch.plan import Plan, plan_for

KERNEL_LIMIT = 1 << 31  # elements: a kernel's indices have 31 bits
_PIECE = 1 << 25  # elements at a time beyond that
_CACHED = 1 << 18  # elements of which a copy costs little
_BY_PATTERN = {kernels.LAYOUTS[name][1]: name for name in ("whole", "rows", "columns", "middle", "bands", "squares")}


def by_kernel(x: torch.Tensor, plan: Plan, noise: Noise | None) -> Any:
    """Rounds an ordinary tensor that has elements; None where there is no kernel for it. See `qtorch.lanes.run`."""
    if not plan.flat:
        return _by_block(x, plan, noise)
    if x.is_contiguous():
        return _flat(x, plan, noise) if x.dim() == 1 else _shaped(_flat(x.ravel(), plan, noise), x)
    if noise is None and torch.ops.aten.is_non_overlapping_and_dense(x):  # only random words care about order
        result = _flat(x.as_strided((x.numel(),), (1,)), plan, noise)
        return None if result is None else result.as_strided(x.shape, x.stride())
    return _formatted(_flat(x.contiguous().view(-1), plan, noise), x)


def _flat(x: torch.Tensor, plan: Plan, noise: Noise | None) -> torch.Tensor | None:
    size = x.numel()
    layout, grain = plan.layout
    if layout == "pairs" and not x.is_cpu:
        layout, grain = "flat", ROW
    if size % grain or size >= KERNEL_LIMIT:
        return _uneven(x, plan, noise, grain)
    kernel, constants = plan.runner(layout, x)
    if kernel is None:
        return None
    lanes = _in_pairs(x, plan.pairs) if layout == "pairs" else aligned(x)
    result = kernel([lanes, constants, *(noise or ())])[0]
    if layout != "pairs":
        return result
    return result.view(torch.int16 if plan.program.codes else x.dtype).to(result_dtype(plan.program, x.dtype))


def _in_pairs(x: torch.Tensor, integers: Any) -> torch.Tensor:
    """A flat tensor's elements, two in each integer."""
    return (x.clone() if x.storage_offset() % 2 else x).view(integers)


def _uneven(x: torch.Tensor, plan: Plan, noise: Noise | None, grain: int) -> torch.Tensor | None:
    """The same of a tensor too large for a kernel, or not of whole rows."""
    size = x.numel()
    if size >= KERNEL_LIMIT:
        return _in_pieces(x, plan, noise, _PIECE)
    if x.is_cpu and size > _CACHED:
        return _in_pieces(x, plan, noise, _CACHED)
    result = _flat(torch.nn.functional.pad(x, (0, -size % grain)), plan, noise)
    return None if result is None else result.resize_(size)


def round_rows(target: torch.Tensor, x: torch.Tensor, number: Number, keys: torch.Tensor, starts: torch.Tensor) -> bool:
    """Whether there is a kernel that rounds rows stochastically, onto others or themselves; if so, it has.

    For keys and starts see `run_keyed`. Autograd does not notice.
    """
    plan = plan_for(number, Rounding.STOCHASTIC, x.dtype, None, False)
    kernel, constants = plan.runner("keyed", x)
    if kernel is None:
        return False
    kernel([x, constants, keys, starts, target])
    return True


def round_onto(target: torch.Tensor, x: torch.Tensor, number: Number, rounding: Rounding) -> bool:
    """Whether there is a kernel that writes a flat tensor, rounded, onto another or itself; if so, it has.

    Autograd does not notice, but for the end of a tensor that is not of whole rows.
    """
    plan = plan_for(number, rounding, x.dtype, None, False)
    size = x.numel() // ROW * ROW
    if plan.stochastic or plan.pairs or plan.program.shared or not 0 < size < KERNEL_LIMIT:
        return False
    kernel, constants = plan.runner("onto", x)
    rest = None if x.numel() == size else _flat(x[size:], plan, None)
    if kernel is None or (rest is None and x.numel() > size):
        return False
    kernel([x[:size], constants, target[:size]] if rest is not None else [x, constants, target])
    if rest is not None:
        target[size:] = rest
    return True


def _in_pieces(x: torch.Tensor, plan: Plan, noise: Noise | None, size: int) -> torch.Tensor | None:
    if plan.program.kind == "nvfp4":
        return None
    if plan.program.shared:
        plan = _grid_of_all(x, plan)
    result = torch.empty_like(x, dtype=result_dtype(plan.program, x.dtype))
    for begin in range(0, x.numel(), size):
        piece = _flat(x[begin : begin + size], plan, _shifted(noise, begin) if noise else None)
        if piece is None:
            return None
        result[begin : begin + size] = piece
    return result


def _grid_of_all(x: torch.Tensor, plan: Plan) -> Plan:
    """The grid of a block too large for one call."""
    program, shared = plan.program, Shared(*plan.constants)
    carrier = program.carrier
    found = [shared_scale(Names, to_lanes(x, carrier), carrier, shared, (0,), program.kind) for x in x.split(_PIECE)]
    scales, nans = zip(*found, strict=True)
    nan = None if nans[0] is None else torch.cat(nans).amin()
    grid = block_grid(Names, torch.cat(scales).amax(), nan, carrier, shared, program.kind)
    return Plan(plan.number, replace(program, kind=KINDS[program.kind]), tuple(map(int, grid)))


def _shifted(noise: Noise, elements: int) -> Noise:
    high, low, mask = noise.window.tolist()
    start = ((high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF) + elements
    words = (as_lane(start >> 32 & 0xFFFFFFFF), as_lane(start & 0xFFFFFFFF), mask)
    return Noise(noise.key, torch.tensor(words, dtype=torch.int32, device=noise.window.device))


def _by_block(x: torch.Tensor, plan: Plan, noise: Noise | None) -> Any:
    layout, shape, blocks, plain = _block_layout(plan, x.shape)
    if layout is None or x.numel() >= KERNEL_LIMIT or (noise and blocks.ragged):  # whose words have gaps
        return None
    kernel, constants = plan.runner(layout, x)
    if kernel is None:
        return None
    if plain and x.is_contiguous():  # little to undo, which takes as long as rounding a small tensor
        lanes = x if x.shape == shape else x.view(*shape)
        result = kernel([aligned(lanes), constants, *(noise or ())])[0]
        return result if lanes is x else result.resize_as_(x)
    lanes = pad(x, blocks.missing) if blocks.ragged else x.contiguous()
    lanes = lanes if lanes.shape == shape else lanes.view(*shape)
    result, *scales = kernel([aligned(lanes), constants, *(noise or ())])
    if blocks.ragged:
        result = result.view(blocks.padded)[tuple(map(slice, x.shape))].contiguous()
    result = _formatted(result, x)
    return (result, scales[0].view(blocks.counts), *scales[1:]) if scales else result


@lru_cache(maxsize=1024)
def _block_layout(plan: Plan, shape: torch.Size) -> tuple[str | None, tuple[int, ...], Tiles, bool]:
    """The kernel layout for blocks, a contiguous tensor's shape in it, the blocks, and whether a view will do."""
    blocks = tiles(tuple(shape), plan.number.block_sizes(len(shape)))
    pattern, merged_shape = merged(blocks.split, blocks.axes)
    plain = not blocks.ragged and not plan.program.codes
    return _BY_PATTERN.get(pattern), merged_shape, blocks, plain


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy of it where a GPU kernel could not load whole vectors."""
    return x.clone() if x.is_cuda and x.data_ptr() % 16 else x


def _shaped(result: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """A fresh contiguous result in x's shape; a view would cost more than twice as much as resizing it."""
    return None if result is None else result.resize_as_(x)


def _formatted(result: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
    """A contiguous result in x's shape, and in the memory format that operations on x keep."""
    result = _shaped(result, x)
    return result if result is None or x.is_contiguous() else laid_out(result, x)


def laid_out(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A fresh result in the memory format that operations on x keep."""
    if result.stride() == x.stride():
        return result
    kept = torch.empty_like(x, dtype=result.dtype)
    return result if result.stride() == kept.stride() else kept.copy_(result)
