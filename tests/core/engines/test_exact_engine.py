"""The engine "exact": bits that do not depend on how many keys follow, precede or are masked."""

from dataclasses import replace

import numpy as np
import pytest

from qcore import reproducible
from qcore.engines import Engine, KVCache, attention

f = np.float32
CACHES = [None, "bfloat16", "mxfp8_e4m3", "scaled(e2m1fn,{-1:16},scale=e4m3fn)", ("e4m3fn:saturate", "token_head")]


def weights_of(row):
    """The weights of a row of scores: values of which each has one key are the weights themselves."""
    keys = len(row)
    q, k = np.ones((1, 1, 1, 1), f), row.reshape(1, 1, keys, 1)
    return attention(q, k, np.eye(keys, dtype=f)[None, None], "exact", causal=False, scale=1)[0, 0, 0]


def test_the_sum_in_integers():
    rng = np.random.default_rng(0)
    for row in (rng.standard_normal(200), 30 * rng.standard_normal(97), np.linspace(-104, 0, 64), np.full(7, 3e38)):
        row = row.astype(f)
        e = reproducible.exp(row - row.max())
        total = sum(int(float(one) * 2**42) for one in e)  # exact, in any order
        expected = (e.astype(np.float64) / (float(f(total)) * 2.0**-42)).astype(f)
        assert (weights_of(row) == np.where(expected <= 2.0**-126, 0, expected)).all()


def hard_row():
    """1, two exponentials that put the sum on a tie of float32, and exponentials of -44 on even places."""
    rng = np.random.default_rng(0)
    first = np.sort(rng.uniform(-5.5, -5, 3000)).astype(f)
    second = rng.uniform(-11.7, -11.1, 200000).astype(f)
    a, b = (reproducible.exp(x).astype(np.float64) for x in (first, second))
    for i in range(len(a)):
        places = np.nonzero(np.mod(a[i] + b, 2.0**-23) == 2.0**-24)[0]
        places = [j for j in places if f(1 + a[i] + b[j]) < 1 + a[i] + b[j]]  # the tie goes down
        if places:
            break
    tiny = np.full(2 * int(1.9 * 2.0**-53 / np.exp(-44.0)), -np.inf, f)
    tiny[::2] = -44
    return np.concatenate([tiny, f([-np.inf, 0, -np.inf, first[i], -np.inf, second[places[0]]])])


def test_a_row_on_a_tie_of_float32_is_free_of_its_padding():
    """Sums by halves differ here; ordinary rows would not show it."""
    row = hard_row()
    base = exact_softmax(row)
    for padding in range(0, 9000, 1000):
        longer = np.concatenate([row, np.full(padding, -np.inf, f)])
        assert (exact_softmax(longer)[: len(row)] == base).all()
    rng = np.random.default_rng(1)
    for _ in range(5):
        order = rng.permutation(len(row))
        assert (exact_softmax(row[order]) == base[order]).all()


def exact_softmax(row):
    """The greatest weights by the engine: of all keys at once, each a value of a column."""
    keys = len(row)
    live = np.flatnonzero(row > -40)
    values = np.zeros((1, 1, keys, 3), f)
    values[0, 0, live, range(len(live))] = 1
    k = np.where(np.isneginf(row), f(0), row).reshape(1, 1, keys, 1)
    found = attention(np.ones((1, 1, 1, 1), f), k, values, "exact", False, scale=1, mask=~np.isneginf(row))
    weights = np.zeros(keys, f)
    weights[live] = found[0, 0, 0]
    return weights


@pytest.mark.parametrize("cache", CACHES)
def test_decode_is_prefill_is_chunks_is_batches_is_padding(cache):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((3, h, 100, 32)).astype(f) for h in (4, 2, 2))
    engine = Engine.of("exact")
    if cache is not None:
        engine = replace(engine, cache=KVCache(*cache) if isinstance(cache, tuple) else KVCache(cache))
    whole = attention(q, k, v, engine)
    for size in (1, 7, 16, 64):
        for begin in range(0, 100, size) if size > 1 else (0, 1, 50, 99):
            end = min(begin + size, 100)
            found = attention(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], engine)
            assert (found == whole[:, :, begin:end]).all()
    assert (attention(q[1:2], k[1:2], v[1:2], engine) == whole[1:2]).all()
    for left, right in ((9, 0), (0, 30)):
        padded = [np.pad(x, ((0, 0), (0, 0), (left, right), (0, 0)), constant_values=5e37) for x in (q, k, v)]
        counts = np.pad(np.ones(100, bool), (left, right))[None, None, None]
        assert (attention(*padded, engine, mask=counts)[:, :, left : left + 100] == whole).all()
