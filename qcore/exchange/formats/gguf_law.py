"""GGUF's blocks: the numbers that their bytes stand for, and the bytes of numbers.

A block is a row of bytes, one in each int32 lane along the last axis; its numbers are float32. `LAYOUTS` has a row for
each type. Names in the layouts are ggml's: q an element's integer, d the block's scale, m and dmin its minimum.

**From bytes to numbers** all products are exact: a scale of 11 bits, times a scale of at most 8 bits, times an integer
of at most 7 bits. So the order of operations makes no difference, nor does a contracted sum. Every NaN is the quiet
one.

**From numbers to bytes** each operation is rounded to float32, in ggml's order. Three things are defined here that are
left to the processor in ggml:

- Numbers below 2^-126 count as 0, and so do scales d below 2^-100: in a file such scales are 0 anyway, so that the
  numbers are the same but for the signs of zeros.
- All numbers of a block with a NaN or an infinity become NaN: d is the code 0x7E00. MXFP4 and NVFP4 have no code for
  NaN; their bytes are 0.
- A last block that is not full is filled up with zeros.

K types find their scales by the searches of `qcore.exchange.formats.gguf_search`.

Source: ggml-common.h and ggml-quants.c of ggml, gguf-py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any, NamedTuple

import numpy as np

from qcore.exchange.formats.gguf_search import descend, fit_line, fit_scale, scaled
from qcore.law.carrier import FLOAT32, Carrier
from qcore.law.float_scale import from_working, to_working

_NAN = FLOAT32.quiet_nan
_HALF_NAN = 0x7E00
_LEAST = 2.0**-100  # of scales
_MOST = (2.0 - 2.0**-23) * 2.0**127  # of float32
_GROUP = float(np.float32(1e-15))  # parts of Q3_K and Q6_K below it are zeros
_IQ4 = -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
_DOUBLED = 0, 1, 2, 3, 4, 6, 8, 12  # twice the magnitudes of e2m1
_MIDDLES = 1, 3, 5, 7, 10, 14, 20  # twice the middles between two of them
_TRITS = (0, 32, 5), (32, 16, 5), (48, 4, 4)  # of TQ1_0: the first byte of a part, its bytes, the trits of each byte


class Layout(NamedTuple):
    """A type of blocks.

    Attributes:
        code: the type's number in files.
        size: numbers of a block.
        width: bytes of a block.
        decode: from lanes of bytes, shape (..., width), to float32 numbers, shape (..., size).
        encode: the inverse for finite float32 numbers; None for types that can only be read.
        scale: the place of d, which is NaN for blocks with a NaN; None for types without a code for NaN.
        most: the largest integer that is multiplied with d; 0 for types that can only be read.
    """

    code: int
    size: int
    width: int
    decode: Callable[[Any, Any], Any]
    encode: Callable[[Any, Any], Any] | None = None
    scale: int | None = None
    most: int = 0


def numbers_of_bytes(xp: Any, rows: Any, type_: str, carrier: Carrier) -> Any:
    """The lanes of the numbers in rows of bytes, int32 lanes whose last axis has whole blocks."""
    layout = LAYOUTS[type_]
    blocks = (rows & 255).reshape(*rows.shape[:-1], rows.shape[-1] // layout.width, layout.width)
    lanes = _to_carrier(xp, _decoded(xp, blocks, layout), carrier)
    return lanes.reshape(*rows.shape[:-1], blocks.shape[-2] * layout.size)


def bytes_of_numbers(xp: Any, lanes: Any, type_: str, carrier: Carrier) -> Any:
    """The bytes, as int32 lanes, of lanes whose last axis has whole blocks."""
    layout = LAYOUTS[type_]
    blocks = lanes.reshape(*lanes.shape[:-1], lanes.shape[-1] // layout.size, layout.size)
    return _encoded(xp, blocks, layout, carrier)[0].reshape(*lanes.shape[:-1], blocks.shape[-2] * layout.width)


def round_blocks(xp: Any, bits: Any, type_: str, carrier: Carrier, axes: tuple[int, ...]) -> Any:
    """The lanes of the numbers that lanes become as bytes; the last axis is a block, or `axes` is empty."""
    layout, blocks = LAYOUTS[type_], bits if axes else bits[..., None]
    length = blocks.shape[-1]
    if length < layout.size:
        blocks = xp.pad(blocks, [(0, 0)] * (len(blocks.shape) - 1) + [(0, layout.size - length)])
    rows, broken = _encoded(xp, blocks, layout, carrier)
    numbers = _to_carrier(xp, xp.where(broken, _NAN, _decoded(xp, rows, layout)), carrier)[..., :length]
    return numbers if axes else numbers[..., 0]


def _decoded(xp: Any, blocks: Any, layout: Layout) -> Any:
    """The bits of float32 numbers."""
    with xp.arithmetic():
        bits = xp.float32_bits(layout.decode(xp, blocks))
        return xp.where((bits & FLOAT32.magnitude_mask) > FLOAT32.infinity, _NAN, bits)


def _encoded(xp: Any, blocks: Any, layout: Layout, carrier: Carrier) -> tuple[Any, Any]:
    """The bytes of blocks, and True for blocks with a NaN or an infinity."""
    assert layout.encode is not None
    magnitude = blocks & carrier.magnitude_mask
    broken = xp.amax(magnitude, axis=(len(blocks.shape) - 1,), keepdims=True) >= carrier.infinity
    found = to_working(xp, magnitude, carrier)
    found = xp.where((found < FLOAT32.hidden) | broken, 0, found | ((blocks >> carrier.last) & FLOAT32.negative))
    with xp.arithmetic():
        rows = layout.encode(xp, xp.float32_from(found))
    unknown = [0] * layout.width
    if layout.scale is not None:
        unknown[layout.scale : layout.scale + 2] = _HALF_NAN & 255, _HALF_NAN >> 8
    return xp.where(broken, xp.constant(unknown, "int32", blocks), rows), broken


def _to_carrier(xp: Any, bits: Any, carrier: Carrier) -> Any:
    """The lanes of float32 numbers with these bits, rounded to a carrier: to nearest, ties to even, saturating."""
    if carrier == FLOAT32:
        return bits
    magnitude = bits & FLOAT32.magnitude_mask
    lanes = from_working(xp, to_working(xp, magnitude, FLOAT32), carrier)
    lanes = xp.where(magnitude < FLOAT32.infinity, lanes, carrier.infinity)
    return xp.where(magnitude > FLOAT32.infinity, carrier.quiet_nan, lanes) | ((bits >> 31) & carrier.negative)


# Parts of a block. Sizes of axes are written out, so that arrays without elements can be reshaped.


def _fields(xp: Any, part: Any, group: int, bits: int) -> Any:
    """Fields of `bits` bits: the lowest ones of `group` bytes, then the next ones of the same bytes, and so on."""
    grouped = part.reshape(*part.shape[:-1], part.shape[-1] // group, 1, group)
    planes = [(grouped >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return xp.concatenate(planes, -2).reshape(*part.shape[:-1], part.shape[-1] * (8 // bits))


def _joined(q: Any, group: int, bits: int) -> Any:
    """The bytes of fields: the inverse of `_fields`."""
    planes = 8 // bits
    grouped = q.reshape(*q.shape[:-1], q.shape[-1] // (planes * group), planes, group)
    found = grouped[..., 0, :]
    for place in range(1, planes):
        found = found | (grouped[..., place, :] << (bits * place))
    return found.reshape(*q.shape[:-1], q.shape[-1] // planes)


def _signed(lanes: Any) -> Any:
    """Bytes as two's complement."""
    return (lanes ^ 128) - 128


def _float(xp: Any, lanes: Any) -> Any:
    return xp.astype(lanes, "float32")


def _half(xp: Any, blocks: Any, place: int) -> Any:
    """The float16 number of two bytes as float32, shape (..., 1)."""
    code = blocks[..., place : place + 1] | (blocks[..., place + 1 : place + 2] << 8)
    magnitude = code & 0x7FFF
    small = xp.float32_bits(_float(xp, magnitude) * 2.0**-24)  # subnormal as float16, normal as float32
    bits = xp.where(magnitude < 0x400, small, (magnitude << 13) + (112 << 23))
    bits = xp.where(magnitude < 0x7C00, bits, (magnitude << 13) + (224 << 23))
    return xp.float32_from(bits | (-(code >> 15) << 31))


def _half_bytes(xp: Any, numbers: Any) -> list[Any]:
    """The two bytes of numbers, shape (..., 1), as float16: to nearest, ties to even; infinity beyond the range."""
    bits = xp.float32_bits(numbers)
    magnitude = bits & FLOAT32.magnitude_mask
    normal = magnitude - (112 << 23)
    normal = (normal + 0xFFF + ((normal >> 13) & 1)) >> 13
    # Bounded before the product, which could be too large for an integer.
    small = xp.astype(xp.rint(xp.minimum(abs(numbers), xp.full_like(numbers, 1.0, "float32")) * 2.0**24), "int32")
    code = xp.clip(xp.where(magnitude < (113 << 23), small, normal), None, 0x7C00)
    return [code & 255, (code >> 8) | ((bits >> 31) & 128)]


def _spread(scales: Any, q: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combines each scale, shape (..., k), with its part of the elements, shape (..., n)."""
    parts = q.reshape(*q.shape[:-1], scales.shape[-1], q.shape[-1] // scales.shape[-1])
    return combine(scales[..., None], parts).reshape(q.shape)


def _times(scales: Any, q: Any) -> Any:
    return _spread(scales, q, lambda scale, part: scale * part)


# From numbers to bytes. Arguments are finite float32 numbers without subnormal numbers; every zero is +0.


def _largest(xp: Any, x: Any) -> tuple[Any, Any]:
    """The largest magnitude of each block, and -1 where the first element that has it is negative, else 0."""
    bits = xp.float32_bits(x)
    magnitude = bits & FLOAT32.magnitude_mask
    most = xp.amax(magnitude, axis=(len(x.shape) - 1,), keepdims=True)
    size = x.shape[-1]
    order = 2 * (size - xp.arange(size, x)) + ((bits >> 31) & 1)
    first = xp.amax(xp.where(magnitude == most, order, 0), axis=(len(x.shape) - 1,), keepdims=True)
    return xp.float32_from(most), -(first & 1)


def _quotient(xp: Any, a: Any, divisor: float) -> Any:
    """A true division, also where a compiler or a GPU would multiply by the reciprocal of a number."""
    return xp.divide(a, xp.full_like(a, divisor, "float32"))


def _scale(xp: Any, d: Any) -> tuple[Any, Any]:
    """A scale, 0 if it is below 2^-100, and its reciprocal, 0 for 0 and where it would be below 2^-126.

    Only scales that are the largest number itself have such reciprocals, see `_trits`.
    """
    d = xp.materialize(d)  # or a compiler would make one division of two
    zero = abs(d) < _LEAST
    one = xp.full_like(d, 1.0, "float32")
    none = zero | (abs(d) > 2.0**126)
    reciprocal = xp.divide(one, xp.where(none, one, d))
    return xp.where(zero, d * 0.0, d), xp.where(none, 0.0, reciprocal)


def _cut(xp: Any, products: Any, half: float, most: int) -> Any:
    """Integers from 0 to `most`: the sums of products and `half`, cut off."""
    sums = xp.rounded(products) + half
    return xp.astype(xp.clip(sums, 0.0, float(most)), "int32")


def _away(xp: Any, products: Any) -> Any:
    """The nearest integers, ties away from zero."""
    products = xp.rounded(products)
    magnitude = abs(products)
    below = xp.floor(magnitude)
    found = xp.astype(below, "int32") + xp.astype(magnitude - below >= 0.5, "int32")
    return xp.where(products < 0, -found, found)


def _row(xp: Any, *parts: Any) -> Any:
    return xp.concatenate(parts, -1)


def _fifth_bits(q: Any) -> Any:
    """The bytes of the fifth bits of elements."""
    return _joined(q >> 4, 1, 1)


def _encode_symmetric(bits: int) -> Callable[[Any, Any], Any]:
    """Q4_0 and Q5_0: the element of the largest magnitude becomes -2^(bits - 1)."""
    middle = 1 << (bits - 1)

    def encode(xp: Any, x: Any) -> Any:
        largest, negative = _largest(xp, x)
        d = xp.where(negative < 0, largest, -largest) * (1.0 / middle)
        d, reciprocal = _scale(xp, d)
        q = _cut(xp, x * reciprocal, middle + 0.5, 2 * middle - 1)
        extra = [_fifth_bits(q)] if bits == 5 else []
        return _row(xp, *_half_bytes(xp, d), *extra, _joined(q & 15, 16, 4))

    return encode


def _encode_with_minimum(bits: int) -> Callable[[Any, Any], Any]:
    """Q4_1 and Q5_1: integers from the least element up."""
    most = (1 << bits) - 1

    def encode(xp: Any, x: Any) -> Any:
        last = (len(x.shape) - 1,)
        least = -xp.greatest(-x, last)
        spread = xp.minimum(xp.greatest(x, last) - least, xp.full_like(least, _MOST, "float32"))
        d, reciprocal = _scale(xp, _quotient(xp, spread, most))
        q = _cut(xp, (x - least) * reciprocal, 0.5, most)
        extra = [_fifth_bits(q)] if bits == 5 else []
        return _row(xp, *_half_bytes(xp, d), *_half_bytes(xp, least), *extra, _joined(q & 15, 16, 4))

    return encode


def _encode_q8_0(xp: Any, x: Any) -> Any:
    d, reciprocal = _scale(xp, _quotient(xp, _largest(xp, x)[0], 127.0))
    return _row(xp, *_half_bytes(xp, d), _away(xp, x * reciprocal) & 255)


def _trits(xp: Any, x: Any) -> tuple[Any, list[Any]]:
    """Elements as 0, 1 and 2, and the bytes of the scale, the largest magnitude."""
    largest = _largest(xp, x)[0]
    d, reciprocal = _scale(xp, largest)
    small = xp.materialize(x * 2.0**-126)  # or a compiler would multiply the two powers of two, which gives 0
    products = xp.where(largest > 2.0**126, small * _subnormal_reciprocal(xp, largest), x * reciprocal)
    return _away(xp, products) + 1, _half_bytes(xp, d)


def _subnormal_reciprocal(xp: Any, d: Any) -> Any:
    """2^126 times the reciprocal of numbers above 2^126, which is rounded to a multiple of 2^-149."""
    d = xp.where(d > 2.0**126, d, 2.0**127)
    found = xp.divide(xp.full_like(d, 2.0**23, "float32"), xp.materialize(d * 2.0**-126))  # in multiples of it
    floor = xp.floor(found)
    # Where the quotient itself was rounded to a half, the remainder says on which side it was. It is a power of two,
    # which wraps around to 0, less the product of twice the quotient and d's significand.
    significand = (xp.float32_bits(d) & 0x7FFFFF) | 0x800000
    rest = -(xp.astype(found + found, "int32") * significand)
    odd = xp.astype(floor, "int32") & 1
    above = xp.where(found - floor == 0.5, rest + odd > 0, found - floor > 0.5)
    return xp.materialize((floor + xp.astype(above, "float32")) * 2.0**-23)


def _encode_tq1_0(xp: Any, x: Any) -> Any:
    trits, scale = _trits(xp, x)
    rows, begin = [], 0
    for _, width, count in _TRITS:
        total = 0
        for place in range(count):
            total = total + trits[..., begin : begin + width] * 3 ** (4 - place)
            begin += width
        rows.append((total * 256 + 242) // 243)
    return _row(xp, *rows, *scale)


def _encode_tq2_0(xp: Any, x: Any) -> Any:
    trits, scale = _trits(xp, x)
    return _row(xp, _joined(trits, 32, 2), *scale)


def _decode_tq1_0(xp: Any, blocks: Any) -> Any:
    parts = [
        ((blocks[..., start : start + width] * 3**place & 255) * 3) >> 8
        for start, width, count in _TRITS
        for place in range(count)
    ]
    return _half(xp, blocks, 52) * _float(xp, xp.concatenate(parts, -1) - 1)


def _decode_q2_k(xp: Any, blocks: Any) -> Any:
    q = _float(xp, _fields(xp, blocks[..., 16:80], 32, 2))
    scales = blocks[..., :16]
    d, least = (_half(xp, blocks, place) * _float(xp, part) for place, part in ((80, scales & 15), (82, scales >> 4)))
    return _spread(least, _times(d, q), lambda one, part: part - one)


def _decode_q3_k(xp: Any, blocks: Any) -> Any:
    low, packed = _fields(xp, blocks[..., 32:96], 32, 2), blocks[..., 96:108]
    q = low - 4 + 4 * _fields(xp, blocks[..., :32], 32, 1)
    scales = _fields(xp, packed[..., :8], 8, 4) | (_fields(xp, packed[..., 8:], 4, 2) << 4)
    return _times(_half(xp, blocks, 108) * _float(xp, scales - 32), _float(xp, q))


def _with_scales_of_6_bits(xp: Any, blocks: Any, q: Any) -> Any:
    """The numbers of Q4_K and Q5_K: 12 bytes have the scales and minima of 8 parts."""
    first, second, third = (blocks[..., place : place + 4] for place in (4, 8, 12))
    scales = xp.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], -1)
    minima = xp.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], -1)
    d, least = (_half(xp, blocks, place) * _float(xp, part) for place, part in ((0, scales), (2, minima)))
    return _spread(least, _times(d, _float(xp, q)), lambda one, part: part - one)


def _decode_q5_k(xp: Any, blocks: Any) -> Any:
    q = _fields(xp, blocks[..., 48:], 32, 4) | (_fields(xp, blocks[..., 16:48], 32, 1) << 4)
    return _with_scales_of_6_bits(xp, blocks, q)


def _decode_q6_k(xp: Any, blocks: Any) -> Any:
    q = _fields(xp, blocks[..., :128], 64, 4) | (_fields(xp, blocks[..., 128:192], 32, 2) << 4)
    scales = _half(xp, blocks, 208) * _float(xp, _signed(blocks[..., 192:208]))
    return _times(scales, _float(xp, q - 32))


def _decode_iq4_xs(xp: Any, blocks: Any) -> Any:
    q = xp.take(_IQ4, _fields(xp, blocks[..., 8:], 16, 4))
    scales = _fields(xp, blocks[..., 4:8], 1, 4) | (_fields(xp, blocks[..., 2:4], 1, 2) << 4)
    return _times(_half(xp, blocks, 0) * _float(xp, scales - 32), _float(xp, q))


def _power_bits(xp: Any, count: Any, exponent: Any) -> Any:
    """The bits of count * 2^(exponent - 129) in float32; counts are from 0 to 24, exponents from 0 to 255."""
    bits = xp.float32_bits(_float(xp, count))
    field = (bits >> 23) + exponent - 129
    normal = (bits & (FLOAT32.hidden - 1)) | (xp.clip(field, 1, 254) << 23)
    subnormal = count << (xp.clip(exponent, None, 2) + 20)  # in units of 2^-149; larger exponents give normal numbers
    found = xp.where(field > 254, FLOAT32.infinity, xp.where(field > 0, normal, subnormal))
    return found & (-count >> 31)


def _doubled(xp: Any, codes: Any) -> Any:
    """Twice the magnitudes of e2m1, the entries of `_DOUBLED`."""
    mantissa = codes & 1
    return xp.where((codes & 7) < 2, mantissa, (mantissa | 2) << (xp.clip((codes >> 1) & 3, 1, None) - 1))


def _decode_mxfp4(xp: Any, blocks: Any) -> Any:
    """By integers, because the least numbers are subnormal."""
    codes, exponent = _fields(xp, blocks[..., 1:], 16, 4), blocks[..., :1]
    bits = _power_bits(xp, 2 * _doubled(xp, codes), exponent)
    return xp.float32_from(bits | (-xp.astype(codes > 8, "int32") << 31))  # the code 8 is +0


# How many of the numbers below a power of two 2^k have a base-2 logarithm that float32 rounds to k, by k + 127.
_ROUNDED_UP = tuple(int(2.0 ** ((abs(k) - (k > 0)).bit_length() - 1) * log(2)) if k else 0 for k in range(-127, 129))


def _encode_mxfp4(xp: Any, x: Any) -> Any:
    bits = xp.float32_bits(x)
    magnitude = bits & FLOAT32.magnitude_mask
    most = xp.amax(magnitude, axis=(len(x.shape) - 1,), keepdims=True)
    # ggml takes floor(log2f(most)), and a logarithm just below an integer is rounded up to it.
    field = (most + xp.take(_ROUNDED_UP, (most >> 23) + 1)) >> 23
    exponent = xp.clip(field - 2, 0, None)
    code = magnitude & 0
    for middle in _MIDDLES:
        code = code + xp.astype(magnitude > _power_bits(xp, (exponent & 0) + middle, exponent), "int32")
    code = code | (xp.astype((bits < 0) & (code > 0), "int32") << 3)  # there is no -0
    return _row(xp, exponent, _joined(code, 16, 4))


def _half_of_ue4m3(xp: Any, codes: Any) -> Any:
    """Half of the numbers with these codes of exponent 4 and mantissa 3; the code 0x7F is 0."""
    field, mantissa = (codes >> 3) & 15, codes & 7
    normal = xp.float32_from(((field + 119) << 23) | (mantissa << 20))
    found = xp.where(field > 0, normal, _float(xp, mantissa) * 2.0**-10)
    return xp.where(codes == 0x7F, 0.0, found)


def _decode_nvfp4(xp: Any, blocks: Any) -> Any:
    codes = _fields(xp, blocks[..., 4:], 8, 4)
    q = _float(xp, _doubled(xp, codes))
    return _times(_half_of_ue4m3(xp, blocks[..., :4]), xp.where(codes > 8, -q, q))


def _encode_nvfp4(xp: Any, x: Any) -> Any:
    parts = x.reshape(*x.shape[:-1], 4, 16)
    scale = _quotient(xp, _largest(xp, parts)[0][..., 0], 6.0)
    bits = xp.float32_bits(scale)
    field = (bits >> 23) - 120
    normal = (field << 3) + ((bits >> 20) & 7) + ((bits >> 19) & 1)  # half a step or more is rounded up
    small = xp.astype(xp.clip(scale, 0.0, 1.0) * 512.0 + 0.5, "int32")
    codes = xp.where(field > 0, xp.where(normal < 120, normal, 0x7E), xp.clip(small, None, 7))
    d, magnitude = _half_of_ue4m3(xp, codes)[..., None], abs(parts)
    # The first of the elements whose distance in float32 is least, as in ggml.
    nearest, found = magnitude, xp.float32_bits(magnitude) & 0
    for code, element in enumerate(_DOUBLED[1:], 1):
        distance = abs(d * float(element) - magnitude)
        found = xp.where(distance < nearest, code, found)
        nearest = xp.minimum(nearest, distance)
    found = found | (xp.astype((parts < 0) & (found > 0), "int32") << 3)
    return _row(xp, codes, _joined(found.reshape(x.shape), 8, 4))


def _encode_q1_0(xp: Any, x: Any) -> Any:
    """Signs, and the mean of the magnitudes, which are added one after the other."""
    total = abs(x[..., :1])
    for place in range(1, x.shape[-1]):
        total = total + abs(x[..., place : place + 1])
    d = _scale(xp, total * (1.0 / x.shape[-1]))[0]
    return _row(xp, *_half_bytes(xp, d), _joined(xp.astype(x >= 0, "int32"), 1, 1))


def _encode_q2_0(xp: Any, x: Any) -> Any:
    trits, scale = _trits(xp, x)
    return _row(xp, *scale, _joined(trits, 1, 2))


def _parts(x: Any, size: int) -> Any:
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _sums_of_squares(xp: Any, x: Any) -> Any:
    """The sums of elements' squares, in ascending order, shape (..., 1)."""
    squares = xp.rounded(x * x)
    total = squares[..., :1]
    for place in range(1, x.shape[-1]):
        total = total + squares[..., place : place + 1]
    return total


def _requantized(xp: Any, shifted: Any, d: Any, found: Any, low: int, high: int) -> Any:
    """Elements in steps of the scales as they are stored; integers of the search where a scale is zero or infinite."""
    usable = (abs(d) > 0) & (abs(shifted) <= _MOST) & (abs(d) <= _MOST)
    steps = xp.rint(xp.divide(xp.where(usable, shifted, 0.0), xp.where(usable, d, 1.0)))
    return xp.where(usable, xp.astype(xp.clip(steps, float(low), float(high)), "int32"), found)


def _levels(xp: Any, values: Any, most: float) -> tuple[Any, Any]:
    """Scales of parts, shape (..., k, 1), in steps of the block's scale, and that scale, shape (..., 1)."""
    # Beside the largest float32 numbers a fit may be infinite.
    values = xp.minimum(values[..., 0], xp.full_like(values[..., 0], _MOST, "float32"))
    top = xp.greatest(values, (len(values.shape) - 1,))
    top = xp.materialize(xp.where(top < _LEAST, 0.0, top))
    some = top > 0
    inverse = xp.divide(xp.full_like(top, most, "float32"), xp.where(some, top, 1.0))
    levels = xp.rint(xp.where(some, inverse, 0.0) * values)
    return xp.astype(xp.clip(levels, 0.0, most), "int32"), _quotient(xp, top, most)


def _encode_with_minima(
    size: int, most: int, steps: float, first: float, tries: int, squares: bool
) -> Callable[[Any, Any], tuple[Any, ...]]:
    """The search of Q2_K, Q4_K and Q5_K: bytes of d and dmin, levels of scales and minima, and the integers."""

    def encode(xp: Any, x: Any) -> tuple[Any, ...]:
        parts = _parts(x, size)
        y, power = scaled(xp, parts)
        weights = abs(y)
        if squares:
            mean = _sums_of_squares(xp, y) * (1.0 / size)
            # In float64, because torch's float32 roots on the CPU may be one step off.
            weights = xp.astype(xp.sqrt(xp.astype(mean, "float64")), "float32") + weights
        fit = fit_line(xp, y, weights, most, first, tries, squares)
        (scales, d), (minima, least) = (_levels(xp, one * power, steps) for one in (fit.scale, fit.minimum))
        d, least = _half_bytes(xp, d), _half_bytes(xp, least)
        stored, lowest = _half(xp, _row(xp, *d), 0), _half(xp, _row(xp, *least), 0)
        stored, lowest = (
            one[..., None] * _float(xp, level)[..., None] for one, level in ((stored, scales), (lowest, minima))
        )
        q = _requantized(xp, parts + lowest, stored, fit.integers, 0, most)
        return d, least, scales, minima, q.reshape(x.shape)

    return encode


_search_q2_k = _encode_with_minima(16, 3, 15.0, -0.5, 16, False)
_search_q4_k = _encode_with_minima(32, 15, 63.0, -1.0, 21, True)
_search_q5_k = _encode_with_minima(32, 31, 63.0, -0.5, 16, True)


def _encode_q2_k(xp: Any, x: Any) -> Any:
    d, least, scales, minima, q = _search_q2_k(xp, x)
    return _row(xp, scales | (minima << 4), _joined(q, 32, 2), *d, *least)


def _packed_scales(xp: Any, scales: Any, minima: Any) -> Any:
    """12 bytes of eight scales and eight minima of 6 bits."""
    low = [one[..., :4] | ((one[..., 4:] >> 4) << 6) for one in (scales, minima)]
    return _row(xp, *low, (scales[..., 4:] & 15) | ((minima[..., 4:] & 15) << 4))


def _encode_q4_k(xp: Any, x: Any) -> Any:
    d, least, scales, minima, q = _search_q4_k(xp, x)
    return _row(xp, *d, *least, _packed_scales(xp, scales, minima), _joined(q, 32, 4))


def _encode_q5_k(xp: Any, x: Any) -> Any:
    d, least, scales, minima, q = _search_q5_k(xp, x)
    packed = _packed_scales(xp, scales, minima)
    return _row(xp, *d, *least, packed, _joined(q >> 4, 32, 1), _joined(q & 15, 32, 4))


def _search_symmetric(
    xp: Any, x: Any, search: Callable[[Any, Any, Any], tuple[Any, Any]], half: int, steps: int
) -> tuple[Any, ...]:
    """The search of Q3_K and Q6_K: the bytes of d, the levels of scales, and the integers from 0 on."""
    parts = _parts(x, 16)
    y, power = scaled(xp, parts)
    magnitude, negative = _largest(xp, y)
    largest = xp.where(negative < 0, -magnitude, magnitude)
    none = _largest(xp, parts)[0] < _GROUP
    scale, integers = search(xp, y, xp.where(none, 1.0, largest))
    scale = xp.where(none, 0.0, scale * power)[..., 0]
    integers = xp.where(none, 0, integers + half)
    top, below = _largest(xp, scale)
    top = xp.materialize(xp.where(below < 0, -top, top))
    some = abs(top) > (0.0 if half == 4 else _GROUP)
    inverse = xp.divide(xp.full_like(top, -float(steps), "float32"), xp.where(some, top, 1.0))
    inverse = xp.materialize(inverse)
    levels = xp.astype(xp.clip(xp.rint(inverse * scale), -float(steps), float(steps - 1)), "int32")
    d = _half_bytes(xp, xp.where(some, xp.divide(xp.full_like(top, 1.0, "float32"), inverse), 0.0))
    levels = xp.where(some, levels, -steps)
    stored = _half(xp, _row(xp, *d), 0)[..., None] * _float(xp, levels)[..., None]
    found = _requantized(xp, parts, stored, integers - half, -half, half - 1) + half
    return d, levels, found.reshape(x.shape), some


def _encode_q3_k(xp: Any, x: Any) -> Any:
    d, levels, q, _ = _search_symmetric(xp, x, descend, 4, 32)
    levels = levels + 32
    packed = _joined(levels & 15, 8, 4), _joined(levels >> 4, 4, 2)
    return _row(xp, _joined(q >> 2, 32, 1), _joined(q & 3, 32, 2), *packed, *d)


def _encode_q6_k(xp: Any, x: Any) -> Any:
    d, levels, q, some = _search_symmetric(xp, x, fit_scale, 32, 128)
    row = _row(xp, _joined(q & 15, 64, 4), _joined(q >> 4, 32, 2), levels & 255, *d)
    return xp.where(some, row, 0)


def _decode_q4_0(xp: Any, blocks: Any) -> Any:
    return _half(xp, blocks, 0) * _float(xp, _fields(xp, blocks[..., 2:], 16, 4) - 8)


def _decode_q5_0(xp: Any, blocks: Any) -> Any:
    q = _fields(xp, blocks[..., 6:], 16, 4) | (_fields(xp, blocks[..., 2:6], 1, 1) << 4)
    return _half(xp, blocks, 0) * _float(xp, q - 16)


def _decode_q4_1(xp: Any, blocks: Any) -> Any:
    return _half(xp, blocks, 0) * _float(xp, _fields(xp, blocks[..., 4:], 16, 4)) + _half(xp, blocks, 2)


def _decode_q5_1(xp: Any, blocks: Any) -> Any:
    q = _fields(xp, blocks[..., 8:], 16, 4) | (_fields(xp, blocks[..., 4:8], 1, 1) << 4)
    return _half(xp, blocks, 0) * _float(xp, q) + _half(xp, blocks, 2)


def _decode_q4_k(xp: Any, blocks: Any) -> Any:
    return _with_scales_of_6_bits(xp, blocks, _fields(xp, blocks[..., 16:], 32, 4))


def _decode_q8_0(xp: Any, blocks: Any) -> Any:
    return _half(xp, blocks, 0) * _float(xp, _signed(blocks[..., 2:]))


def _decode_iq4_nl(xp: Any, blocks: Any) -> Any:
    return _half(xp, blocks, 0) * _float(xp, xp.take(_IQ4, _fields(xp, blocks[..., 2:], 16, 4)))


def _decode_tq2_0(xp: Any, blocks: Any) -> Any:
    return _half(xp, blocks, 64) * _float(xp, _fields(xp, blocks[..., :64], 32, 2) - 1)


def _decode_q1_0(xp: Any, blocks: Any) -> Any:
    return _half(xp, blocks, 0) * _float(xp, 2 * _fields(xp, blocks[..., 2:], 1, 1) - 1)


def _decode_q2_0(xp: Any, blocks: Any) -> Any:
    return _half(xp, blocks, 0) * _float(xp, _fields(xp, blocks[..., 2:], 1, 2) - 1)


LAYOUTS = {
    "q4_0": Layout(2, 32, 18, _decode_q4_0, _encode_symmetric(4), 0, 8),
    "q4_1": Layout(3, 32, 20, _decode_q4_1, _encode_with_minimum(4), 0, 15),
    "q5_0": Layout(6, 32, 22, _decode_q5_0, _encode_symmetric(5), 0, 16),
    "q5_1": Layout(7, 32, 24, _decode_q5_1, _encode_with_minimum(5), 0, 31),
    "q8_0": Layout(8, 32, 34, _decode_q8_0, _encode_q8_0, 0, 127),
    "q2_k": Layout(10, 256, 84, _decode_q2_k, _encode_q2_k, 80, 3),
    "q3_k": Layout(11, 256, 110, _decode_q3_k, _encode_q3_k, 108, 4),
    "q4_k": Layout(12, 256, 144, _decode_q4_k, _encode_q4_k, 0, 15),
    "q5_k": Layout(13, 256, 176, _decode_q5_k, _encode_q5_k, 0, 31),
    "q6_k": Layout(14, 256, 210, _decode_q6_k, _encode_q6_k, 208, 32),
    "iq4_nl": Layout(20, 32, 18, _decode_iq4_nl),
    "iq4_xs": Layout(23, 256, 136, _decode_iq4_xs),
    "tq1_0": Layout(34, 256, 54, _decode_tq1_0, _encode_tq1_0, 52, 1),
    "tq2_0": Layout(35, 256, 66, _decode_tq2_0, _encode_tq2_0, 64, 1),
    "mxfp4": Layout(39, 32, 17, _decode_mxfp4, _encode_mxfp4, most=12),
    "nvfp4": Layout(40, 64, 36, _decode_nvfp4, _encode_nvfp4, most=12),
    "q1_0": Layout(41, 128, 18, _decode_q1_0, _encode_q1_0, 0, 1),
    "q2_0": Layout(42, 64, 18, _decode_q2_0, _encode_q2_0, 0, 1),
}
