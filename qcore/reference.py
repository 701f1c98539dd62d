"""The law on NumPy arrays: the reference that the other packages must equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import codes as law
from qcore.arguments import (
    check_dtype,
    check_int,
    check_result_dtype,
    check_rounding,
    check_seed,
    check_start,
    missing_key,
)
from qcore.block import check_scales
from qcore.carrier import CARRIERS, Carrier
from qcore.lanes import Names
from qcore.named import check_number
from qcore.number import Number
from qcore.packing import check_codes, storage
from qcore.program import decode_blocks, prepare
from qcore.random import Noise, as_lane, leading_bits_mask, rounding_words
from qcore.rounding import Rounding
from qcore.tiles import block_counts, tiles

Key = int | tuple[int, int] | None


def quantize(
    x: np.ndarray,
    number: Number | str,
    rounding: str | Rounding = "stochastic",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> np.ndarray:
    """Rounds every element to the nearest, or another, neighbour in a number format.

    Args:
        x: array of any shape; float32, float64, float16 or ml_dtypes.bfloat16.
        number: the format, or its name (see `NAMED`).
        rounding: a name or member of `Rounding`.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, or two 32-bit words.
        random_bits: how many random bits an element's rounding uses, 1 to 24.
        start: the 64-bit index of x's first element: a chunk of a larger array gets the larger array's bits.
        overflow: what numbers beyond the format's range become: "saturate", "inf", "nan", or for fixed point "wrap";
            None is the format's own policy.

    Returns:
        A new array of x's shape and dtype.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> from qcore import FloatingPoint
        >>> quantize(np.float32([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2), "nearest")
        array([ 0.125,  0.375, -0.75 ], dtype=float32)
        >>> quantize(np.float32([300, 500]), "e4m3fn", "nearest", overflow="saturate")
        array([288., 448.], dtype=float32)
    """
    carrier = check_array(x)
    lanes = _run(x, carrier, number, rounding, key, random_bits, start, overflow, coded=False)
    return from_lanes(lanes, carrier, x)


def encode(
    x: np.ndarray,
    number: Number | str,
    rounding: str | Rounding = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> Any:
    """Rounds as `quantize` does, and returns the integer codes of the results: the bits of the format's standard.

    `decode` gives `quantize`'s results back, save those that have no code: a negative zero in formats that have none
    (fixed point) becomes zero, NaN in formats without NaN the code 0, and infinity in formats without infinity the
    largest number.

    Args:
        x, number, rounding, key, random_bits, start, overflow: as for `quantize`; the rounding is nearest by default.

    Returns:
        An array of x's shape: uint8 for formats of up to 8 bits, uint16 up to 16, uint32 up to 32. Fixed point codes
        are two's complement in the lowest wl bits. For blocks a pair of such an array and the codes of their scales,
        a uint8 array with one element a block: x's shape, divided by the blocks' and rounded up. `NVFP4` has in place
        of these a pair: codes of scales, and the scale of the array, a number (float32, for float64 arrays float64).

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or the format has no codes, or codes of more than 32 bits.

    Example:
        >>> encode(np.float32([1.0, -1.5, 448]), "e4m3fn")
        array([ 56, 188, 126], dtype=uint8)
    """
    carrier = check_array(x)
    lanes = _run(x, carrier, number, rounding, key, random_bits, start, overflow, coded=True)
    codes, *scales = lanes if isinstance(lanes, tuple) else (lanes,)
    codes = codes.astype(f"u{storage(check_number(number).bits) // 8}").reshape(x.shape)
    if not scales:
        return codes
    block, *whole = scales
    return codes, (block.astype(np.uint8), whole[0]) if whole else block.astype(np.uint8)


def decode(codes: np.ndarray, number: Number | str, dtype: Any = np.float32, *, scales: Any = None) -> np.ndarray:
    """The numbers that integer codes stand for, exactly.

    Args:
        codes: integer array of any shape; bits above a code's highest are ignored.
        number: the format, or its name (see `NAMED`).
        dtype: of the result: float32, float64, float16 or ml_dtypes.bfloat16; it must hold all the format's numbers,
            of blocks all of the elements' before they are scaled.
        scales: for blocks, and only for them, their scales as `encode` returns them.

    Returns:
        An array of codes' shape. Codes that stand for no number are NaN. What a scale moves beyond dtype's range is
        infinity, and what it moves below dtype's smallest steps is cut off.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the format has no codes, codes of more than 32 bits, or numbers that are not in dtype; if
            scales are missing, unasked for, or of the wrong shape.

    Example:
        >>> decode(np.uint8([56, 188, 126, 127]), "e4m3fn")
        array([  1. ,  -1.5, 448. ,   nan], dtype=float32)
    """
    codes, number = check_codes(codes), check_number(number)
    dtype, carrier = check_result_dtype(dtype)
    number.check_exact(carrier)
    block, whole = check_scales(number, codes.shape, scales)
    if block is None:
        lanes = law.decode(Names, codes.astype(_lanes(carrier)), carrier, number.codes(carrier))
        return from_lanes(lanes, carrier, np.empty(codes.shape, dtype))
    if codes.size == 0:
        return np.empty(codes.shape, dtype)
    blocks = tiles(codes.shape or (1,), number.block_sizes(codes.ndim) or (1,))
    split = blocks.apart(codes.reshape(blocks.shape).astype(_lanes(carrier)), _pad)
    scale = blocks.spread(check_codes(block, "scales").astype(split.dtype))
    if whole is not None:
        whole = np.asarray(whole, _whole(carrier)).reshape((1,) * split.ndim).view(split.dtype)
    lanes = blocks.together(decode_blocks(Names, split, carrier, number, scale, whole))
    return from_lanes(lanes, carrier, np.empty(codes.shape, dtype))


def _run(
    x: np.ndarray,
    carrier: Carrier,
    number: Any,
    rounding: Any,
    key: Any,
    random_bits: Any,
    start: Any,
    overflow: Any,
    coded: bool,
) -> Any:
    number, mode = check_number(number), check_rounding(rounding)
    random_bits, start_words = check_int("random_bits", random_bits, 1, 24), check_start(start)
    key_words = None if key is None else check_seed(key)
    if mode is Rounding.STOCHASTIC and key_words is None:
        raise missing_key()
    program, constants = prepare(number, mode, carrier, overflow, coded)
    sizes = number.block_sizes(x.ndim)
    bits = to_lanes(x, carrier)
    if x.size == 0:
        if not (coded and program.shared):
            return bits
        none = np.ones((), _whole(carrier))
        return bits, np.empty(block_counts(x.shape, sizes)), *([none] if program.kind == "nvfp4" else [])
    word = None
    if mode is Rounding.STOCHASTIC and key_words is not None:
        words = (*key_words, *start_words, leading_bits_mask(random_bits))
        lanes = [np.full(1, as_lane(word), np.int32) for word in words]  # arrays wrap silently, scalars warn
        word = rounding_words(_arange, bits.shape, Noise(lanes[:2], lanes[2:]), x.size >= 2**31)
        word = word.astype(bits.dtype) << (carrier.lane_bits - 32)
    blocks = tiles(bits.shape, sizes or (1,))
    word = None if word is None else blocks.apart(word, _pad)
    result = program.run(Names, blocks.apart(bits, _pad), constants, blocks.axes, word)
    if not isinstance(result, tuple):
        return blocks.together(result)
    codes, block, *whole = result
    whole = [lanes.view(_whole(carrier)).reshape(()) for lanes in whole]
    return blocks.together(codes), block.reshape(blocks.counts[: x.ndim]), *whole


def _lanes(carrier: Carrier) -> str:
    return f"i{carrier.lane_bits // 8}"


def _whole(carrier: Carrier) -> str:
    """The dtype of a scale that a whole array shares."""
    return f"f{carrier.lane_bits // 8}"


def _pad(array: np.ndarray, missing: tuple[int, ...]) -> np.ndarray:
    return np.pad(array, [(0, count) for count in missing])


def _arange(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32)


def check_array(x: Any) -> Carrier:
    """The carrier of a NumPy array."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x is a {type(x).__name__}; allowed is a NumPy array of {', '.join(CARRIERS)}")
    if not x.dtype.isnative:
        raise TypeError(
            f"x has dtype {x.dtype.str}; allowed is this machine's byte order: {x.dtype.newbyteorder().str}"
        )
    return check_dtype(x.dtype.name)


def _stored(carrier: Carrier) -> str:
    return f"i{(1 + carrier.exponent_bits + carrier.mantissa_bits) // 8}"


def to_lanes(x: np.ndarray, carrier: Carrier) -> np.ndarray:
    """The lanes of an array, with at least one dimension."""
    bits = np.ascontiguousarray(x).view(_stored(carrier)).astype(_lanes(carrier))
    return bits.reshape(x.shape or (1,)) << carrier.padding


def from_lanes(bits: np.ndarray, carrier: Carrier, like: np.ndarray) -> np.ndarray:
    return (bits >> carrier.padding).astype(_stored(carrier)).view(like.dtype).reshape(like.shape)
