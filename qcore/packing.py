"""Codes of any width side by side in bytes, without gaps."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from qcore.arguments import check_int


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
    return pack_lanes(np, codes.astype(np.int32), bits, np.arange(32, dtype=np.int32)).astype(np.uint8)


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
    lanes = unpack_lanes(packed.astype(np.int32), bits, size, np.arange(32, dtype=np.int32))
    return lanes.astype(f"u{storage(bits) // 8}")


def pack_lanes(xp: Any, lanes: Any, bits: int, positions: Any) -> Any:
    """The bytes of int32 lanes' codes; `positions` is the int32 array 0, 1, ..., 31."""
    stream = _spread(lanes, bits, positions)
    missing = -stream.shape[-1] % 8
    if missing:
        zeros = (stream[..., :1] & 0) + (positions[:missing] & 0)
        stream = xp.concatenate([stream, zeros], -1)
    return _collect(stream, 8, positions)


def unpack_lanes(lanes: Any, bits: int, size: int, positions: Any) -> Any:
    """The inverse of `pack_lanes`."""
    return _collect(_spread(lanes, 8, positions)[..., : size * bits], bits, positions)


def _spread(lanes: Any, width: int, positions: Any) -> Any:
    """The lowest `width` bits of all lanes, one after the other."""
    planes = (lanes[..., None] >> positions[:width]) & 1
    return planes.reshape(*lanes.shape[:-1], lanes.shape[-1] * width)


def _collect(stream: Any, width: int, positions: Any) -> Any:
    """The inverse of `_spread`."""
    planes = stream.reshape(*stream.shape[:-1], stream.shape[-1] // width, width)
    return (planes << positions[:width]).sum(-1)


def storage(bits: int) -> int:
    """The width of the smallest integers that store codes of this width."""
    return 8 if bits <= 8 else 16 if bits <= 16 else 32


def check_packing(bits: Any, shape: tuple[int, ...], size: Any = None) -> int:
    """Checks the arguments of `pack` and, with a size, of `unpack`."""
    bits = check_int("bits", bits, 1, 32)
    if len(shape) == 0:
        raise ValueError("codes and packed have shape (); allowed is at least one dimension")
    if size is not None and shape[-1] != (length := -(-check_int("size", size, 0) * bits // 8)):
        raise ValueError(f"packed has shape {tuple(shape)}; allowed is (..., {length}) for {size} codes of {bits} bits")
    return bits


def check_codes(codes: Any, name: str = "codes") -> np.ndarray:
    given: object = codes
    array = cast("np.ndarray[Any, np.dtype[Any]]", codes) if isinstance(codes, np.ndarray) else None
    if array is None or array.dtype.kind not in "iu":
        kind = type(given).__name__ if array is None else f"array of {array.dtype}"
        raise TypeError(f"{name} is a {kind}; allowed is a NumPy array of integers")
    return array
