"""Windows, soft caps and sinks of engines, row by row beside loops that are written apart."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from qcore import Accumulator
from qcore.engines import ENGINES, Attention, Engine, KVCache, attention
from qcore.linalg import matmul

f, d = np.float32, np.float64
FP8, BF16 = "fa3.hopper.fp8", "fa3.hopper.bf16"
LOG2_E = 1.4426950408889634


def heads(seed, group, queries, keys, size, shift=0.0):
    """One key head with so many heads; with a shift most scores are below zero."""
    rng = np.random.default_rng(seed)
    shapes = (group, queries, size), (1, keys, size), (1, keys, size)
    q, k, v = (rng.standard_normal((1, *shape)).astype(f) for shape in shapes)
    return q, k + f(shift) * -np.sign(q[0, 0, 0]), v


def unrounded(name):
    """The engine without the rounding of its result, which would hide most of it."""
    engine = Engine.of(name)
    return replace(engine, attention=replace(engine.attention, output=None))


def e4m3(x):
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(f)


def bf16(x):
    return np.asarray(x, f).astype(ml_dtypes.bfloat16).astype(f)


def once(function, x):
    """A function of float32 numbers, rounded once."""
    with np.errstate(over="ignore"):
        return function(np.asarray(x, d)).astype(f)


def fused(a, b, c):
    return (np.asarray(a, d) * d(b) + np.asarray(c, d)).astype(f)


def row_of_flash(q, k, v, first, tile, c, cap, sink, window, fp8):
    """The last query of one row: q of (1, size), with the keys that it may see; tiles begin at `first`."""
    rounded, name = (e4m3, "hopper.wgmma.e4m3") if fp8 else (bf16, "hopper.wgmma.bf16")
    accumulator, place, offset = Accumulator.of(name), len(k) - 1, f(8 if fp8 else 0)
    m, lanes, out = f(-np.inf), np.zeros(4, f), np.zeros((1, q.shape[1]), f)
    for begin in reversed(range(first, len(k), tile)):
        keys = np.arange(begin, min(begin + tile, len(k)))
        scores = matmul(rounded(q), np.ascontiguousarray(rounded(k[keys]).T), accumulator=accumulator)[0]
        if cap is not None:
            scores = once(np.tanh, scores * cap)
        scores[place - keys >= window] = -np.inf
        top = max(m, scores.max())
        used = f(0) if np.isneginf(top) else top
        shift = f(0) if np.isneginf(top) else used * c - offset
        a, p = once(np.exp2, (m - used) * c), once(np.exp2, fused(scores, c, -shift))
        lanes, out, m = lanes * a, out * a, top
        for column, number in enumerate(p):
            lanes[column // 2 % 4] += number
        if fp8:
            out = out + matmul(rounded(p[None]), rounded(v[keys]), accumulator=accumulator)
        else:
            out = matmul(rounded(p[None]), rounded(v[keys]), out, accumulator=accumulator)
    total = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
    if sink is not None:
        total = total + once(np.exp2, fused(bf16(sink), f(LOG2_E), -fused(m, c, -offset)))
    return out[0] * (f(1) / total)


@pytest.mark.parametrize(
    ("name", "size", "tile", "rows", "group"),
    [
        (FP8, 128, 192, 128, 2),
        pytest.param(BF16, 64, 160, 192, 1, marks=pytest.mark.heavy),
        pytest.param(BF16, 256, 64, 128, 4, marks=pytest.mark.heavy),
    ],
)
@pytest.mark.parametrize(("softcap", "sinks"), [(None, False), (5.0, True)])
def test_flash_attention(name, size, tile, rows, group, softcap, sinks):
    """Tiles of a window begin with the first key that the first query of some rows sees; a sink is added last."""
    queries, keys, window = 130, 260, 70
    q, k, v = heads(0, group, queries, keys, size)
    sink = np.linspace(-1, 2, group).astype(f) if sinks else None
    found = attention(q, k, v, unrounded(name), window=window, softcap=softcap, sinks=sink)[0]
    scale = f(size**-0.5)
    c = f(d(scale if softcap is None else softcap) * LOG2_E)
    cap = None if softcap is None else f(scale / f(softcap))
    step = rows // group
    for i in (0, 1, step - 1, step, min(step + 13, queries - 1), queries - 1):
        if i >= queries:
            continue
        place = keys - queries + i
        first = keys - queries + i // step * step - window + 1
        for h in range(group):
            see = slice(place + 1)
            expected = row_of_flash(
                q[0, h, i : i + 1],
                k[0, 0, see],
                v[0, 0, see],
                first,
                tile,
                c,
                cap,
                sink[h] if sinks else None,
                window,
                name == FP8,
            )
            assert (found[h, i] == expected).all(), (i, h)


def pairs(p):
    while len(p) > 1:
        p = np.pad(p, (0, len(p) % 2))
        p = p[::2] + p[1::2]
    return p[0]


def row_of_triton(q, k, v, first, cap, sink, window, lowest):
    """The same by the Triton kernel: `lowest` is the place of the first query of its block."""
    accumulator, place, scale = Accumulator.of("hopper.wgmma.bf16"), len(k) - 1, f(q.shape[1] ** -0.5)
    m, total, out = f(-np.inf) if sink is None else sink, f(1), np.zeros((1, q.shape[1]), f)
    for begin in range(first, len(k), 32):
        keys = np.arange(begin, min(begin + 32, len(k)))
        scores = scale * matmul(bf16(q), np.ascontiguousarray(bf16(k[keys]).T), accumulator=accumulator)[0]
        if cap is not None:
            up, down = once(np.exp, scores / cap), once(np.exp, -scores / cap)
            scores = cap * (up - down) / (up + down)
        scores[place - keys >= window] = -np.inf
        top = max(m, scores.max())
        top = top if top > -np.inf else f(0)
        p, a = once(np.exp, scores - top), once(np.exp, m - top)
        total, m = total * a + pairs(p), top
        values = np.where((lowest - keys < window)[:, None], bf16(v[keys]), f(0))
        out = matmul(bf16(p[None]), values, out * a, accumulator=accumulator)
    return out[0] / total


@pytest.mark.parametrize(("softcap", "sinks"), [(None, False), (5.0, True)])
def test_triton(softcap, sinks):
    """A tile without a key of the window sets the maximum to 0: it shows where later scores are below 0."""
    group, queries, keys, window = 2, 100, 150, 37
    q, k, v = heads(1, group, queries, keys, 32, shift=3.0)
    q = np.broadcast_to(q[:, :1, :1], q.shape) * np.linspace(1, 2, queries, dtype=f)[:, None]  # scores below zero
    sink = f([-9, 0.5]) if sinks else None
    found = attention(q, k, v, unrounded("vllm.triton"), window=window, softcap=softcap, sinks=sink)[0]
    cap = None if softcap is None else f(softcap)
    for i in range(0, queries, 7):
        place, lowest = keys - queries + i, keys - queries + i // 8 * 8  # 16 rows are 8 queries of 2 heads
        see, first = slice(place + 1), max(lowest - window + 1, 0) // 32 * 32
        for h in range(group):
            given = q[0, h, i : i + 1], k[0, 0, see], v[0, 0, see]
            expected = row_of_triton(*given, first, cap, sink[h] if sinks else None, window, lowest)
            assert (found[h, i] == expected).all(), (i, h)


def test_flash_attention_decodes_other_bits_with_a_window():
    """A prediction: a decoded query begins with the first key of its window, in one pass with that of 128 queries."""
    q, k, v = np.random.default_rng(8).standard_normal((3, 1, 4, 70, 128)).astype(f)
    engine = unrounded(BF16)  # the rounding to bfloat16 hides them
    whole = attention(q, k, v, engine, window=64)
    steps = {n: attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], engine, window=64) for n in (1, 63, 64, 65, 70)}
    assert [n for n, step in steps.items() if (step != whole[:, :, n - 1 : n]).any()] == [65, 70]


def test_triton_decodes_other_bits_with_a_window():
    """A prediction: eight queries of one pass begin with the tile of the first one; four of them see no key there.

    Their maximum is 0 then, and scores are below 0. Decoded alone they begin with the next tile.
    """
    q, k, v = heads(1, 2, 80, 80, 32, shift=3.0)
    q = np.broadcast_to(q[:, :1, :1], q.shape) * np.linspace(1, 2, 80, dtype=f)[:, None]
    engine = unrounded("vllm.triton")
    whole = attention(q, k, v, engine, window=37)
    steps = {n: attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], engine, window=37) for n in range(60, 81)}
    assert [n for n, step in steps.items() if (step != whole[:, :, n - 1 : n]).any()] == [69, 70, 71, 72]


def test_the_window_of_all_keys_is_none():
    """FlashAttention takes the tiles of a causal pass then, and of decoding."""
    q, k, v = heads(2, 1, 100, 100, 128)
    for name in ENGINES:
        assert (attention(q, k, v, name, window=100) == attention(q, k, v, name)).all()
        assert not (attention(q, k, v, name, window=40) == attention(q, k, v, name)).all()
    step = q[:, :, -1:], k, v
    assert (attention(*step, FP8, window=100) == attention(*step, FP8)).all()
    assert not (attention(*step, unrounded(FP8), window=99) == attention(*step, unrounded(FP8))).all()


def eager_row(q, k, v, scale, cap, sink, window):
    """transformers: each operation in bfloat16, but for the exponentials."""
    scores = bf16(bf16(matmul(bf16(q), np.ascontiguousarray(bf16(k).T)))[0] * scale)
    if cap is not None:
        scores = bf16(bf16(once(np.tanh, bf16(scores / cap))) * cap)
    scores = np.where(np.arange(len(k))[::-1] < window, scores, -np.inf).astype(f)
    if sink is None:
        p = once(np.exp, scores - scores.max())
        weights = p / pairs(p)
    else:
        top = max(scores.max(), bf16(sink))
        p, last = once(np.exp, bf16(scores - top)), once(np.exp, bf16(bf16(sink) - top))
        weights = p / (pairs(p) + last)
    return matmul(bf16(weights[None]), bf16(v))[0]


def exact_row(q, k, v, scale, cap, sink, window):
    """The sum in integers of Python, which has no order."""
    scores = matmul(q, np.ascontiguousarray(k.T))[0] * scale
    if cap is not None:
        scores = once(np.tanh, scores / cap) * cap
    scores = [s if n < window else f(-np.inf) for n, s in zip(range(len(k))[::-1], scores, strict=True)]
    scores = np.array(scores if sink is None else [*scores, sink], f)
    e = once(np.exp, scores - scores.max())
    total = f(sum(int(d(one) * 2**42) for one in e)) * f(2**-42)
    return matmul((e / total)[None, : len(k)], v)[0]


@pytest.mark.parametrize(("name", "law"), [("hf.eager", eager_row), ("exact", exact_row)])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, True), (2.0, False), (2.0, True)])
def test_one_block_of_keys(name, law, softcap, sinks):
    q, k, v = heads(3, 2, 60, 90, 32)
    sink = f([-1, 3.3]) if sinks else None
    found = attention(q, k, v, unrounded(name), window=25, softcap=softcap, sinks=sink)[0]
    for i in range(60):
        for h in range(2):
            cap = None if softcap is None else f(softcap)
            given = q[0, h, i : i + 1], k[0, 0, : 31 + i], v[0, 0, : 31 + i]
            expected = law(*given, f(32**-0.5), cap, None if sink is None else sink[h], 25)
            assert (found[h, i] == expected).all(), (i, h)


@pytest.mark.parametrize("name", ["exact", pytest.param(BF16, marks=pytest.mark.heavy)])
def test_the_theorem_with_window_sinks_and_softcap(name):
    """Decoding, chunks, batches and padding; of FlashAttention's soft caps and sinks alone, with one tile."""
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((3, h, 100, 32 if name == "exact" else 128)).astype(f) for h in (4, 2, 2))
    given = {"softcap": 3.0, "sinks": f([-1, 0, 1, 5])} | ({"window": 33} if name == "exact" else {})
    whole = attention(q, k, v, name, **given)
    for size in (1, 7, 64):
        for begin in range(0, 100, size) if size > 1 else (0, 1, 32, 33, 50, 99):
            end = min(begin + size, 100)
            found = attention(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], name, **given)
            assert (found == whole[:, :, begin:end]).all()
    assert (attention(q[1:2], k[1:2], v[1:2], name, **given) == whole[1:2]).all()
    for left, right in ((9, 0), (0, 30)):
        padded = [np.pad(x, ((0, 0), (0, 0), (left, right), (0, 0)), constant_values=5e37) for x in (q, k, v)]
        counts = np.pad(np.ones(100, bool), (left, right))[None, None, None]
        assert (attention(*padded, name, mask=counts, **given)[:, :, left : left + 100] == whole).all()


def test_a_row_on_a_tie_with_a_sink():
    """A sink is one more integer of the sum: where it lies does not matter, and a sink of -inf is none."""
    q, k, v = heads(5, 2, 3, 70, 16)
    none = attention(q, k, v, "exact", sinks=f([-np.inf, -np.inf]))
    assert (none == attention(q, k, v, "exact")).all()
    for name in (FP8, "vllm.triton"):
        assert (attention(q, k, v, name, sinks=f([-np.inf] * 2)) == attention(q, k, v, name)).all()


def test_a_dynamic_scale_of_all_keys_is_that_of_all_keys():
    """Where later keys are left out of the products of some queries, they are not left out of the scale."""
    q, k, v = heads(6, 1, 200, 200, 16)
    k[0, 0, -1] *= f(50)
    stored = []
    for x in (k, v):
        scale = abs(x).max() / f(448)
        stored.append(e4m3(x * (f(1) / scale)) * scale)
    engine = Engine.of("hf.eager")
    cached = replace(engine, cache=KVCache("e4m3fn:saturate", "tensor"))
    assert (attention(q, k, v, cached) == attention(q, *stored, engine)).all()


ZEROS = heads(0, 3, 4, 9, 64)
WRONG = [
    (lambda: attention(*ZEROS, FP8, False, window=3), "window=3 with causal=False; allowed is causal=True"),
    (lambda: attention(*ZEROS, FP8, window=0), "window=0"),
    (lambda: attention(*ZEROS, FP8, window=3, mask=np.ones(9, bool)), "window=3 with a mask"),
    (lambda: attention(*ZEROS, "vllm.triton", window=3), "has 3 heads to a key head; allowed are divisors of 16"),
    (lambda: attention(*ZEROS, FP8, softcap=-1.0), "softcap=-1.0; allowed is a number above 0"),
    (lambda: attention(*ZEROS, "exact", sinks=np.zeros(2, f)), "sinks has shape (2,); allowed is (3,)"),
    (lambda: attention(*ZEROS, "engine(attention(tiles=[64,8,8]))", window=3), "window=3: the engine does not define"),
    (lambda: attention(*ZEROS, "engine(attention(tiles=[64,8,8]))", softcap=3.0), "softcap=3.0: the engine does not"),
    (lambda: attention(*ZEROS, "engine(attention())", sinks=np.zeros(3, f)), "sinks=an array: the engine does not"),
    (
        lambda: attention(
            *ZEROS, replace(unrounded(FP8), attention=replace(Engine.of(FP8).attention, split_size=192)), window=3
        ),
        "cuts keys in parts",
    ),
    (
        lambda: Attention(window_tiles=(64, 8)),
        "window_tiles=(64, 8); allowed are triples (largest head size, tile, rows)",
    ),
    (lambda: Attention(end="weights", sink="last"), "sink='last' with end=weights"),
    (lambda: Attention(sink="first", row_sum="threads"), "sink=first with row_sum=threads"),
    (lambda: Attention(softcap="exponentials", scale="exponent"), "softcap=exponentials with scale=exponent"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_is_not_defined_raises(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
