"""The engine "exact": bits that do not depend on how many keys follow, precede or are masked."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.support.inputs import tie_row
from qcore import reproducible
from qcore.engines import Engine, KVCache, attention

f = np.float32
CACHES = [None, "bfloat16", "mxfp8_e4m3", "scaled(e2m1fn,{-1:16},scale=e4m3fn)", ("e4m3fn:saturate", "token_head")]


def test_a_row_on_a_tie_of_float32_is_free_of_its_padding():
    """Sums by halves differ here; ordinary rows would not show it."""
    row = tie_row()
    base = exact_softmax(row)
    for padding in (250, 2750):
        assert (exact_softmax(tie_row(len(row) + padding))[: len(row)] == base).all()
    assert (base[row > -40] == reproducible.softmax(row)[row > -40]).all()


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
