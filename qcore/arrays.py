"""The law on NumPy arrays: the reference that the other packages must equal bit for bit."""

# pyright: reportPrivateUsage=false
# Public classes have parts that rooms read and users need not.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qcore.arguments import check_int, check_seed, check_start, missing_key
from qcore.formats.block import Scales, check_float_scales, check_scales
from qcore.formats.foreign import BytesNumber, NestedNumber
from qcore.formats.names import Encode, EncodeResult
from qcore.formats.number import Number, check_number, prepare
from qcore.law.carrier import CARRIERS, Carrier, check_dtype, check_result_dtype
from qcore.law.program import Decoding
from qcore.law.rounding import RoundingLike, check_rounding, rounds_distance
from qcore.law.tiles import block_counts, tiles
from qcore.namespace import Names
from qcore.packing import check_codes, storage
from qcore.random.threefry import Noise, as_lane, leading_bits_mask, rounding_words

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Key = int | tuple[int, int] | None


def quantize(
    x: np.ndarray,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> np.ndarray:
    """Rounds every element to the nearest, or another, neighbour in a number format.

    Args:
        x: array of any shape; float32, float64, float16 or ml_dtypes.bfloat16. A Python float is a float64 array of
            shape (), NumPy's numbers are arrays of their dtype.
        number: the format, its text (see `parse`), or a dtype, of ml_dtypes too.
        rounding: a name or member of `Rounding`; to nearest, ties to even, by default, as a cast does.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, or two 32-bit words.
        random_bits: the number of random bits that an element's rounding uses, 1 to 24.
        start: the 64-bit index of x's first element, so that a chunk of a larger array gets the bits of that array.
        overflow: the result of numbers beyond the format's range: "saturate", "propagate" (as "saturate",
            but infinities stay), "inf", "nan", or for fixed point "wrap"; None is the format's own policy.

    Returns:
        A new array of x's shape and dtype.

    Raises:
        ValueError: if an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> from qcore import FloatingPoint
        >>> quantize(np.float32([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2))
        array([ 0.125,  0.375, -0.75 ], dtype=float32)
        >>> quantize(np.float32([300, 500]), "e4m3fn", overflow="saturate")
        array([288., 448.], dtype=float32)
    """
    x, carrier = as_array(x)
    lanes = _run(x, carrier, number, rounding, key, random_bits, start, overflow, coded=False)
    if isinstance(lanes, tuple):  # codes, whose scales are quantized, too
        codes, *scales = cast("tuple[np.ndarray, ...]", lanes)
        numbers = decode(codes.reshape(x.shape), number, x.dtype, scales=tuple(scales))
        return np.where(x != x, x, numbers)  # NaN has no code
    return from_lanes(lanes, carrier, x)


def _overloaded(function: Any) -> Encode[np.ndarray, Key, np.ndarray]:
    """The function, with the types of its results by the kind of format."""
    return function


@_overloaded
def encode(
    x: np.ndarray,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> EncodeResult[np.ndarray]:
    """Rounds as `quantize` does, and returns the integer codes of the results: the bits of the format's standard.

    `decode` returns the results of `quantize` from the codes, except where a result has no code: a negative zero
    becomes zero in formats without one (fixed point), NaN becomes the code 0 in formats without NaN, and infinity the
    largest number in formats without infinity.

    Args:
        x, number, rounding, key, random_bits, start, overflow: as for `quantize`.

    Returns:
        An array of x's shape: uint8 for formats of up to 8 bits, uint16 up to 16, uint32 up to 32. Fixed point codes
        are two's complement in the lowest wl bits. For blocks a pair of this array and the codes of the scales: a
        uint8 array (uint16 for scales of more than 8 bits) with one element per block (or sub-block), whose shape is
        x's divided by the block's and rounded up. For `NVFP4`, and other formats with a tensor scale, the second item
        is itself a pair: these codes, and the array's scale, a float32 (for float64 arrays a float64). For blocks with
        scale="float32" the scales are such floats, by which the codes' numbers are multiplied. For `Doubled` a triple:
        codes of the scales, largest magnitudes, a mean. For `GGUF` the bytes of
        its blocks, scales among them, as a uint8 array: its last axis has the bytes of a row.

    Raises:
        ValueError: if an argument is out of range, or the format has no codes, or codes of more than 32 bits.

    Example:
        >>> encode(np.float32([1.0, -1.5, 448]), "e4m3fn")
        array([ 56, 188, 126], dtype=uint8)
    """
    x, carrier = as_array(x)
    lanes = _run(x, carrier, number, rounding, key, random_bits, start, overflow, coded=True)
    number = check_number(number)
    if isinstance(number, BytesNumber):
        return lanes
    found = cast("tuple[np.ndarray, ...]", lanes) if isinstance(lanes, tuple) else (lanes,)
    codes = found[0].astype(f"u{storage(number.bits) // 8}").reshape(x.shape)
    if len(found) == 1:
        return codes
    scales, *array_scale = found[1:]
    return codes, (scales, *array_scale) if array_scale else scales


def decode(
    codes: np.ndarray, number: Number | str, dtype: DTypeLike = np.float32, *, scales: Scales[np.ndarray] | None = None
) -> np.ndarray:
    """The numbers that integer codes stand for, exactly.

    Args:
        codes: integer array of any shape; bits above a code's highest are ignored. For `GGUF` rows of bytes.
        number: the format, or its text (see `parse`).
        dtype: the dtype of the result: float32, float64, float16 or ml_dtypes.bfloat16. It must represent all numbers
            of the format; for blocks all numbers of the element before they are scaled.
        scales: for blocks only: their scales, as `encode` returns them. Floats are converted to float32, for a result
            in float64 to float64.

    Returns:
        An array of codes' shape; for `GGUF` of rows with as many numbers as their blocks have. Codes that stand for no
        number become NaN. Scaled numbers beyond dtype's range become infinity, and those below its smallest step are
        rounded toward zero. With scales in float32 they are rounded as `quantize` rounds them.

    Raises:
        ValueError: if the format has no codes, codes of more than 32 bits, or numbers that dtype cannot represent; if
            scales are missing, not needed, or of the wrong shape.

    Example:
        >>> decode(np.uint8([56, 188, 126, 127]), "e4m3fn")
        array([  1. ,  -1.5, 448. ,   nan], dtype=float32)
    """
    codes, number = check_codes(codes), check_number(number)
    dtype, carrier = check_result_dtype(dtype)
    if isinstance(number, BytesNumber):
        lanes: np.ndarray = number.from_bytes(Names, codes.astype(np.int32), carrier, scales)
        return from_lanes(lanes, carrier, np.empty(lanes.shape, dtype))
    if isinstance(number, NestedNumber):
        seconds, largest, offset = number.check_scales(codes.shape, scales)
        found = number._sums(Names, decode(seconds, number.second, scales=largest), np.asarray(offset, np.float32))
        return decode(codes, number.first, dtype, scales=found)
    decoding, constants = number.decoding(carrier)
    scales, array_scale = check_scales(number, codes.shape, scales)
    if codes.size == 0:
        return np.empty(codes.shape, dtype)
    blocks = tiles(codes.shape or (1,), number.block_sizes(codes.ndim) or (1,))
    lanes = blocks.split(codes.reshape(blocks.shape).astype(_lane(carrier)), _pad)
    if scales is not None:
        scales = blocks.spread(_scale_lanes(scales, decoding, lanes.dtype))
    if array_scale is not None:
        array_scale = np.asarray(array_scale, _float(carrier)).reshape((1,) * lanes.ndim).view(lanes.dtype)
    lanes = blocks.merge(decoding.run(Names, lanes, constants, scales, array_scale))
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
    if mode.stochastic and key_words is None:
        raise missing_key()
    program, constants = prepare(number, mode, carrier, overflow, coded)
    sizes = number.tile_sizes(x.ndim)
    bits = to_lanes(x, carrier)
    if isinstance(number, NestedNumber):
        codes, scales = encode(x, number.first, mode, key=key, random_bits=random_bits, start=start)
        differences, offset = number._differences(Names, scales)
        return codes, *encode(differences, number.second), np.asarray(offset)
    if coded and isinstance(number, BytesNumber):
        return number.to_bytes(Names, bits.reshape(x.shape), carrier)
    if x.size == 0:
        if not (coded and program.shared):
            return bits
        array_scale = [np.ones((), _float(carrier))] if program.has_array_scale else []
        dtype = _float(carrier) if program.float_scales else f"u{program.scale_storage // 8}"
        return bits, np.empty(block_counts(x.shape, sizes), dtype), *array_scale
    word = None
    if mode.stochastic and key_words is not None:
        word = random_words(bits.shape, key_words, start_words, random_bits, rounds_distance(mode))
        word = word.astype(bits.dtype) << (carrier.lane_bits - 32)
    blocks = tiles(bits.shape, sizes or (1,))
    word = None if word is None else blocks.split(word, _pad)
    result: np.ndarray | tuple[np.ndarray, ...]
    lanes = blocks.split(bits, _pad)
    result = program.run(Names, lanes, constants, blocks.axes, word, around=blocks.around)
    if isinstance(result, np.ndarray):
        return blocks.merge(result)
    codes, scales, *array_scale = result
    stored = f"u{program.scale_storage // 8}"
    scales = blocks.collect(scales)
    scales = scales.view(_float(carrier)) if program.float_scales else scales.astype(stored)
    array_scale = [lanes.view(_float(carrier)).reshape(()) for lanes in array_scale]
    return blocks.merge(codes), scales.reshape(blocks.counts[: x.ndim]), *array_scale


def random_words(
    shape: tuple[int, ...], key: tuple[int, int], start: tuple[int, int], random_bits: int, half: bool
) -> np.ndarray:
    """The random words of an array's roundings, int32; see `qcore.random.threefry.rounding_words`."""
    words = (*key, *start, leading_bits_mask(random_bits))
    lanes = [np.full(1, as_lane(word), np.int32) for word in words]  # arrays wrap silently, scalars warn
    return rounding_words(_arange, shape, Noise(lanes[:2], lanes[2:]), half)


def _lane(carrier: Carrier) -> str:
    return f"i{carrier.lane_bits // 8}"


def _float(carrier: Carrier) -> str:
    """The dtype of an array's scale: the float as wide as a lane."""
    return f"f{carrier.lane_bits // 8}"


def _scale_lanes(scales: Any, decoding: Decoding, dtype: Any) -> np.ndarray:
    """The lanes of blocks' scales, which are codes or floats."""
    if decoding.scales != "floats":
        return check_codes(scales, "scales").astype(dtype)
    array = cast("np.ndarray[Any, np.dtype[Any]]", scales)
    check_float_scales(scales, isinstance(scales, np.ndarray) and array.dtype.kind == "f", "NumPy array")
    return array.astype(_float(decoding.carrier)).view(dtype)


def _pad(array: np.ndarray, missing: tuple[int, ...]) -> np.ndarray:
    return np.pad(array, [(0, count) for count in missing])


def _arange(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32)


def as_array(x: Any) -> tuple[np.ndarray, Carrier]:
    """A NumPy array, or a number as one, and its carrier."""
    if isinstance(x, float | np.generic):
        x = np.asarray(x)
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x is a {type(x).__name__}; allowed is a NumPy array or a float, of {', '.join(CARRIERS)}")
    array = cast("np.ndarray[Any, np.dtype[Any]]", x)
    dtype = array.dtype
    if not dtype.isnative:
        raise TypeError(f"x has dtype {dtype.str}; allowed is this machine's byte order: {dtype.newbyteorder().str}")
    return array, check_dtype(dtype.name)


def _stored(carrier: Carrier) -> str:
    return f"i{(1 + carrier.exponent_bits + carrier.mantissa_bits) // 8}"


def to_lanes(x: np.ndarray, carrier: Carrier) -> np.ndarray:
    """The lanes of an array, with at least one dimension."""
    bits = np.ascontiguousarray(x).view(_stored(carrier)).astype(_lane(carrier))
    return bits.reshape(x.shape or (1,)) << carrier.padding


def from_lanes(bits: np.ndarray, carrier: Carrier, like: np.ndarray) -> np.ndarray:
    return (bits >> carrier.padding).astype(_stored(carrier)).view(like.dtype).reshape(like.shape)
