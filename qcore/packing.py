"""Codes of any width side by side in bytes, without gaps."""

from __future__ import annotations

from functools import reduce
from math import lcm
from typing import Any, cast

import numpy as np

from qcore.arguments import check_int, check_size
from qcore.namespace import Names


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs codes along the last axis, the first code in the lowest bits.

    Two 4-bit codes share a byte, the first in its low half, as in torch.float4_e2m1fn_x2; four 6-bit codes take three
    bytes. The last byte is filled up with zeros.

    Args:
        codes: integer array of shape (..., n), at least one dimension; bits above a code's highest are ignored.
        bits: the width of a code, 1 to 32.

    Returns:
        A uint8 array of shape (..., ceil(n * bits / 8)).

    Raises:
        TypeError: if codes is not an array of integers, or bits not an integer.
        ValueError: if bits is out of range, or codes has shape ().

    Example:
        >>> pack(np.uint8([1, 2, 3]), 4)
        array([33,  3], dtype=uint8)
    """
    bits = check_packing(bits, check_codes(codes).shape)
    return pack_lanes(Names, codes.astype(lane_type(bits)), bits).astype(np.uint8)


def unpack(packed: np.ndarray, bits: int, size: int) -> np.ndarray:
    """The inverse of `pack`.

    Args:
        packed: uint8 array of shape (..., ceil(size * bits / 8)).
        bits: the width of a code, 1 to 32.
        size: the number of codes along the last axis.

    Returns:
        An array of shape (..., size), uint8, uint16 or uint32 by the width.

    Raises:
        TypeError: if packed is not an array of integers, or bits or size not an integer.
        ValueError: if bits or size is out of range, or packed does not have the length for them.

    Example:
        >>> unpack(np.uint8([33, 3]), 4, 3)
        array([1, 2, 3], dtype=uint8)
    """
    bits = check_packing(bits, check_codes(packed, "packed").shape, size)
    bytes_ = packed.astype(np.uint8, copy=False).astype(lane_type(bits), copy=False)
    lanes = unpack_lanes(Names, bytes_, bits, size)
    return lanes.astype(f"u{storage(bits) // 8}")


def lane_type(bits: int) -> str:
    """The type of the lanes that `regroup` takes for codes of this width."""
    return "uint8" if bits <= 8 else "int32"


def pack_lanes(xp: Any, lanes: Any, bits: int) -> Any:
    """The bytes of codes in lanes of `lane_type`; bits above the codes are ignored."""
    return regroup(xp, lanes & _mask(bits), bits, 8)


def unpack_lanes(xp: Any, lanes: Any, bits: int, size: int) -> Any:
    """The inverse of `pack_lanes`, of bytes in lanes of `lane_type`."""
    return regroup(xp, lanes, 8, bits)[..., :size]


def regroup(xp: Any, lanes: Any, given: int, wanted: int) -> Any:
    """The bits of numbers of `given` bits as numbers of `wanted` bits, from the lowest on along the last axis.

    Both widths fill `group` bits without a rest. Of 6-bit codes 0, 1, 2, 3 and their bytes a, b, c:

        3 3 3 3 3 3 2 2 | 2 2 2 2 1 1 1 1 | 1 1 0 0 0 0 0 0
               c                b                a

    So the same few shifts serve each group, and take all groups at once. Zeros fill the last number.
    """
    if given == wanted:
        return lanes
    group, size = lcm(given, wanted), lanes.shape[-1]
    count = group // given
    lanes = xp.pad(lanes, [*[(0, 0)] * (lanes.ndim - 1), (0, -size % count)])
    groups = lanes.reshape(*lanes.shape[:-1], lanes.shape[-1] // count, count)
    # Copied once, since each of the shifts below would read every count-th lane, which takes twice the time.
    planes = xp.stack([groups[..., one] for one in range(count)]) if count > 1 else [groups[..., 0]]
    found: list[Any] = []
    for low in range(0, group, wanted):
        touched = range(low // given, -(-(low + wanted) // given))
        parts = [_shifted(planes[one], one * given - low) for one in touched]
        found.append(reduce(lambda a, b: a | b, parts) & _mask(wanted))
    numbers = xp.stack(found, -1).reshape(*lanes.shape[:-1], groups.shape[-2] * len(found))
    return numbers[..., : -(-size * given // wanted)]


def _shifted(lanes: Any, count: int) -> Any:
    """Lanes shifted to the left, for a negative count to the right."""
    return lanes << count if count > 0 else lanes >> -count if count < 0 else lanes


def _mask(bits: int) -> int:
    """The lowest bits of a lane as an int that the lane's type holds."""
    return (1 << bits) - 1 if bits < 32 else -1


def storage(bits: int) -> int:
    """The width of the smallest integers that store codes of this width."""
    return 8 if bits <= 8 else 16 if bits <= 16 else 32


def check_packing(bits: Any, shape: tuple[int, ...], size: Any = None) -> int:
    """Checks the arguments of `pack` and, with a size, of `unpack`."""
    bits = check_int("bits", bits, 1, 32)
    if len(shape) == 0:
        raise ValueError("codes and packed have shape (); allowed is at least one dimension")
    if size is not None and shape[-1] != (length := -(-check_size("size", size, 0) * bits // 8)):
        raise ValueError(f"packed has shape {tuple(shape)}; allowed is (..., {length}) for {size} codes of {bits} bits")
    return bits


def check_codes(codes: Any, name: str = "codes") -> np.ndarray:
    given: object = codes
    array = cast("np.ndarray[Any, np.dtype[Any]]", codes) if isinstance(codes, np.ndarray) else None
    if array is None or array.dtype.kind not in "iu":
        kind = type(given).__name__ if array is None else f"array of {array.dtype}"
        raise TypeError(f"{name} is a {kind}; allowed is a NumPy array of integers")
    return array
