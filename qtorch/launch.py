"""Running kernels on tensors of any shape, strides, memory format and size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

import torch

from qcore import Number, Rounding
from qcore.random import Noise, as_lane
from qcore.sharing import KINDS, Shared, block_grid, shared_scale
from qcore.tiles import Tiles, merged, tiles
from qtorch import kernels
from qtorch.lanes import FLOATS, Names, lane_dtype, pad, to_lanes
from qtorch.plan import Plan, plan_for

KERNEL_LIMIT = 1 << 31  # elements: a kernel's indices have 31 bits
_PIECE = 1 << 25  # elements at a time beyond that
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions
_VECTOR = 16  # numbers
_GROUP = 1 << 12  # elements at most of which indices are kept in the cache
_BY_PATTERN = {kernels.LAYOUTS[name][1]: name for name in ("whole", "rows", "columns", "middle", "bands", "squares")}


def by_kernel(x: torch.Tensor, plan: Plan, noise: Noise | None) -> Any:
    """Rounds an ordinary tensor that has elements; None where there is no kernel for it. See `qtorch.lanes.run`.

    The usual case comes in few steps: between a network's operations nothing of Python's is in the caches.
    """
    if not plan.flat:
        return _by_block(x, plan, noise)
    if plan.usual is not None and x.is_cpu and x.is_contiguous() and x.numel() < KERNEL_LIMIT:
        kernel, constants = plan.usual
        result = torch.empty_like(x)
        kernel(x.numel(), x, constants, *(noise or ()), result)
        return result
    dense = x.is_contiguous() or (noise is None and torch.ops.aten.is_non_overlapping_and_dense(x))
    if not dense and noise is not None and (result := _by_channel(x, plan, noise)) is not None:
        return result
    lanes = x if dense else x.contiguous()  # only random words care about order
    result = _room(lanes, plan)
    if not _round_flat(result, lanes, plan, noise):
        return None
    if plan.memory is not plan.dtype:
        result = result.to(plan.dtype)
    return result if dense else laid_out(result, x)


def _by_channel(x: torch.Tensor, plan: Plan, noise: Noise) -> torch.Tensor | None:
    """Stochastic rounding of what has its channels side by side; None where there is no kernel for it."""
    if plan.layout != "flat" or x.dim() not in _CHANNELS_LAST or x.numel() >= KERNEL_LIMIT:
        return None
    if not x.is_contiguous(memory_format=_CHANNELS_LAST[x.dim()]):
        return None
    examples, channels = x.shape[:2]
    order = _group(channels, x.numel() // (examples * channels), x.device)
    if order is None:
        return None
    device = None if x.is_cpu else x.device
    kernel, constants = plan.runner("channels", device)
    if kernel is None:
        return None
    groups, places, step = order
    result = _room(x, plan)
    kernel(examples, groups, places.numel(), aligned(x) if device else x, constants, *noise, places, step, result)
    return result


@lru_cache(maxsize=256)
def _group(channels: int, positions: int, device: torch.device) -> tuple[int, torch.Tensor, torch.Tensor] | None:
    """How many groups of positions make an example, and what else `indices_in_groups` needs; None where none pay.

    The last vector of a group may be filled in part, and its begin takes as long as a vector; to copy a tensor to and
    fro, as long as to round it.
    """
    costs = {
        (-(-count * channels // _VECTOR) + 1) / (count * channels): count
        for count in range(1, min(positions, _GROUP // channels) + 1)
        if positions % count == 0
    }
    cost = min(costs, default=1.0)
    if cost * _VECTOR > 2:
        return None
    count = costs[cost]
    position, channel = (torch.arange(size, dtype=torch.int32, device="cpu") for size in (count, channels))
    places = (position[:, None] + channel * positions).flatten()
    step = torch.full((1,), count, dtype=torch.int32, device="cpu")
    return positions // count, places.to(device), step.to(device)


def _room(x: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Memory for a result like x; to say of which dtype costs a fifth of a small call's time."""
    if not plan.program.codes:
        return torch.empty_like(x)
    return torch.empty_like(x, dtype=plan.memory if x.is_cpu else plan.dtype)


def _round_flat(target: torch.Tensor, x: torch.Tensor, plan: Plan, noise: Noise | None) -> bool:
    """Whether there is a kernel that writes x, rounded, onto memory of the same layout; if so, it has."""
    size, device = x.numel(), None if x.is_cpu else x.device
    layout = plan.layout_on_gpu if device else plan.layout
    grain = kernels.ROWS.get(layout, 1) if device else 1
    if size % grain or size >= KERNEL_LIMIT:
        return _round_parts(target.as_strided((size,), (1,)), x.as_strided((size,), (1,)), plan, noise, grain)
    kernel, constants = plan.runner(layout, device)
    if kernel is None:
        return False
    kernel(size, aligned(x) if device else x, constants, *(noise or ()), target)
    return True


def _round_parts(target: torch.Tensor, x: torch.Tensor, plan: Plan, noise: Noise | None, grain: int) -> bool:
    """The same of flat tensors that are too large for a kernel, or not of whole rows of so many elements."""
    size, rest = x.numel(), x.numel() % grain
    if size >= KERNEL_LIMIT and plan.program.shared:
        if plan.program.kind == "nvfp4":
            return False
        plan = _grid_of_all(x, plan)
    for begin in range(0, size - rest, _PIECE):
        piece = slice(begin, min(begin + _PIECE, size - rest))
        if not _round_flat(target[piece], x[piece], plan, shifted(noise, begin)):
            return False
    if rest:
        lanes = torch.nn.functional.pad(x[size - rest :], (0, grain - rest))
        rounded = torch.empty_like(lanes, dtype=target.dtype)
        if not _round_flat(rounded, lanes, plan, shifted(noise, size - rest)):
            return False
        target[size - rest :] = rounded[:rest]
    return True


def round_rows(target: torch.Tensor, x: torch.Tensor, number: Number, keys: torch.Tensor, starts: torch.Tensor) -> bool:
    """Whether there is a kernel that rounds rows stochastically, onto others or themselves; if so, it has.

    For keys and starts see `run_keyed`. Autograd does not notice.
    """
    plan = plan_for(number, Rounding.STOCHASTIC, x.dtype, None, False)
    kernel, constants = plan.runner("keyed", None if x.is_cpu else x.device)
    if kernel is None:
        return False
    kernel(x.shape[0], x, constants, keys, starts, target)
    return True


def round_onto(target: torch.Tensor, x: torch.Tensor, number: Number, rounding: Rounding) -> bool:
    """Whether there is a kernel that writes a flat tensor, rounded, onto another or itself; if so, it has.

    Autograd does not notice, but on a GPU for the end of a tensor that is not of whole rows.
    """
    plan = plan_for(number, rounding, x.dtype, None, False)
    return plan.flat and not plan.stochastic and x.numel() > 0 and _round_flat(target, x, plan, None)


def round_each(tensors: Sequence[torch.Tensor], number: Number, rounding: Rounding) -> bool:
    """Whether one call of a kernel rounds contiguous tensors on the CPU, of one dtype, onto themselves; if so, it has.

    Autograd does not notice.
    """
    plan = plan_for(number, rounding, tensors[0].dtype, None, False)
    sizes = list(map(torch.numel, tensors))
    if plan.layout not in kernels.ROWS or plan.stochastic or max(sizes) >= KERNEL_LIMIT:
        return False
    kernel, constants = plan.runner(plan.layout, None)
    if kernel is None:
        return False
    kernel(*chain.from_iterable(zip(sizes, tensors, repeat(constants), tensors, strict=False)))
    return True


def _grid_of_all(x: torch.Tensor, plan: Plan) -> Plan:
    """The grid of a block too large for one call."""
    program, shared = plan.program, Shared(*plan.constants)
    carrier = program.carrier
    found = [shared_scale(Names, to_lanes(x, carrier), carrier, shared, (0,), program.kind) for x in x.split(_PIECE)]
    scales, nans = zip(*found, strict=True)
    nan = None if nans[0] is None else torch.cat(nans).amin()
    grid = block_grid(Names, torch.cat(scales).amax(), nan, carrier, shared, program.kind)
    return Plan(plan.number, replace(program, kind=KINDS[program.kind]), tuple(map(int, grid)), x.dtype)


def shifted(noise: Noise | None, elements: int) -> Noise | None:
    """The noise of what comes so many elements later."""
    if noise is None or elements == 0:
        return noise
    high, low, mask = noise.window.tolist()
    start = ((high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF) + elements
    words = (as_lane(start >> 32 & 0xFFFFFFFF), as_lane(start & 0xFFFFFFFF), mask)
    return Noise(noise.key, torch.tensor(words, dtype=torch.int32, device=noise.window.device))


def _by_block(x: torch.Tensor, plan: Plan, noise: Noise | None) -> Any:
    layout, shape, blocks = _block_layout(plan, x.shape)
    ragged = blocks.ragged
    if layout is None or x.numel() >= KERNEL_LIMIT or (noise and ragged):  # whose words have gaps
        return None
    device = None if x.is_cpu else x.device
    kernel, constants = plan.runner(layout, device)
    if kernel is None:
        return None
    lanes = x.contiguous()
    lanes = pad(lanes, blocks.missing) if ragged else lanes
    result = _room(lanes, plan)
    scales = _room_for_scales(plan, blocks, x.device) if plan.program.codes else ()
    kernel(*shape, aligned(lanes) if device else lanes, constants, *(noise or ()), result, *scales)
    if ragged:
        result = result.view(blocks.padded)[tuple(map(slice, x.shape))].contiguous()
    result = result if lanes is x else laid_out(result.view(x.shape), x)
    return (result, *scales) if scales else result


def _room_for_scales(plan: Plan, blocks: Tiles, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Memory for the codes of the blocks' scales, and for the scale of all where there is one."""
    codes = torch.empty(blocks.counts, dtype=torch.uint8, device=device)
    if plan.program.kind != "nvfp4":
        return (codes,)
    return codes, torch.empty((), dtype=FLOATS[lane_dtype(plan.program.carrier)], device=device)


@lru_cache(maxsize=1024)
def _block_layout(plan: Plan, shape: torch.Size) -> tuple[str | None, tuple[int, ...], Tiles]:
    """The kernel layout for blocks, a contiguous tensor's shape in it, and the blocks."""
    blocks = tiles(tuple(shape), plan.number.block_sizes(len(shape)))
    pattern, merged_shape = merged(blocks.split, blocks.axes)
    return _BY_PATTERN.get(pattern), merged_shape, blocks


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy of it where a GPU kernel could not load whole vectors."""
    return x.clone() if x.is_cuda and x.data_ptr() % 16 else x


def laid_out(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A fresh result in the memory format that operations on x keep."""
    if result.stride() == x.stride():
        return result
    kept = torch.empty_like(x, dtype=result.dtype)
    return result if result.stride() == kept.stride() else kept.copy_(result)
