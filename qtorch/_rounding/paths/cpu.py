"""Tensors of any shape, strides and memory format as calls of kernels on the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from qcore import Number
from qcore.law.tiles import Matrix, as_matrix, block_counts
from qcore.random.threefry import Noise
from qtorch._kernels import laws
from qtorch._namespace import FLOATS
from qtorch._rounding.paths.operations import lane_dtype, scale_dtype, stored_scales
from qtorch._rounding.plan import Plan, decoder_for

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions
_RUN = 1 << 12  # elements of channels_last tensors that share a table of indices


def round_on_cpu(x: torch.Tensor, plan: Plan, noise: Noise | None) -> Any:
    """Rounds, or encodes, a plain tensor that has elements; None where there is no kernel. See `operations.run`.

    The usual case comes first and in few steps: between a network's operations nothing of Python's is in the caches.
    """
    if not plan.elementwise:
        return _round_blocks(x, plan, noise)
    if not x.is_contiguous():
        return _round_strided(x, plan, noise)
    kernel = plan.kernels["flat"]
    if kernel is None:
        return None
    function, constants = kernel
    result = torch.empty_like(x) if plan.dtype is x.dtype else torch.empty_like(x, dtype=plan.dtype)
    if noise is None:
        function(x.numel(), x.data_ptr(), constants, result.data_ptr())
    else:
        key, window = noise
        function(x.numel(), x.data_ptr(), constants, key.data_ptr(), window.data_ptr(), result.data_ptr())
    return result


def _round_strided(x: torch.Tensor, plan: Plan, noise: Noise | None) -> torch.Tensor | None:
    """Where nothing depends on indices, memory without gaps is rounded as it is."""
    if noise is not None:
        result = _round_places(x, plan, noise)
        if result is not None:
            return result
    elif is_dense(x):
        flat = x.as_strided((x.numel(),), (1,))
        result = round_on_cpu(flat, plan, None)
        return None if result is None else result.as_strided(x.shape, x.stride())
    result = round_on_cpu(x.contiguous(), plan, noise)
    return None if result is None else with_strides_of(x, result)


def _round_places(x: torch.Tensor, plan: Plan, noise: Noise) -> torch.Tensor | None:
    """Stochastic rounding where channels lie side by side in memory: elements' indices come from a table."""
    if x.dim() not in _CHANNELS_LAST or not x.is_contiguous(memory_format=_CHANNELS_LAST[x.dim()]):
        return None
    examples, channels = x.shape[:2]
    positions = x.numel() // (examples * channels)
    if channels * positions >= 2**31 or (kernel := plan.kernels["places"]) is None:
        return None
    count, places = _places(channels, positions)
    runs = positions // count
    sizes = examples * runs, count * channels, 1, 1, runs, count, channels * positions
    result = torch.empty_like(x, dtype=plan.dtype)
    function, constants = kernel
    key, window = noise
    addresses = (one.data_ptr() for one in (key, window, places, result))
    function(*sizes, x.data_ptr(), constants, *addresses)
    return result


@lru_cache(maxsize=256)
def _places(channels: int, positions: int) -> tuple[int, torch.Tensor]:
    """How many positions a run has, and the indices of its elements in their order of memory, less the first one."""
    most = max(1, _RUN // channels)
    count = next(count for count in range(min(most, positions), 0, -1) if positions % count == 0)
    position, channel = (torch.arange(size, dtype=torch.int32, device="cpu") for size in (count, channels))
    return count, (position[:, None] + channel * positions).flatten()


def _round_blocks(x: torch.Tensor, plan: Plan, noise: Noise | None) -> Any:
    matrix, layout = plan.matrices[x.shape]
    if matrix is None or (kernel := plan.kernels[layout]) is None:
        return None
    function, constants = kernel
    lanes = x.contiguous()
    results = [torch.empty_like(lanes, dtype=plan.dtype), *_scales(plan, x)]
    addresses = [] if noise is None else [one.data_ptr() for one in noise]
    addresses += [result.data_ptr() for result in results]
    function(*matrix, lanes.data_ptr(), constants, *addresses)
    result = results[0] if lanes is x else with_strides_of(x, results[0])
    return (result, *results[1:]) if plan.program.codes else result


def _scales(plan: Plan, x: torch.Tensor) -> list[torch.Tensor]:
    """Memory for the blocks' scales, and for the tensor's scale where there is one."""
    if not plan.program.codes:
        return []
    counts = block_counts(tuple(x.shape), plan.number.block_sizes(x.dim()))
    scales = [torch.empty(counts, dtype=scale_dtype(plan.program), device="cpu")]
    if plan.program.kind == "nvfp4":
        scales.append(torch.empty((), dtype=FLOATS[lane_dtype(plan.program.carrier)], device="cpu"))
    return scales


@lru_cache(maxsize=1024)
def _matrix(number: Number, shape: torch.Size) -> Matrix | None:
    return as_matrix(tuple(shape), number.block_sizes(len(shape)))


def decode_on_cpu(
    codes: torch.Tensor, number: Number, dtype: torch.dtype, scales: torch.Tensor | None, scale: torch.Tensor | None
) -> torch.Tensor | None:
    """Decodes a plain tensor that has elements; None where there is no kernel."""
    decoding, constants = decoder_for(number, dtype)
    codes = codes.contiguous()
    storage, result = str(codes.dtype).removeprefix("torch."), torch.empty_like(codes, dtype=dtype)
    if scales is None:
        function, sizes, others = laws.decoding(decoding, storage, "flat"), (codes.numel(),), []
    elif (matrix := _matrix(number, codes.shape)) is None:
        return None
    else:
        function, sizes = laws.decoding(decoding, storage, laws.layout_of(matrix)), matrix
        others = [aligned(stored_scales(scales, decoding).contiguous()), *([] if scale is None else [aligned(scale)])]
    if function is None:
        return None
    function(*sizes, codes.data_ptr(), constants.data_ptr(), *(one.data_ptr() for one in others), result.data_ptr())
    return result


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy at an address where a kernel may read it; `torch.frombuffer` takes any offset."""
    return x.clone() if x.data_ptr() % x.element_size() else x


def is_dense(x: torch.Tensor) -> bool:
    """True if x's elements lie in memory without gaps, in any order: results of operations on x have its strides."""
    return torch.empty_like(x, device="meta").stride() == x.stride()


def with_strides_of(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A fresh result in the memory format that operations on x keep."""
    if result.stride() == x.stride():
        return result
    kept = torch.empty_like(x, dtype=result.dtype)
    return result if result.stride() == kept.stride() else kept.copy_(result)
