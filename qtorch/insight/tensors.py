"""Statistics of tensors."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from qcore import Number
from qcore.arguments import check_type
from qcore.formats.number import check_number
from qcore.formats.text import parse
from qcore.insight.bounds import Range, bounds, check_carrier, range_of
from qcore.insight.law import (
    DIGIT,
    ERROR_FIELDS,
    ERROR_KEYS,
    FIELDS,
    LENGTH,
    NUMBER_KEYS,
    Bounds,
    Effects,
    Packed,
    effects,
    error_weights,
    number_weights,
    to_float32,
)
from qcore.insight.statistics import Statistics, hashes
from qcore.law.rounding import RoundingLike
from qcore.law.tiles import Tiles, tiles
from qtorch._kernels.insight import statistics
from qtorch._kernels.store import Function
from qtorch._namespace import Names
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import Key
from qtorch._rounding.paths.choice import check_device, is_plain_tensor
from qtorch._rounding.paths.operations import pad, to_lanes
from qtorch._rounding.plan import check_dtype, text_of
from qtorch._rounding.sharded import is_sharded

_kept: list[torch.Tensor] = []  # constants, see `_addresses`


def statistics_of(
    x: torch.Tensor,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> Statistics:
    """The statistics of `quantize` with the same arguments; see `qcore.insight.statistics_of`.

    Args:
        x: tensor of any shape, strides and device; float32, float16 or bfloat16. A DTensor is gathered.
        number, rounding, key, random_bits, start, overflow: as for `qtorch.quantize`.

    Returns:
        The statistics; they equal qcore's for the same NumPy array.

    Raises:
        TypeError, ValueError: as for `qtorch.quantize`; also TypeError for float64.

    Example:
        >>> statistics_of(torch.tensor([0.1, 900, 1e-9]), "e4m3fn")
        Statistics (number=e4m3fn, elements=3, underflowed=1, overflowed=1, nan_results=1, sqnr=36.1 dB)
    """
    _check(x, "x")
    x = x.detach()
    y = quantize(x, number, rounding, key=key, random_bits=random_bits, start=start, overflow=overflow)
    number = check_number(number)
    return statistics_between(x, y, number if overflow is None else number.overflowing(overflow))


def statistics_between(x: torch.Tensor, y: torch.Tensor, number: Number | str) -> Statistics:
    """The statistics of a rounding of x to y; see `qcore.insight.statistics_between`.

    Args:
        x: tensor of any shape, strides and device; float32, float16 or bfloat16. A DTensor is gathered.
        y: the rounded x, of the same shape and dtype.
        number: the format, or its text.

    Returns:
        The statistics; they equal qcore's for the same NumPy arrays.

    Raises:
        TypeError: if x is not a tensor of such a dtype, y is not a tensor, or number is neither a format nor text.
        ValueError: if y has another shape or dtype than x, or number is unknown or too wide for x's dtype.

    Example:
        >>> statistics_between(torch.tensor([0.1, 900]), torch.tensor([0.0, 448]), "e4m3fn")
        Statistics (number=e4m3fn, elements=2, underflowed=1, saturated=1, sqnr=6.0 dB)
    """
    number = check_number(number)
    return Statistics(number.text, lanes_between(x, y, number))


def lanes_between(x: torch.Tensor, y: torch.Tensor, number: Number) -> torch.Tensor:
    """The lanes of the statistics of a rounding of x to y, on x's device."""
    _check(x, "x")
    check_type("y", y, torch.Tensor, "a torch.Tensor like x")
    check_dense("y", y)
    if y.dtype != x.dtype or y.shape != x.shape:
        raise ValueError(f"y is {y.dtype}{list(y.shape)}; allowed is x's {x.dtype}{list(x.shape)}")
    check_device("y", y, x.device, "x")
    if is_plain_tensor(x) and is_plain_tensor(y):
        x, y = (one.detach() if one.requires_grad else one for one in (x, y))
        return _lanes(x, y, number, x.is_cpu)
    x, y = (one.detach().full_tensor() if is_sharded(one) else one.detach() for one in (x, y))  # type: ignore[operator]
    if torch.compiler.is_dynamo_compiling():
        return torch.ops.qtorch.statistics(x, y, text_of(number))
    return _lanes(x, y, number, False)


def packed_between(x: torch.Tensor, y: torch.Tensor, number: Number) -> Statistics:
    """The statistics of a rounding of x to y, packed if both are on the CPU; the call does not wait for a GPU."""
    if is_plain_tensor(x) and is_plain_tensor(y) and x.is_cpu and y.is_cpu and x.numel():
        kernel = _flat(number, x.dtype) if (x.dtype, x.shape) == (y.dtype, y.shape) else None
        if kernel is not None and x.is_contiguous() and y.is_contiguous():
            function, addresses = kernel
            places, values = np.empty(LENGTH, np.int16), np.empty(LENGTH, np.int32)
            room = values.ctypes.data, places.ctypes.data
            count = function(x.numel(), x.data_ptr(), y.data_ptr(), *addresses, *room)
            return Statistics(number.text, Packed(places[:count].copy(), values[:count].copy()))  # type: ignore[misc]
    found = Statistics(number.text, lanes_between(x, y, number))
    return found.pack() if found.lanes.is_cpu else found


@lru_cache(maxsize=1024)
def _flat(number: Number, dtype: torch.dtype) -> tuple[Function, list[int]] | None:
    """The kernel of a format without blocks, and the address of its bounds."""
    found = range_of(number, check_carrier(check_dtype(dtype, "x").name))
    function = None if found.program else statistics(found.carrier, False)
    return None if function is None else (function, _addresses(found.constants))


def digest_of(y: torch.Tensor) -> torch.Tensor:
    """The words of a result's digest, on its device."""
    y = y.detach().full_tensor() if is_sharded(y) else y.detach()  # type: ignore[operator]
    lanes = to_lanes(y.contiguous(), check_dtype(y.dtype, "y")).reshape(-1)
    index = torch.arange(lanes.numel(), device=y.device).to(torch.int32)
    return torch.stack([words.sum() for words in hashes(lanes, index)]).to(torch.int32)


def _check(x: Any, name: str) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; allowed is a torch.Tensor")
    check_dense(name, x)
    check_carrier(check_dtype(x.dtype, name).name, name)


def _lanes(x: torch.Tensor, y: torch.Tensor, number: Number, kernel: bool) -> torch.Tensor:
    """The lanes, computed by the kernel if the tensors are in CPU memory."""
    found = range_of(number, check_dtype(x.dtype, "x"))
    sizes = number.tile_sizes(x.dim())
    if x.numel() == 0:
        return torch.zeros(LENGTH, dtype=torch.int32, device=x.device)
    x, y = x.contiguous(), y.contiguous()
    if found.program is None:
        ends: Any = found.constants
    else:
        blocks = tiles(tuple(x.shape) or (1,), sizes or (1,))
        ends = _spread(x, found, blocks)
    if kernel:
        lanes = _by_kernel(x, y, found, ends)
        if lanes is not None:
            return lanes
    before, after = (to_float32(Names, to_lanes(one, found.carrier), found.carrier).reshape(-1) for one in (x, y))
    return _tabulate(effects(Names, before, after, Bounds(*ends)))


def _spread(x: torch.Tensor, found: Range, blocks: Tiles) -> list[torch.Tensor]:
    """The bounds of each element's block, flat."""
    bits = to_lanes(x, found.carrier).reshape(blocks.shape)
    ends = bounds(Names, blocks.split(bits, pad), found, blocks)
    return [blocks.merge(torch.broadcast_to(end, blocks.tiled)).reshape(-1) for end in ends]


def _by_kernel(x: torch.Tensor, y: torch.Tensor, found: Range, ends: Any) -> torch.Tensor | None:
    function = statistics(found.carrier, found.program is not None)
    if function is None:
        return None
    lanes = torch.empty(LENGTH, dtype=torch.int32, device="cpu")
    if found.program is not None:
        ends = [end.contiguous() for end in ends]
        addresses = [end.data_ptr() for end in ends]
    else:
        addresses = _addresses(ends)
    function(x.numel(), x.data_ptr(), y.data_ptr(), *addresses, lanes.data_ptr(), 0)
    return lanes


@cache
def _addresses(ends: tuple[int, ...]) -> list[int]:
    """The address of constants, in memory that stays allocated."""
    constants = torch.tensor(ends, dtype=torch.int32, device="cpu")
    _kept.append(constants)
    return [constants.data_ptr() + 4 * i for i in range(len(ends))]


def _tabulate(found: Effects) -> torch.Tensor:
    """The sums as lanes, operation by operation."""
    flags = [torch.full_like(found.number_key[:1], found.number_key.numel()), *(-flag.sum() for flag in found.flags)]
    errors = _counts(found.error_key, ERROR_FIELDS * ERROR_KEYS)
    errors[0] = 0
    numbers = _sums(_counts(found.number_key, FIELDS * NUMBER_KEYS), number_weights())
    sums = torch.cat([*(flag.reshape(1).long() for flag in flags), numbers, _sums(errors, error_weights())])
    magnitudes = torch.stack([lanes.amax() for lanes in found.magnitudes])
    return torch.cat([sums >> DIGIT, sums & ((1 << DIGIT) - 1), magnitudes]).to(torch.int32)


def _counts(key: torch.Tensor, size: int) -> torch.Tensor:
    ones = torch.ones_like(key, dtype=torch.int64)
    return torch.zeros(size, dtype=torch.int64, device=key.device).index_add_(0, key.long(), ones)


def _sums(counts: torch.Tensor, weights: np.ndarray) -> torch.Tensor:
    """The sums of each field, without a matrix product, which CUDA does not have for integers."""
    return (counts.reshape(-1, len(weights), 1) * torch.from_numpy(weights).to(counts.device)).sum(1).reshape(-1)


def run_statistics(x: torch.Tensor, y: torch.Tensor, number: str) -> torch.Tensor:
    return lanes_between(x, y, parse(number))


def statistics_shape(x: torch.Tensor, y: torch.Tensor, number: str) -> torch.Tensor:
    return x.new_empty(LENGTH, dtype=torch.int32)
