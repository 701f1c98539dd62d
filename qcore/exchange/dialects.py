"""Quantized weights as other programs name them: which tensors of a file belong together, and what they mean.

Each dialect has a function that makes an `Encoded` of the tensors of one weight, and the names of these tensors. Scales
are computed here once, in float32 as the dialect's owner does; numbers then follow by `decode` in any package.

| dialect | tensors of the weight `w` | number |
| --- | --- | --- |
| compressed-tensors nvfp4 | w_packed, w_scale (e4m3), w_global_scale | q * (scale / global_scale) |
| compressed-tensors mxfp4, mxfp6 | w_packed, w_scale (E8M0) | q * 2^(scale - 127) |
| compressed-tensors mxfp8 | w, w_scale (E8M0 as bytes) | q * 2^(scale - 127) |
| compressed-tensors integers in int32 | w_packed, w_scale, w_shape, w_zero_point, w_g_idx | (q - zero) * scale |
| compressed-tensors, ModelOpt: float8, int8 | w, w_scale, w_zero_point | (q - zero) * scale |
| ModelOpt NVFP4 | w, w_scale (e4m3), w_scale_2 | q * (scale * scale_2) |
| DeepSeek FP8 | w, w_scale_inv | q * scale_inv |
| GPT-OSS MXFP4 | w_blocks, w_scales | q * 2^(scale - 127) |
| bitsandbytes 4 bits | w, w.absmax, w.quant_map, w.quant_state.bitsandbytes__nf4 | map[q] * absmax |
| bitsandbytes 8 bits | w, SCB | (q * SCB) * (1 / 127) |
| GPTQ, AWQ | qweight, qzeros, scales, g_idx | (q - zero) * scale |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.arrays import decode
from qcore.exchange.encoded import ONE_127TH, Encoded, Stored
from qcore.exchange.formats.doubled import Doubled
from qcore.exchange.safetensors import CODED, Tensor
from qcore.formats.block import BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.names import NAMED
from qcore.formats.number import Number
from qcore.formats.table import Table
from qcore.formats.text import parse
from qcore.law.tiles import FLAT
from qcore.packing import unpack

_FLOATS = ("F32", "F16", "BF16", "F64")
_BYTE_FLOATS = tuple(name for name in CODED if name.startswith("F8") and name != "F8_E8M0")


class WeightTensors:
    """The tensors of one weight, by their roles; errors name the tensor."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        self.name, self.tensors, self.config = name, tensors, config

    def __contains__(self, role: str) -> bool:
        return role in self.tensors

    def tensor(self, role: str) -> Tensor:
        """A tensor that must be there."""
        if role not in self.tensors:
            raise ValueError(f"weight {quoted(self.name)} has no tensor {quoted(self.name + role)} in the file")
        return self.tensors[role]

    def array(self, role: str, *dtypes: str) -> np.ndarray:
        """A tensor that must have one of these dtypes."""
        tensor = self.tensor(role)
        if tensor.dtype not in dtypes:
            raise ValueError(f"tensor {quoted(tensor.name)} is {tensor.dtype}; allowed are {', '.join(dtypes)}")
        return tensor.array()

    def rows(self, role: str, *dtypes: str) -> np.ndarray:
        """`array`, of two axes or more."""
        if len(self.shape(role)) < 2:
            raise self.wrong(role, f"has shape {self.shape(role)}; allowed are two axes or more")
        return self.array(role, *dtypes)

    def shape(self, role: str) -> tuple[int, ...]:
        return self.tensor(role).shape

    def floats(self, role: str) -> np.ndarray:
        """A tensor of scales in float32, without a loss; codes of float8 and E8M0 are decoded."""
        tensor = self.tensor(role)
        found = self.array(role, *_FLOATS[:3], "F8_E8M0", "F8_E4M3")
        if tensor.dtype in CODED:
            return decode(found, parse(CODED[tensor.dtype]))
        return found.astype(np.float32)

    def demand(self, role: str, *allowed: tuple[int, ...]) -> None:
        """Raises unless a tensor has one of these shapes."""
        if self.shape(role) not in allowed:
            shapes = " or ".join(map(str, dict.fromkeys(allowed)))
            raise self.wrong(role, f"has shape {self.shape(role)}; allowed is {shapes}")

    def wrong(self, role: str, problem: str) -> ValueError:
        return ValueError(f"tensor {quoted(self.tensors[role].name)} {problem}")

    def stored(self, *roles: str) -> Stored:
        """The file's own small tensors, which a writer needs again."""
        return Stored({role: self.tensors[role].content() for role in roles if role in self})


def _blocks_of(
    parts: WeightTensors, role: str, shape: tuple[int, ...]
) -> tuple[dict[Any, int | None], tuple[int, ...]]:
    """The blocks that share a scale, and the shape of the scales with an axis for each of the weight's.

    Scales may be one number, one for each index of the first axis, or have all axes of the weight. Along an axis with
    several scales the size of blocks is the configuration's, which must fit; without one 128 if that fits, or divides
    the axis.
    """
    given = parts.shape(role)
    if prod(given) == 1:
        return {...: None}, (1,) * len(shape)
    if len(given) == 1 and len(shape) > 1 and given[0] == shape[0]:
        given = (*given, *(1,) * (len(shape) - 1))
    if len(given) != len(shape):
        raise parts.wrong(role, f"has shape {given}; allowed are one scale, or scales of {len(shape)} axes for {shape}")
    known = _block_size_of(parts.config)
    block: dict[Any, int | None] = {}
    for axis, (count, length) in enumerate(zip(given, shape, strict=True)):
        wanted = known[axis - len(shape)] if len(known) >= len(shape) - axis else None
        if wanted and count not in (1, -(-length // wanted)):
            raise parts.wrong(
                role, f"has {count} scales along axis {axis} of {length}; the configuration has blocks of {wanted}"
            )
        sizes = [size for size in (wanted, 128) if size] + [length // count if count and length % count == 0 else 0]
        size = None if count == 1 else next((one for one in sizes if one and -(-length // one) == count), 0)
        if size == 0:
            raise parts.wrong(role, f"has {count} scales along axis {axis}; allowed are blocks of {length} elements")
        block[axis - len(shape)] = size
    return block, given


def _block_size_of(config: Mapping[str, Any]) -> list[int]:
    """The sizes of blocks along the last axes that a configuration names."""
    found = config.get("weight_block_size") or config.get("block_structure")
    size = config.get("group_size")
    found = found if isinstance(found, list) else [size]
    return [one if type(one) is int and one > 0 else 0 for one in found]


def _scaled(element: Number, block: Mapping[Any, int | None]) -> BlockScaled:
    return BlockScaled(element, block, scale="float32")


def _with_zeros(
    parts: WeightTensors, values: np.ndarray, zeros: np.ndarray | None, ends: tuple[int, int], block: Any
) -> tuple[np.ndarray, Number]:
    """Codes and format of (q - zero) * scale: the difference is an integer, so it is the code.

    Args:
        values: the integers q, within `ends`.
        zeros: None, or zero points with the shape of the scales.
        ends: the least and the largest q.
        block: the blocks that share a scale.
    """
    low, high = ends
    spread = zeros.astype(np.int64) if zeros is not None and zeros.size else None
    if spread is not None:
        low, high = low - int(spread.max()), high - int(spread.min())
    width = 1 + max(high, -1 - low).bit_length()
    if width > 9:
        raise ValueError(f"zero points of {quoted(parts.name)} give integers from {low} to {high}; allowed are 9 bits")
    if spread is not None:
        spread = spread.astype(np.int16)
        for axis, size in enumerate(_scaled(FixedPoint(8, 0), block).block_sizes(values.ndim)):
            spread = spread if size is None or size == 1 else spread.repeat(size, axis)
        values = values - spread[tuple(map(slice, values.shape))]
    codes = (values.astype(np.int16) & ((1 << width) - 1)).astype(np.uint8 if width <= 8 else np.uint16)
    return codes, _scaled(FixedPoint(width, 0), block)


def _nvfp4_of_compressed_tensors(parts: WeightTensors) -> Encoded:
    packed = parts.rows("_packed", "U8")
    shape = (*packed.shape[:-1], 2 * packed.shape[-1])
    _whole_blocks(parts, "_packed", shape, 16)
    parts.demand("_scale", (*shape[:-1], shape[-1] // 16))
    with np.errstate(all="ignore"):
        scales = parts.floats("_scale") / _scale_of_all(parts, "_global_scale", shape)
    number = _scaled(NAMED["e2m1fn"][0], {-1: 16})
    stored = parts.stored("_scale", "_global_scale")
    return Encoded(unpack(packed, 4, 2 * packed.shape[-1]), number, scales, None, "compressed-tensors nvfp4", stored)


def _scale_of_all(parts: WeightTensors, role: str, shape: tuple[int, ...]) -> np.ndarray:
    """The scale of a whole matrix, shape (), or of each of several, in a shape that broadcasts."""
    outer = shape[:-2]
    parts.demand(role, (), (1,), outer, (*outer, 1), (*outer, 1, 1))
    found = parts.floats(role)
    return found.reshape(()) if found.size == 1 else found.reshape(*outer, 1, 1)


def _whole_blocks(parts: WeightTensors, role: str, shape: tuple[int, ...], size: int) -> None:
    if not shape or shape[-1] % size:
        raise parts.wrong(role, f"has {shape[-1] if shape else 0} elements in a row; allowed are multiples of {size}")


def _mx_of_compressed_tensors(parts: WeightTensors) -> Encoded:
    """Elements of 4 or 6 bits side by side, or of 8, with a power of two for each 32."""
    role = "" if "" in parts else "_packed"
    scales, given = parts.array("_scale", "U8", "F8_E8M0"), parts.rows(role, "U8", "F8_E4M3", "F8_E5M2")
    if scales.ndim == 0 or scales.shape[:-1] != given.shape[:-1] or not scales.size:
        raise parts.wrong("_scale", f"has shape {scales.shape}; allowed are rows as in {given.shape}")
    if role == "":
        _whole_blocks(parts, "", given.shape, 32)
        parts.demand("_scale", (*given.shape[:-1], given.shape[-1] // 32))
        number = parse({"F8_E4M3": "mxfp8_e4m3", "F8_E5M2": "mxfp8_e5m2"}[parts.tensors[""].dtype])
        return Encoded(given, number, scales, None, "compressed-tensors mxfp8", parts.stored("_scale"))
    bits, rest = divmod(given.shape[-1], 4 * scales.shape[-1])
    names = {4: "mxfp4", 6: "mxfp6_e2m3"}
    if rest or bits not in names:
        raise parts.wrong(
            "_scale", f"has {scales.shape[-1]} blocks for {given.shape[-1]} bytes; allowed are 16 or 24 bytes each"
        )
    codes, stored = unpack(given, bits, 32 * scales.shape[-1]), parts.stored("_scale")
    return Encoded(codes, parse(names[bits]), scales, None, f"compressed-tensors {names[bits][:5]}", stored)


def _bits_in_words(parts: WeightTensors, role: str, words: int, length: int) -> int:
    """The width of codes that lie side by side in int32 words: the configuration's, or the only one that fits."""
    given = parts.config.get("num_bits", parts.config.get("bits"))
    fitting = [bits for bits in range(1, 9) if -(-length * bits // 32) == words]
    if type(given) is int and given in fitting:
        return given
    if type(given) is int and "dynamic" not in parts.config:  # GPTQ's exceptions for some layers
        raise parts.wrong(role, f"has {words} words for {length} integers; the configuration has {given} bits each")
    likely = [bits for bits in (4, 8, 2, 3, 5, 6, 7, 1) if bits in fitting]
    if not likely or length * likely[0] < 32:
        raise parts.wrong(
            role, f"has {words} words for {length} integers; allowed are 1 to 8 bits, known from num_bits"
        )
    return likely[0]


def _in_words(parts: WeightTensors, role: str, array: np.ndarray, bits: int, length: int) -> np.ndarray:
    """The unsigned codes of int32 words, along the last axis, the first code in the lowest bits."""
    if array.shape[-1] != -(-length * bits // 32):
        raise parts.wrong(role, f"has {array.shape[-1]} words in a row; allowed are {-(-length * bits // 32)}")
    data = np.ascontiguousarray(array).astype("<i4", copy=False).view(np.uint8)
    return unpack(data[..., : -(-length * bits // 8)], bits, length)


def _packed_integers(parts: WeightTensors) -> Encoded:
    """Integers of compressed-tensors in int32 words: stored with an offset of half their range."""
    packed = parts.rows("_packed", "I32")
    parts.demand("_shape", (packed.ndim,), (2,))
    wanted = parts.array("_shape", "I64", "I32").tolist()
    shape = tuple(wanted) if len(wanted) == packed.ndim else (*packed.shape[:-2], *wanted)
    if shape[:-1] != packed.shape[:-1] or not 0 <= shape[-1] <= 32 * packed.shape[-1]:
        raise parts.wrong("_shape", f"is {wanted}; allowed is a shape that the words of shape {packed.shape} hold")
    bits = _bits_in_words(parts, "_packed", packed.shape[-1], shape[-1])
    half = 1 << (bits - 1)
    values = _in_words(parts, "_packed", packed, bits, shape[-1]).astype(np.int16) - half
    scales, zeros = parts.floats("_scale"), None
    block, counts = _blocks_of(parts, "_scale", shape)
    scales = scales.reshape(counts)
    if "_zero_point" in parts:  # packed along the axis before the last
        rows = parts.rows("_zero_point", "I32", "I8")
        if rows.dtype == np.int32:
            turned = _in_words(parts, "_zero_point", rows.swapaxes(-1, -2), bits, counts[-2])
            rows = turned.swapaxes(-1, -2).astype(np.int16) - half
        if rows.size != prod(counts):
            raise parts.wrong("_zero_point", f"has {rows.size} zero points; allowed are {prod(counts)}, as scales")
        zeros = rows.reshape(counts)
    scales, zeros, block = _reordered(parts, "_g_idx", scales, zeros, block, shape)
    codes, number = _with_zeros(parts, values, zeros, (-half, half - 1), block)
    stored = parts.stored("_scale", "_shape", "_zero_point", "_g_idx")
    return Encoded(codes, number, scales, None, "compressed-tensors integers", stored)


def _reordered(
    parts: WeightTensors, role: str, scales: np.ndarray, zeros: Any, block: Any, shape: tuple[int, ...]
) -> Any:
    """Scales by the group of each column, where groups are not neighbours."""
    if role not in parts:
        return scales, zeros, block
    parts.demand(role, (shape[-1],))
    groups = parts.array(role, "I32", "I64")
    if (groups == -1).all():  # compressed-tensors' mark of groups that are neighbours
        return scales, zeros, block
    if not 0 <= groups.min() <= groups.max() < scales.shape[-1]:
        raise parts.wrong(role, f"has groups {groups.min()} to {groups.max()}; allowed are 0 to {scales.shape[-1] - 1}")
    size = -(-shape[-1] // max(scales.shape[-1], 1))
    if (groups == np.arange(shape[-1]) // max(size, 1)).all():
        return scales, zeros, block
    single = {axis: one for axis, one in block.items() if axis not in (..., -1)}
    return scales[..., groups], None if zeros is None else zeros[..., groups], single


def _bytes_with_scale(parts: WeightTensors) -> Encoded:
    """Floats of 8 bits, or int8, with scales that multiply."""
    codes = parts.array("", "I8", *_BYTE_FLOATS)
    block, counts = _blocks_of(parts, "_scale", codes.shape)
    scales, stored = parts.floats("_scale").reshape(counts), parts.stored("_scale", "_zero_point")
    dtype = parts.tensors[""].dtype
    if dtype == "I8":
        zeros = None
        if "_zero_point" in parts:
            zeros = parts.array("_zero_point", "I8", "I32", "I64")
            if zeros.size != prod(counts):
                raise parts.wrong("_zero_point", f"has {zeros.size} zero points; allowed are {prod(counts)}, as scales")
            zeros = zeros.reshape(counts)
        codes, number = _with_zeros(parts, codes, zeros, (-128, 127), block)
        return Encoded(codes, number, scales, None, "compressed-tensors int8", stored)
    if "_zero_point" in parts and parts.tensors["_zero_point"].array().view(np.uint8).any():
        raise parts.wrong("_zero_point", "is not zero; allowed with floats are zeros")
    return Encoded(codes, _scaled(parse(CODED[dtype]), block), scales, None, "float8", stored)


def _nvfp4_of_modelopt(parts: WeightTensors) -> Encoded:
    packed = parts.rows("", "U8")
    shape = (*packed.shape[:-1], 2 * packed.shape[-1])
    _whole_blocks(parts, "", shape, 16)
    parts.demand("_scale", (*shape[:-1], shape[-1] // 16))
    scales, whole, codes = (
        parts.array("_scale", "F8_E4M3"),
        _scale_of_all(parts, "_scale_2", shape),
        unpack(packed, 4, 2 * packed.shape[-1]),
    )
    stored = parts.stored("_scale", "_scale_2")
    if whole.size == 1:
        return Encoded(codes, parse("nvfp4"), (scales, whole), None, "ModelOpt NVFP4", stored)
    with np.errstate(all="ignore"):
        scales = parts.floats("_scale") * whole
    return Encoded(codes, _scaled(NAMED["e2m1fn"][0], {-1: 16}), scales, None, "ModelOpt NVFP4", stored)


def _fp8_of_deepseek(parts: WeightTensors) -> Encoded:
    codes = parts.array("", *_BYTE_FLOATS)
    block, counts = _blocks_of(parts, "_scale_inv", codes.shape)
    number = _scaled(parse(CODED[parts.tensors[""].dtype]), block)
    scales = parts.floats("_scale_inv").reshape(counts)
    return Encoded(codes, number, scales, None, "DeepSeek FP8", parts.stored("_scale_inv"))


def _mxfp4_of_gpt_oss(parts: WeightTensors) -> Encoded:
    packed = parts.rows("_blocks", "U8")
    if packed.shape[-1] != 16:
        raise parts.wrong("_blocks", f"has shape {packed.shape}; allowed is (..., blocks, 16)")
    parts.demand("_scales", packed.shape[:-1])
    codes = unpack(packed, 4, 32).reshape(*packed.shape[:-2], 32 * packed.shape[-2])
    scales = parts.array("_scales", "U8", "F8_E8M0")
    return Encoded(codes, parse("mxfp4"), scales, None, "GPT-OSS MXFP4", parts.stored("_scales"))


def _four_bits_of_bitsandbytes(parts: WeightTensors) -> Encoded:
    packed = parts.array("", "U8").reshape(-1)
    role = next(role for role in parts.tensors if role.startswith(".quant_state."))
    state = _state_of(parts, role)
    shape, size = tuple(state["shape"]), state["blocksize"]
    count = prod(shape)
    if packed.size != -(-count // 2):
        raise parts.wrong("", f"has {packed.size} bytes; allowed are {-(-count // 2)} for the shape {shape}")
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[:count].reshape(shape)
    blocks = -(-count // size)
    parts.demand(".absmax", (blocks,), (blocks, 1))
    parts.demand(".quant_map", (16,))
    numbers = parts.array(".quant_map", "F32")
    if not np.isfinite(numbers).all() or np.unique(numbers).size < 2:
        raise parts.wrong(".quant_map", "has numbers that are not finite, or one number only; allowed are finite ones")
    known = {"nf4": NAMED["nf4"][0], "fp4": NAMED["fp4_bnb"][0]}.get(state["quant_type"])
    fits = isinstance(known, Table) and (np.asarray(known.values, np.float32) == numbers).all()
    table = known if fits and known is not None else Table(numbers)
    number: Any = BlockScaled(table, {FLAT: size}, "absmax", "float32")
    roles = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", role)
    if ".nested_absmax" in parts:
        number, scales = _nested(parts, state, blocks, number)
    else:
        scales = parts.array(".absmax", "F32").reshape(-1)
    return Encoded(codes, number, scales, None, "bitsandbytes 4 bits", parts.stored(*roles))


def _state_of(parts: WeightTensors, role: str) -> dict[str, Any]:
    """The JSON of a quant_state, whose fields are checked."""
    try:
        state = json.loads(parts.array(role, "U8").tobytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise parts.wrong(role, f"is not JSON in UTF-8: {error}") from error
    if not isinstance(state, dict):
        raise parts.wrong(role, f"is {quoted(state)}; allowed is a dict")
    for field in ("blocksize", "nested_blocksize"):
        if field in state or field == "blocksize":
            size = state.get(field)
            if type(size) is not int or not 0 < size <= 1 << 20:
                raise parts.wrong(role, f"has {field}={quoted(size)}; allowed is an int from 1 to 2^20")
    if state.get("quant_type") not in ("nf4", "fp4"):
        raise parts.wrong(role, f"has quant_type={quoted(state.get('quant_type'))}; allowed are nf4 and fp4")
    shape = state.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > 32
        or not all(type(one) is int and 0 <= one < 1 << 40 for one in shape)
    ):
        raise parts.wrong(role, f"has shape={quoted(shape)}; allowed are up to 32 ints from 0 on")
    return state


def _nested(parts: WeightTensors, state: Mapping[str, Any], blocks: int, first: BlockScaled) -> tuple[Any, Any]:
    """The format and the scales of double quantization: map[code] * nested_absmax + offset, each rounded to float32.

    With bitsandbytes' own map they stay codes, as `Doubled` has them; with another one they are decoded here.
    """
    size: Any = state.get("nested_blocksize")
    offset: Any = state.get("nested_offset")
    if type(size) is not int or type(offset) not in (int, float) or not abs(offset) < 1e39:
        raise parts.wrong(".nested_absmax", "needs nested_blocksize and nested_offset in the quant_state")
    parts.demand(".nested_quant_map", (256,))
    parts.demand(".nested_absmax", (-(-blocks // size),))
    codes, numbers = parts.array(".absmax", "U8").reshape(-1), parts.array(".nested_quant_map", "F32")
    largest, number = parts.array(".nested_absmax", "F32"), Doubled(first, size)
    table: Any = number.second.element
    with np.errstate(all="ignore"):
        if (numbers == np.float32(table.values)).all():
            return number, (codes, largest, np.asarray(np.float32(offset)))
        return first, numbers[codes] * largest.repeat(size)[:blocks] + np.float32(offset)


def _eight_bits_of_bitsandbytes(parts: WeightTensors) -> Encoded:
    values = parts.array("", "I8")
    rows = values.shape[0] if values.ndim == 2 else -1
    parts.demand("SCB", (rows,), (rows, 1))
    number = _scaled(FixedPoint(8, 0), {0: 1, ...: None})
    scales = parts.floats("SCB").reshape(rows, 1)
    return Encoded(values.view(np.uint8), number, scales, ONE_127TH, "bitsandbytes 8 bits", parts.stored("SCB"))


def _gptq_or_awq(parts: WeightTensors) -> Encoded:
    """Integers along the inputs (GPTQ) or the outputs (AWQ) of int32 words; the weight is transposed to (out, in)."""
    for role in ("qweight", "qzeros", "scales"):
        if len(parts.shape(role)) != 2:
            raise parts.wrong(role, f"has shape {parts.shape(role)}; allowed are two axes")
    words, scales = parts.array("qweight", "I32"), parts.floats("scales")
    groups, outputs = scales.shape
    by_inputs = words.shape[1] == outputs  # in GPTQ's the outputs are not packed
    bits = _bits_in_words(parts, "qzeros", parts.shape("qzeros")[1], outputs)
    zeros = parts.array("qzeros", "I32")
    if zeros.shape[0] != groups:
        raise parts.wrong("qzeros", f"has {zeros.shape[0]} groups; allowed are {groups}, as scales")
    zeros = _in_words(parts, "qzeros", zeros, bits, outputs)
    if by_inputs:
        inputs = parts.shape("g_idx")[0] if "g_idx" in parts and parts.shape("g_idx") else words.shape[0] * 32 // bits
        values = _in_words(parts, "qweight", words.T, bits, inputs)
        second = parts.config.get("checkpoint_format") == "gptq_v2"
        zeros, dialect = zeros.astype(np.int16) + (0 if second else 1), "GPTQ"
    else:
        if bits != 4 or outputs % 8:
            raise parts.wrong(
                "qweight", f"has {bits} bits and {outputs} outputs; allowed in AWQ are 4, and multiples of 8"
            )
        place = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])  # of the outputs in a word's nibbles

        def in_order(codes: np.ndarray) -> np.ndarray:
            return codes.reshape(-1, outputs // 8, 8)[..., place].reshape(-1, outputs)

        values, inputs = in_order(_in_words(parts, "qweight", words, bits, outputs)).T, words.shape[0]
        zeros, dialect = in_order(zeros).astype(np.int16), "AWQ"
    if groups == 0 or inputs == 0:
        raise parts.wrong("scales", f"has {groups} groups for {inputs} inputs; allowed is one or more")
    size = parts.config.get("group_size")
    size = size if type(size) is int and size > 0 and -(-inputs // size) == groups else -(-inputs // groups)
    if -(-inputs // size) != groups:
        raise parts.wrong("scales", f"has {groups} groups for {inputs} inputs; allowed are groups of one size")
    block: Any = {-2: 1, -1: min(size, inputs)}
    scales, zeros = np.ascontiguousarray(scales.T), zeros.T
    scales, zeros, block = _reordered(parts, "g_idx", scales, zeros, block, (outputs, inputs))
    codes, number = _with_zeros(parts, values.astype(np.int16), zeros, (0, (1 << bits) - 1), block)
    return Encoded(codes, number, scales, None, dialect, parts.stored("qzeros", "scales", "g_idx"))


class Dialect(NamedTuple):
    """How a dialect's tensors are found.

    Attributes:
        make: from the tensors of a weight to an array.
        dtypes: the allowed dtypes of roles: all of these roles must be there.
        others: roles that may be there.
        apart: roles whose names replace the last part of the weight's name, rather than being appended to it.
        weight: the role by which the weight is found.
    """

    make: Callable[[WeightTensors], Encoded]
    dtypes: Mapping[str, tuple[str, ...]]
    others: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def weight(self) -> str:
        return next(iter(self.dtypes))


_NESTED = (".nested_absmax", ".nested_quant_map")
DIALECTS = (
    Dialect(_nvfp4_of_compressed_tensors, {"_packed": ("U8",), "_scale": ("F8_E4M3",), "_global_scale": ("F32",)}),
    Dialect(_mx_of_compressed_tensors, {"_packed": ("U8",), "_scale": ("U8", "F8_E8M0")}),
    Dialect(_mx_of_compressed_tensors, {"": ("F8_E4M3", "F8_E5M2"), "_scale": ("U8",)}),
    Dialect(
        _packed_integers,
        {"_packed": ("I32",), "_scale": _FLOATS, "_shape": ("I64", "I32")},
        ("_zero_point", "_g_idx"),
    ),
    Dialect(_nvfp4_of_modelopt, {"": ("U8",), "_scale": ("F8_E4M3",), "_scale_2": ("F32",)}),
    Dialect(_fp8_of_deepseek, {"": _BYTE_FLOATS, "_scale_inv": (*_FLOATS, "F8_E8M0")}),
    Dialect(_bytes_with_scale, {"": ("I8", *_BYTE_FLOATS), "_scale": (*_FLOATS, "F8_E8M0")}, ("_zero_point",)),
    Dialect(_mxfp4_of_gpt_oss, {"_blocks": ("U8",), "_scales": ("U8", "F8_E8M0")}),
    Dialect(
        _four_bits_of_bitsandbytes,
        {"": ("U8",), ".absmax": ("F32", "U8"), ".quant_map": ("F32",), ".quant_state.bitsandbytes__nf4": ("U8",)},
        _NESTED,
    ),
    Dialect(
        _four_bits_of_bitsandbytes,
        {"": ("U8",), ".absmax": ("F32", "U8"), ".quant_map": ("F32",), ".quant_state.bitsandbytes__fp4": ("U8",)},
        _NESTED,
    ),
    Dialect(_eight_bits_of_bitsandbytes, {"": ("I8",), "SCB": ("F32", "F16")}, apart=("SCB",)),
    Dialect(
        _gptq_or_awq,
        {"qweight": ("I32",), "qzeros": ("I32",), "scales": ("F16", "F32", "BF16")},
        ("g_idx",),
        ("qweight", "qzeros", "scales", "g_idx"),
    ),
)
