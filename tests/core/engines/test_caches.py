"""Caches by name, each beside its law written again in plain NumPy; their texts and errors."""

import pickle
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import qcore
from qcore import parse
from qcore.engines import CACHES, Engine, KVCache, attention
from qcore.engines.arrays import Attending
from qcore.engines.cache import stored

f = np.float32


def e4m3(x):
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(f)


def e5m2(x):
    return np.clip(x, -57344, 57344).astype(ml_dtypes.float8_e5m2).astype(f)


def e2m1(x):
    return np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(f)


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(f)


# One token and head, as the kernels see it.


def per_token_head(x, most, rounded):
    scale = max(abs(x).max() / f(most), f(1e-6))
    return rounded(x * (f(1) / scale)) * scale


def int8(x):
    """Triton converts a float that is stored as an integer toward zero."""
    return np.clip(np.trunc(x), -128, 127).astype(f)


def test_the_rotation_before_four_bits():
    """Signs and a Hadamard matrix by Kronecker products; queries, keys and values turn, and the result turns back."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-64, 65, (1, 2, 9, 16)).astype(f) / f(8) for _ in range(3))
    hadamard = np.ones((1, 1))
    for _ in range(4):
        hadamard = np.kron(hadamard, [[1, 1], [1, -1]])
    d = np.array([1, -1, 1, 1, -1, -1, -1, -1, 1, -1, -1, 1, 1, -1, 1, -1])  # as torch's generator draws them
    turned = [(x * d @ hadamard).astype(f) for x in (q, k, v)]
    plain = replace(Engine.of("exact"), cache=replace(KVCache.of("int4_per_token_head"), rotated=False))
    inner = attention(*turned, plain, scale=1 / 64)
    expected = ((inner.astype(np.float64) @ hadamard * d) / 16).astype(f)
    found = attention(q, k, v, replace(Engine.of("exact"), cache="int4_per_token_head"))
    assert (found == expected).all()
    assert not (found == attention(q, k, v, plain)).all()
    with pytest.raises(ValueError, match="k has heads of 24 with a rotated cache; allowed are powers of two"):
        attention(*np.zeros((3, 1, 1, 4, 24), f), replace(Engine.of("exact"), cache="int4_per_token_head"))


def int4(x):
    scale = max((x.max() - x.min()) / f(15), f(1e-6))
    zero = int(np.clip(int(-x.min() / scale + f(0.5)), 0, 15))
    codes = [int(np.clip(int(np.trunc(one * (f(1) / scale) + f(zero) + f(0.5))), 0, 15)) for one in x]
    packed = np.uint32(scale.view(np.uint32) & 0xFFFFFFF0 | zero)  # what the cache holds
    read, zero = np.uint32(packed & 0xFFFFFFF0).view(f), int(packed & 15)
    return f([code - zero for code in codes]) * read


def nvfp4(block):
    scale = e4m3(abs(block).max() * f(1 / 6))
    return e2m1(block * (f(1) / (scale or f(1)))) * scale


def four_over_six(block):
    found = []
    for part in (f(1 / 6), f(0.25)):
        scale = e4m3(abs(block).max() * part)
        y = e2m1(block * (f(1) / (scale or f(1)))) * scale
        error = f(0)
        for a, b in (y - block).reshape(8, 2):
            error += a * a + b * b
        found.append((error, y))
    return found[1][1] if found[1][0] < found[0][0] else found[0][1]


def latent(x, key):
    tiles = [x[begin : begin + 128] for begin in range(0, len(x) - 64 * key, 128)]
    scales = [max(abs(tile).max() / f(448), f(2.0**-126)) for tile in tiles]
    found = [e4m3(tile / scale) * scale for tile, scale in zip(tiles, scales, strict=True)]
    return np.concatenate([*found, bf16(x[-64:])] if key else found)


def blocks(law):
    return lambda x: np.concatenate([law(x[begin : begin + 16]) for begin in range(0, len(x), 16)])


LAWS = {
    "fp8_e4m3": e4m3,
    "fp8_e5m2": e5m2,
    "fp8_per_token_head": lambda x: per_token_head(x, 448, e4m3),
    "int8_per_token_head": lambda x: per_token_head(x, 127, int8),
    "int4_per_token_head": int4,
    "nvfp4": blocks(nvfp4),
    "nvfp4_4over6": blocks(four_over_six),
    "fp8_ds_mla": lambda x: latent(x, True),
}


def keys(size=192):
    """Heads of many magnitudes, one of zeros, one of equal numbers, one above zero, and one with an outlier."""
    x = np.random.default_rng(0).standard_normal((2, 3, 40, size)).astype(f)
    x *= f(2.0) ** np.random.default_rng(1).integers(-24, 10, (2, 3, 40, 1))
    x[0, 0, 0], x[0, 0, 1], x[0, 0, 2, 5] = 0, 0.3, 900
    x[0, 1] = abs(x[0, 1]) + 1
    return x


@pytest.mark.parametrize("name", CACHES)
def test_laws(name):
    x = keys()
    found = stored(Attending, KVCache.of(name), x, "k")
    expected = np.stack([LAWS[name](row) for row in x.reshape(-1, x.shape[-1])]).reshape(x.shape)
    assert (found == expected).all()
    assert not (found == x).all()


def test_values_of_latent_attention_have_no_positions():
    x = keys(256)
    found = stored(Attending, KVCache.of("fp8_ds_mla"), x, "v")
    assert (found[1, 2, 3] == latent(x[1, 2, 3], False)).all()


def test_a_quarter_of_a_block_is_on_a_tie_of_its_scale():
    """1.5 times a sixth, as Transformer Engine has it, is above the tie: vLLM's kernel multiplies by 1 / 4."""
    x = np.zeros((1, 1, 1, 16), f)
    x[..., :2] = 6.25, 0.75  # 1.5625 is a tie of 1.5 and 1.625
    found = stored(Attending, KVCache.of("nvfp4_4over6"), x, "k")[0, 0, 0]
    assert found[:2].tolist() == [6, 0.75]


def test_static_scales():
    x = keys(64)
    for name, law in (("fp8_e4m3", e4m3), ("nvfp4", blocks(nvfp4)), ("nvfp4_4over6", blocks(four_over_six))):
        cache = replace(KVCache.of(name), k=0.3, v=1.7)
        for which, scale in (("k", f(0.3)), ("v", f(1.7))):
            found = stored(Attending, cache, x, which)[1, 2, 3]
            assert (found == law(x[1, 2, 3] / scale) * scale).all()


@pytest.mark.parametrize("scale", ["tensor", "head", "token"])
def test_what_shares_a_dynamic_scale(scale):
    x = keys(16)
    axes = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "token": (1, 3)}[scale]
    factor = np.maximum(abs(x).max(axes, keepdims=True) / f(448), f(1e-6))
    found = stored(Attending, KVCache("e4m3fn:saturate", scale), x, "k")
    assert (found == e4m3(x * (f(1) / factor)) * factor).all()


def test_scales_of_a_token_and_head_multiply_scores_and_weights_in_tritons_kernel():
    """S = (Q K^T) * (scale * k_scale), and P * v_scale is rounded: keys stay the codes of the cache."""
    q, k, v = np.random.default_rng(2).standard_normal((3, 1, 1, 40, 32)).astype(f) * f(3)
    engine = replace(Engine.of("vllm.triton"), cache="int8_per_token_head")
    engine = replace(engine, attention=replace(engine.attention, output=None, accumulator=None))  # exact products
    scales = [np.maximum(abs(x).max(-1) / f(127), f(1e-6))[0, 0] for x in (k, v)]
    codes = [int8(x[0, 0] * (f(1) / s)[:, None]) for x, s in zip((k, v), scales, strict=True)]
    scale = f(32**-0.5)
    m, total, out = np.full((40, 1), -np.inf, f), np.zeros((40, 1), f), np.zeros((40, 32), f)
    for part in (slice(0, 32), slice(32, 40)):
        products = (bf16(q[0, 0]).astype(float) @ codes[0][part].T.astype(float)).astype(f)
        scores = products * (scales[0][part] * scale)
        scores[np.arange(40)[part] > np.arange(40)[:, None]] = -np.inf
        top = np.maximum(m, scores.max(1, keepdims=True))
        p, a = (np.exp((x - top).astype(float)).astype(f) for x in (scores, m))
        sums = p
        while sums.shape[1] > 1:
            sums = sums[:, ::2] + sums[:, 1::2]
        total = total * a + sums
        weighted = bf16(p * scales[1][part]).astype(float) @ codes[1][part].astype(float)
        out, m = (weighted + (out * a).astype(float)).astype(f), top
    np.testing.assert_array_equal(attention(q, k, v, engine)[0, 0], out / total)


# Data.


@pytest.mark.parametrize("name", CACHES)
def test_names_have_sources_and_texts(name):
    published = CACHES[name]
    assert KVCache.of(name) is published.cache
    assert re.fullmatch(r"vLLM, \S+\.\w+,? [0-9a-f]{8}\b.*", published.source)  # with its version
    assert published.undefined
    assert parse(published.cache.text, KVCache) == published.cache
    assert pickle.loads(pickle.dumps(published.cache)) == published.cache
    assert eval(repr(published.cache), vars(qcore) | vars(qcore.engines)) == published.cache
    assert published.cache.causal
    assert replace(Engine.of("exact"), cache=name).cache == published.cache


def heads(size):
    return np.zeros((3, 1, 1, 4, size), f)


WRONG = [
    (lambda: KVCache.of("fp8_e4m2"), "name='fp8_e4m2' (nearest: fp8_e5m2, fp8_e4m3"),
    (lambda: replace(Engine.of("exact"), cache="int3"), "cache='int3'; allowed are fp8_e4m3, "),
    (lambda: KVCache("int8", law="truncated"), "scale=static with law=truncated; allowed there is signed integers"),
    (lambda: KVCache("int4", "token_head", law="zero_point"), "law=zero_point; allowed there is unsigned integers"),
    (lambda: KVCache("uint4", "token", law="zero_point"), "law=zero_point; allowed there is unsigned integers"),
    (lambda: KVCache("nvfp4", law="four_over_six"), "law=four_over_six; allowed there is scaled(e2m1fn,{-1:16},scale"),
    (lambda: KVCache("int8", "token_head", law="ds_mla"), "law=ds_mla; allowed there is a float without blocks"),
    (lambda: KVCache("e4m3fn", law="rounded"), "law='rounded'; allowed are plain, truncated"),
    (lambda: replace(Engine.of("fa3.hopper.fp8"), cache="nvfp4_4over6"), "allowed there are static scales, law=plain"),
    (
        lambda: attention(*heads(24), replace(Engine.of("exact"), cache="nvfp4_4over6")),
        "k has heads of 24 with a cache of law=four_over_six; allowed are multiples of 16",
    ),
    (
        lambda: attention(*heads(128), replace(Engine.of("exact"), cache="fp8_ds_mla")),
        "k has heads of 128 with a cache of law=ds_mla; allowed are multiples of 128 and 64",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_contradicts_raises(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
