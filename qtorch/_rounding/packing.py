"""Codes of any width side by side in bytes, as tensors."""

from __future__ import annotations

from typing import Any

import torch

from qcore.packing import check_packing, lane_type, pack_lanes, storage, unpack_lanes
from qtorch import _exported as exported
from qtorch._namespace import Names
from qtorch._rounding.dense import check_dense
from qtorch._rounding.paths.operations import to_codes


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs codes along the last axis, the first code in the lowest bits; see `qcore.pack`.

    Args:
        codes: integer tensor of shape (..., n), at least one dimension; bits above a code's highest are ignored.
        bits: the width of a code, 1 to 32.

    Returns:
        A uint8 tensor of shape (..., ceil(n * bits / 8)). `pack(encode(x, "e2m1fn"), 4).view(torch.float4_e2m1fn_x2)`
        is a tensor of torch's own dtype.

    Raises:
        TypeError: if codes is not a tensor of integers, or bits is not an integer.
        ValueError: if bits is out of range, or codes has no dimension.

    Example:
        >>> pack(torch.tensor([1, 2, 3], dtype=torch.uint8), 4)
        tensor([33,  3], dtype=torch.uint8)
    """
    bits = check_packing(bits, check_codes(codes).shape)
    return pack_lanes(Names, codes.to(_lane_dtype(bits)), bits).to(torch.uint8)


def unpack(packed: torch.Tensor, bits: int, size: int) -> torch.Tensor:
    """The inverse of `pack`; see `qcore.unpack`.

    Args:
        packed: uint8 tensor of shape (..., ceil(size * bits / 8)).
        bits: the width of a code, 1 to 32.
        size: the number of codes along the last axis.

    Returns:
        A tensor of shape (..., size), uint8, uint16 or uint32 by the width.

    Raises:
        TypeError: if packed is not a tensor of integers, or bits or size is not an integer.
        ValueError: if bits or size is out of range, or packed does not have the length for them.

    Example:
        >>> unpack(torch.tensor([33, 3], dtype=torch.uint8), 4, 3)
        tensor([1, 2, 3], dtype=torch.uint8)
    """
    bits = check_packing(bits, check_codes(packed, "packed").shape, size)
    if exported.is_wanted():
        return exported.unpacked(packed, bits, size, getattr(torch, f"uint{storage(bits)}"))
    lanes = unpack_lanes(Names, packed.to(torch.uint8).to(_lane_dtype(bits)), bits, size)
    # Never a view: codes of 8 bits would be the bytes themselves, others perhaps a part of the last group.
    return to_codes(lanes.clone(memory_format=torch.contiguous_format), storage(bits))


def _lane_dtype(bits: int) -> torch.dtype:
    return getattr(torch, lane_type(bits))


_INTEGERS = {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}


def check_codes(codes: Any, name: str = "codes") -> torch.Tensor:
    if not isinstance(codes, torch.Tensor) or codes.dtype not in _INTEGERS:
        kind = f"tensor of {codes.dtype}" if isinstance(codes, torch.Tensor) else type(codes).__name__
        raise TypeError(f"{name} is a {kind}; allowed is a torch.Tensor of integers of 8 to 64 bits")
    check_dense(name, codes)
    return codes
