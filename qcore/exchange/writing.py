"""Weights in the dialects of other programs: encoded by the owner's law, and the tensors that a file has of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from qcore.arguments import check_choice, quoted
from qcore.arrays import as_array, decode, encode
from qcore.exchange.encoded import ONE_127TH, Content, Encoded, Stored
from qcore.exchange.formats.doubled import Doubled, dynamic_map
from qcore.exchange.safetensors import CODED, content_of
from qcore.formats.block import BlockScaled
from qcore.formats.names import NAMED
from qcore.formats.text import parse
from qcore.law.tiles import tiles
from qcore.packing import pack

NF4: Any = NAMED["nf4"][0]
_NAME_OF_FORMAT = {NAMED[name][0].text: dtype for dtype, name in CODED.items()}


def encode_weight(x: np.ndarray, dialect: str) -> Encoded:
    """Encodes a weight as a dialect's own program does; all operations are float32's.

    | dialect | scale of a block with largest magnitude v, A of the whole | element |
    | --- | --- | --- |
    | "ModelOpt NVFP4" | t = A / 2688; s = e4m3(v / (6 t)), 1 for zeros | e2m1(x / (s t)) |
    | "compressed-tensors nvfp4" | g = 2688 / A; s = e4m3(g (v / 6)) | e2m1(x / (s / g)) |
    | "DeepSeek FP8" | tiles of 128 by 128: s = v / 448, 1 for zeros | e4m3fn(x / s) |
    | "compressed-tensors mxfp4", "mxfp6" | 2^k, the exponent of v rounded to the element's bits, less 2 | e2m1, e2m3 |
    | "compressed-tensors mxfp8" | 2^k, the exponent of v rounded to two bits, ties up, less 8 | e4m3fn |
    | "float8" | for each output: s = v / 448, 2^-23 for zeros | e4m3fn(x / s) |
    | "GPT-OSS MXFP4" | the format mxfp4, OCP's rule | e2m1 |
    | "bitsandbytes 4 bits" | the format nf4(block=64) | nf4 |
    | "bitsandbytes 4 bits, double" | the format nf4(block=64,nested=256) | nf4 |
    | "bitsandbytes 8 bits" | for each output: v | the integer nearest to x ((1 / v) 127) |

    Args:
        x: array of floats, whose rows are multiples of the block's size (not so for DeepSeek, float8 and bitsandbytes).
        dialect: a name of the table.

    Returns:
        An `Encoded`, which `save_quantized` writes with the dialect's names.

    Example:
        >>> encode_weight(np.float32([[1] * 16]), "ModelOpt NVFP4").dequantize()[0, :2]
        array([1., 1.], dtype=float32)
    """
    check_choice("dialect", dialect, list(ENCODERS))
    x = as_array(x)[0].astype(np.float32)
    if x.ndim < 2 and dialect == "DeepSeek FP8":
        raise ValueError(f"x has shape {x.shape}; allowed are two axes or more for DeepSeek FP8")
    if x.ndim != 2 and dialect in ("float8", "bitsandbytes 8 bits"):
        raise ValueError(f"x has shape {x.shape}; allowed are two axes for {dialect}")
    size = 32 if "mxfp" in dialect.lower() else 16 if "nvfp4" in dialect.lower() else 1
    if x.ndim == 0 or x.shape[-1] % size:
        raise ValueError(f"x has shape {x.shape}; allowed are rows of a multiple of {size} for {dialect}")
    return ENCODERS[dialect](x)


def _largest(x: np.ndarray, number: BlockScaled) -> np.ndarray:
    """The largest magnitude of each block."""
    blocks = tiles(x.shape, number.block_sizes(x.ndim))
    split = blocks.split(np.abs(x), lambda array, missing: np.pad(array, [(0, count) for count in missing]))
    return split.max(axis=blocks.axes, initial=0).reshape(blocks.counts)


def _spread(scales: np.ndarray, x: np.ndarray, number: BlockScaled) -> np.ndarray:
    """A number for each block as one for each element."""
    for axis, size in enumerate(number.block_sizes(x.ndim)):
        scales = scales if size is None or size == 1 else scales.repeat(size, axis)
    return scales[tuple(map(slice, x.shape))]


_NVFP4: Any = BlockScaled("e2m1fn", {-1: 16}, scale="float32")
_TILES: Any = BlockScaled("e4m3fn", {-2: 128, -1: 128}, scale="float32")
_ROWS: Any = BlockScaled("e4m3fn", {-1: None}, scale="float32")
_INTEGER_ROWS: Any = BlockScaled("int8", {0: 1, ...: None}, scale="float32")


def _modelopt(x: np.ndarray) -> Encoded:
    with np.errstate(all="ignore"):
        whole = np.float32(np.abs(x).max(initial=0) / np.float32(2688))
        block = _largest(x, _NVFP4) / (np.float32(6) * whole)
        block = np.where((block == 0) | (whole == 0), np.float32(1), np.clip(block, np.float32(2**-9), np.float32(448)))
        codes = encode(block, "e4m3fn")
        quotient = x / _spread(decode(codes, "e4m3fn") * whole, x, _NVFP4)
    elements = encode(np.where(x == 0, np.float32(0), quotient) + np.float32(0), "e2m1fn")  # -0.0 has the code of 0.0
    stored = Stored(_scale=Content("F8_E4M3", codes.shape, codes), _scale_2=content_of(np.asarray(whole)))
    return Encoded(elements, parse("nvfp4"), (codes, np.asarray(whole)), None, "ModelOpt NVFP4", stored)


def _compressed_tensors(x: np.ndarray) -> Encoded:
    with np.errstate(all="ignore"):
        whole = np.float32(2688) / np.clip(np.abs(x).max(initial=0), np.finfo(np.float32).tiny, None)
        whole = np.float32(whole if np.isfinite(whole) else 1)
        block = decode(encode(whole * (_largest(x, _NVFP4) / np.float32(6)), "e4m3fn", overflow="saturate"), "e4m3fn")
        codes = encode(np.where(block == 0, np.float32(0.125), block), "e4m3fn")
        scales = decode(codes, "e4m3fn") / whole
        # -0.0 has the code of 0.0, as in the package on CPUs
        elements = encode(np.where(x == 0, np.float32(0), x / _spread(scales, x, _NVFP4)), "e2m1fn")
    stored = Stored(
        _scale=Content("F8_E4M3", codes.shape, codes), _global_scale=content_of(np.asarray(whole).reshape(1))
    )
    return Encoded(elements, _NVFP4, scales, None, "compressed-tensors nvfp4", stored)


def _deepseek(x: np.ndarray) -> Encoded:
    with np.errstate(all="ignore"):
        scales = _largest(x, _TILES) / np.float32(448)
        scales = np.where(scales == 0, np.float32(1), scales)
        codes = encode(x / _spread(scales, x, _TILES), "e4m3fn", overflow="saturate")
    return Encoded(codes, _TILES, scales, None, "DeepSeek FP8", Stored(_scale_inv=content_of(scales)))


def _power_of_two(x: np.ndarray, name: str) -> Encoded:
    """compressed-tensors' MX: the exponent of the largest magnitude plus half a unit of its last kept bit.

    The package keeps one bit for elements of 8 bits, too, as for those of 4.
    """
    number: Any = parse(name)
    element, kept = number.element, {"mxfp6_e2m3": 3}.get(name, 1)
    bits = _largest(x, number).view(np.int32) + (1 << (22 - kept))
    exponents = (bits >> 23) - 127 - element.span[2]
    codes = np.clip(exponents + 127, 0, 254).astype(np.uint8)
    scales = np.ldexp(np.float32(1), codes.astype(np.int32) - 127)
    quotient = x / _spread(scales, x, number)
    if number.bits == 4:  # -0.0 has the code of 0.0, as in the package on CPUs
        quotient = np.where(x == 0, np.float32(0), quotient)
    elements = encode(quotient, element, overflow="saturate")
    dialect = f"compressed-tensors {name[:5]}"
    return Encoded(elements, number, codes, None, dialect, Stored(_scale=content_of(codes)))


def _float8(x: np.ndarray) -> Encoded:
    scales = _largest(x, _ROWS) / np.float32(448)
    scales = np.where(scales == 0, np.float32(2**-23), scales)
    codes = encode(x / scales, "e4m3fn", overflow="saturate")
    return Encoded(codes, _ROWS, scales, None, "float8", Stored(_scale=content_of(scales)))


def _gpt_oss(x: np.ndarray) -> Encoded:
    codes, scales = encode(x, "mxfp4")
    return Encoded(codes, parse("mxfp4"), scales, None, "GPT-OSS MXFP4", Stored(_scales=content_of(scales)))


def _bitsandbytes(x: np.ndarray) -> Encoded:
    number = parse("nf4(block=64)", BlockScaled)
    codes = encode(x, number)[0]
    scales = _largest(x, number)  # 0 for zeros, which the format has no scale for
    return Encoded(codes, number, scales, None, "bitsandbytes 4 bits", _bitsandbytes_state(x, {".absmax": scales}, {}))


def _bitsandbytes_double(x: np.ndarray) -> Encoded:
    number = parse("nf4(block=64,nested=256)", Doubled)
    codes, (seconds, largest, offset) = encode(x, number)
    arrays = {".absmax": seconds, ".nested_absmax": largest}
    arrays[".nested_quant_map"] = np.array(dynamic_map().values, np.float32)
    state = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
    stored = _bitsandbytes_state(x, arrays, state)
    return Encoded(codes, number, (seconds, largest, offset), None, "bitsandbytes 4 bits", stored)


def _bitsandbytes_int8(x: np.ndarray) -> Encoded:
    scales = _largest(x, _INTEGER_ROWS)
    with np.errstate(all="ignore"):
        # torch divides a number by a tensor so: a reciprocal, and a product with it.
        quotient = np.where(scales == 0, np.float32(0), x * (np.float32(1) / scales * np.float32(127)))
    codes = np.rint(quotient).astype(np.int8).view(np.uint8)
    return Encoded(codes, _INTEGER_ROWS, scales, ONE_127TH, "bitsandbytes 8 bits", Stored(SCB=content_of(scales[:, 0])))


def _bitsandbytes_state(x: np.ndarray, arrays: dict[str, np.ndarray], nested: dict[str, Any]) -> Stored:
    """The tensors beside a weight, as its QuantState writes them."""
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(x.shape)} | nested
    arrays[".quant_map"] = np.array(NF4.values, np.float32)
    arrays[".quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode("utf-8"), np.uint8)
    return Stored({role: content_of(array) for role, array in arrays.items()})


ENCODERS: dict[str, Callable[[np.ndarray], Encoded]] = {
    "ModelOpt NVFP4": _modelopt,
    "compressed-tensors nvfp4": _compressed_tensors,
    "compressed-tensors mxfp4": partial(_power_of_two, name="mxfp4"),
    "compressed-tensors mxfp6": partial(_power_of_two, name="mxfp6_e2m3"),
    "compressed-tensors mxfp8": partial(_power_of_two, name="mxfp8_e4m3"),
    "DeepSeek FP8": _deepseek,
    "float8": _float8,
    "GPT-OSS MXFP4": _gpt_oss,
    "bitsandbytes 4 bits": _bitsandbytes,
    "bitsandbytes 4 bits, double": _bitsandbytes_double,
    "bitsandbytes 8 bits": _bitsandbytes_int8,
}


def contents_of(name: str, value: Encoded) -> dict[str, Content]:
    """The tensors that a file has of a weight."""
    if value.dialect not in _WEIGHTS:
        dtype = _NAME_OF_FORMAT.get(value.number.text)
        if value.dialect or dtype is None or value.scales is not None:
            raise ValueError(
                f"{quoted(value.dialect or value.number.text)} is not written here; allowed are the dialects "
                f"{', '.join(_WEIGHTS)}, and codes without scales of {', '.join(_NAME_OF_FORMAT)}"
            )
        codes = value.codes if value.number.bits == 8 else pack(value.codes.reshape(-1), value.number.bits)
        if value.codes.size * value.number.bits % 8:
            raise ValueError(f"codes of shape {value.shape} and {value.number.bits} bits do not fill bytes")
        return {name: Content(dtype, value.shape, codes)}
    role, weight = _WEIGHTS[value.dialect]
    folder = name[: name.rfind(".") + 1]
    stored = value.stored or _scales_of(value)
    others = {(folder if part == "SCB" else name) + part: content for part, content in stored.items()}
    return {name + role: weight(value), **others}


def _scales_of(value: Encoded) -> Stored:
    """The tensors of scales of a weight that was encoded by hand."""
    role, scales = _SCALES.get(value.dialect, ""), value.scales
    if isinstance(scales, np.ndarray) and role:
        return Stored({role: content_of(scales.reshape(-1) if role == "SCB" else scales)})
    if isinstance(scales, tuple) and value.dialect == "ModelOpt NVFP4":
        codes, whole = scales
        return Stored(_scale=Content("F8_E4M3", codes.shape, codes), _scale_2=content_of(np.asarray(whole)))
    raise ValueError(
        f"{quoted(value.dialect)} without tensors of scales; allowed is what encode_weight or load_quantized made"
    )


def _low_bits_first(value: Encoded) -> Content:
    return content_of(pack(value.codes, value.number.bits))


def _gpt_oss_blocks(value: Encoded) -> Content:
    return content_of(pack(value.codes, 4).reshape(*value.shape[:-1], value.shape[-1] // 32, 16))


def _high_nibbles(value: Encoded) -> Content:
    low_first = pack(value.codes.reshape(-1), 4).reshape(-1, 1)
    return content_of(low_first >> 4 | low_first << 4)


def _single_bytes(value: Encoded) -> Content:
    element: Any = value.number.element  # type: ignore[attr-defined]
    return Content(_NAME_OF_FORMAT.get(element.text.removesuffix(":saturate"), "I8"), value.shape, value.codes)


# The role of the weight's own tensor, and what it holds; the other tensors are `Encoded.stored`.
_WEIGHTS: dict[str, tuple[str, Callable[[Encoded], Content]]] = {
    "ModelOpt NVFP4": ("", _low_bits_first),
    "compressed-tensors nvfp4": ("_packed", _low_bits_first),
    "compressed-tensors mxfp4": ("_packed", _low_bits_first),
    "compressed-tensors mxfp6": ("_packed", _low_bits_first),
    "compressed-tensors mxfp8": ("", _single_bytes),
    "GPT-OSS MXFP4": ("_blocks", _gpt_oss_blocks),
    "DeepSeek FP8": ("", _single_bytes),
    "float8": ("", _single_bytes),
    "bitsandbytes 4 bits": ("", _high_nibbles),
    "bitsandbytes 8 bits": ("", _single_bytes),
}

# The role of the scales of the dialects whose files have them as `Encoded.scales` are.
_SCALES = {
    **dict.fromkeys((f"compressed-tensors mxfp{bits}" for bits in (4, 6, 8)), "_scale"),
    "float8": "_scale",
    "GPT-OSS MXFP4": "_scales",
    "DeepSeek FP8": "_scale_inv",
    "bitsandbytes 8 bits": "SCB",
}
