"""Files of quantized weights, written by hand from the descriptions of their dialects, and the numbers that they mean.

Nothing here imports the library. Each function of `CASES` returns tensors by name, (dtype of the file, array), and the
float32 numbers of the weight "x.weight" (GPT-OSS: "x").
"""

import json

import ml_dtypes
import numpy as np
import torch

E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NF4 = np.float32(
    [
        -1,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1,
    ]
)


def write(path, tensors, metadata=None):
    """A safetensors file of (dtype, array) by name; an array of bytes may come with the shape of the tensor."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, array, *shape) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        shape = list(shape[0]) if shape else list(array.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def e4m3(codes):
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def e8m0(codes):
    return codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def low_first(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def some(rng, *shape, most=256):
    return rng.integers(0, most, shape).astype(np.uint8)


def finite_e4m3(rng, *shape):
    return some(rng, *shape, most=127)  # neither NaN nor negative


def modelopt_nvfp4(rng):
    packed, scale, whole = some(rng, 5, 16), finite_e4m3(rng, 5, 2), np.float32(rng.uniform(1e-4, 1))
    numbers = E2M1[low_first(packed)] * (e4m3(scale) * whole).repeat(16, 1)
    return {
        "x.weight": ("U8", packed),
        "x.weight_scale": ("F8_E4M3", scale),
        "x.weight_scale_2": ("F32", np.float32(whole)),
        "x.input_scale": ("F32", np.float32(3)),
    }, numbers


def modelopt_experts(rng):
    packed, scale = some(rng, 3, 2, 16), finite_e4m3(rng, 3, 2, 2)
    whole = rng.uniform(1e-4, 1, 3).astype(np.float32)
    numbers = E2M1[low_first(packed)] * (e4m3(scale) * whole[:, None, None]).repeat(16, 2)
    return {
        "x.weight": ("U8", packed),
        "x.weight_scale": ("F8_E4M3", scale),
        "x.weight_scale_2": ("F32", whole),
    }, numbers


def compressed_nvfp4(rng):
    packed, scale, whole = some(rng, 5, 16), finite_e4m3(rng, 5, 2), rng.uniform(1, 1e5, 1).astype(np.float32)
    numbers = E2M1[low_first(packed)] * (e4m3(scale) / whole).repeat(16, 1)
    return {
        "x.weight_packed": ("U8", packed),
        "x.weight_scale": ("F8_E4M3", scale),
        "x.weight_global_scale": ("F32", whole),
    }, numbers


def compressed_mxfp4(rng):
    packed, scale = some(rng, 5, 32), some(rng, 5, 2)
    with np.errstate(all="ignore"):
        numbers = E2M1[low_first(packed)] * e8m0(scale).repeat(32, 1)
    return {"x.weight_packed": ("U8", packed), "x.weight_scale": ("U8", scale)}, numbers


def compressed_mxfp6(rng):
    codes, scale = some(rng, 5, 64, most=64), some(rng, 5, 2, most=250)
    stream = (codes[..., None] >> np.arange(6) & 1).astype(np.uint8).reshape(5, -1)
    numbers = codes.view(ml_dtypes.float6_e2m3fn).astype(np.float32) * e8m0(scale).repeat(32, 1)
    packed = np.packbits(stream, axis=-1, bitorder="little")
    return {"x.weight_packed": ("U8", packed), "x.weight_scale": ("U8", scale)}, numbers


def compressed_mxfp8(rng):
    codes, scale = finite_e4m3(rng, 5, 64), some(rng, 5, 2, most=240)
    return {"x.weight": ("F8_E4M3", codes), "x.weight_scale": ("U8", scale)}, e4m3(codes) * e8m0(scale).repeat(32, 1)


def gpt_oss(rng):
    packed, scale = some(rng, 2, 3, 2, 16), some(rng, 2, 3, 2, most=250)
    numbers = (E2M1[low_first(packed)] * e8m0(scale)[..., None]).reshape(2, 3, 64)
    return {"x_blocks": ("U8", packed), "x_scales": ("U8", scale)}, numbers


def deepseek(rng):
    codes, scale = finite_e4m3(rng, 130, 260), rng.uniform(1e-3, 1, (2, 3)).astype(np.float32)
    numbers = e4m3(codes) * scale.repeat(128, 0).repeat(128, 1)[:130, :260]
    return {"x.weight": ("F8_E4M3", codes), "x.weight_scale_inv": ("F32", scale)}, numbers


def float8_tensor(rng):
    codes, scale = some(rng, 4, 6, most=120), np.float32(rng.uniform(1e-3, 1))
    numbers = codes.view(ml_dtypes.float8_e5m2).astype(np.float32) * scale
    return {"x.weight": ("F8_E5M2", codes), "x.weight_scale": ("F32", scale)}, numbers


def float8_channels(rng):
    codes, scale = finite_e4m3(rng, 4, 6), rng.uniform(1e-3, 1, (4, 1)).astype(ml_dtypes.bfloat16)
    return {"x.weight": ("F8_E4M3", codes), "x.weight_scale": ("BF16", scale)}, e4m3(codes) * scale.astype(np.float32)


def int8_channels(rng):
    codes, scale = rng.integers(-128, 128, (4, 6)).astype(np.int8), rng.uniform(1e-3, 1, 4).astype(np.float32)
    return {"x.weight": ("I8", codes), "x.weight_scale": ("F32", scale)}, codes.astype(np.float32) * scale[:, None]


def in_words(codes, bits):
    """Unsigned codes side by side in int32 words along the last axis, the first in the lowest bits."""
    words = np.zeros((codes.shape[0], -(-codes.shape[1] * bits // 32)), object)
    for (row, column), code in np.ndenumerate(codes):
        word, shift = divmod(column * bits, 32)
        words[row, word] |= (int(code) << shift) & 0xFFFFFFFF
        if shift + bits > 32:
            words[row, word + 1] |= int(code) >> (32 - shift)
    return words.astype(np.uint32).view(np.int32)


def packed_integers(rng, bits=4, zeros=False, shuffled=False):
    half, groups = 1 << (bits - 1), 3
    q, scale = rng.integers(-half, half, (8, 96)), rng.uniform(1e-3, 1, (8, groups)).astype(np.float16)
    zero = rng.integers(-half, half, (8, groups)) if zeros else np.zeros((8, groups), int)
    group = rng.permutation(96) // 32 if shuffled else np.arange(96) // 32
    numbers = (q - zero[:, group]).astype(np.float32) * scale.astype(np.float32)[:, group]
    tensors = {
        "x.weight_packed": ("I32", in_words(q + half, bits)),
        "x.weight_scale": ("F16", scale),
        "x.weight_shape": ("I64", np.int64([8, 96])),
    }
    if zeros:  # packed along the outputs: rows of words
        tensors["x.weight_zero_point"] = ("I32", np.ascontiguousarray(in_words((zero + half).T, bits).T))
    if shuffled:
        tensors["x.weight_g_idx"] = ("I32", group.astype(np.int32))
    return tensors, numbers


def gptq(rng, bits=4, shuffled=False):
    q, scale = rng.integers(0, 1 << bits, (64, 32)), rng.uniform(1e-3, 1, (2, 32)).astype(np.float16)
    stored = rng.integers(0, 1 << bits, (2, 32))
    group = rng.permutation(64) // 32 if shuffled else np.arange(64) // 32
    numbers = (q - (stored + 1)[group]).astype(np.float32) * scale.astype(np.float32)[group]
    return {
        "x.qweight": ("I32", np.ascontiguousarray(in_words(q.T, bits).T)),
        "x.qzeros": ("I32", in_words(stored, bits)),
        "x.scales": ("F16", scale),
        "x.g_idx": ("I32", group.astype(np.int32)),
    }, numbers.T


def awq(rng):
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds the output order[i]
    q, scale, zero = rng.integers(0, 16, (64, 16)), rng.uniform(1e-3, 1, (2, 16)), rng.integers(0, 16, (2, 16))
    scale = scale.astype(np.float16)

    def ordered(codes):
        return in_words(codes.reshape(-1, 2, 8)[..., order].reshape(-1, 16), 4)

    numbers = (q - zero.repeat(32, 0)).astype(np.float32) * scale.astype(np.float32).repeat(32, 0)
    tensors = {"x.qweight": ("I32", ordered(q)), "x.qzeros": ("I32", ordered(zero)), "x.scales": ("F16", scale)}
    return tensors, numbers.T


def dynamic_map():
    """bitsandbytes' map of 8 bits: midpoints of 2^i parts of 0.1 to 1, times 10^(i - 6), of both signs; 0 and 1."""
    numbers = [np.float32([0, 1])]
    for power in range(7):
        ends = torch.linspace(0.1, 1, (1 << power) + 1, dtype=torch.float32)
        middles = ((ends[:-1] + ends[1:]) / 2 * 10.0 ** (power - 6)).numpy()
        numbers += [middles, -middles]
    return np.sort(np.concatenate(numbers))


def bitsandbytes_nf4(rng, nested=""):
    shape, count = (5, 77), 385
    packed, absmax = some(rng, 193, 1), rng.uniform(1e-3, 1, 7).astype(np.float32)
    codes = np.stack([packed[:, 0] >> 4, packed[:, 0] & 15], -1).reshape(-1)[:count]
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": shape}
    tensors = {"x.weight": ("U8", packed), "x.weight.absmax": ("F32", absmax), "x.weight.quant_map": ("F32", NF4)}
    if nested:
        own = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        coded, table = some(rng, 7), dynamic_map() if nested == "usual" else own
        second, offset = rng.uniform(0.1, 1, 2).astype(np.float32), 0.123456789
        absmax = table[coded] * second.repeat(4)[:7] + np.float32(offset)
        tensors["x.weight.absmax"] = ("U8", coded)
        tensors["x.weight.nested_absmax"], tensors["x.weight.nested_quant_map"] = ("F32", second), ("F32", table)
        state |= {"nested_blocksize": 4, "nested_dtype": "float32", "nested_offset": offset}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors["x.weight.quant_state.bitsandbytes__nf4"] = ("U8", text)
    return tensors, (NF4[codes] * absmax.repeat(64)[:count]).reshape(shape)


def bitsandbytes_int8(rng):
    codes, scale = rng.integers(-127, 128, (4, 6)).astype(np.int8), rng.uniform(1e-3, 9, 4).astype(np.float32)
    numbers = (codes.astype(np.float32) * scale[:, None]) * np.float32(7.874015718698502e-3)
    return {"x.weight": ("I8", codes), "x.SCB": ("F32", scale), "x.weight_format": ("U8", np.uint8(0))}, numbers


CASES = {
    "ModelOpt NVFP4": modelopt_nvfp4,
    "ModelOpt NVFP4, experts": modelopt_experts,
    "compressed-tensors nvfp4": compressed_nvfp4,
    "compressed-tensors mxfp4": compressed_mxfp4,
    "compressed-tensors mxfp6": compressed_mxfp6,
    "compressed-tensors mxfp8": compressed_mxfp8,
    "GPT-OSS MXFP4": gpt_oss,
    "DeepSeek FP8": deepseek,
    "float8, one scale": float8_tensor,
    "float8, channels": float8_channels,
    "int8, channels": int8_channels,
    "int4 in words": packed_integers,
    "int3 in words, zero points": lambda rng: packed_integers(rng, 3, zeros=True),
    "int8 in words, zero points": lambda rng: packed_integers(rng, 8, zeros=True),
    "int4 in words, by g_idx": lambda rng: packed_integers(rng, 4, zeros=True, shuffled=True),
    "GPTQ": gptq,
    "GPTQ of 8 bits": lambda rng: gptq(rng, 8),
    "GPTQ, by g_idx": lambda rng: gptq(rng, 4, shuffled=True),
    "AWQ": awq,
    "bitsandbytes nf4": bitsandbytes_nf4,
    "bitsandbytes nf4, double": lambda rng: bitsandbytes_nf4(rng, "usual"),
    "bitsandbytes nf4, double with another map": lambda rng: bitsandbytes_nf4(rng, "other"),
    "bitsandbytes int8": bitsandbytes_int8,
}
