"""Random words against JAX's own Threefry."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qcore
from qcore.random.threefry import _multiply, as_lane, element_index, element_words

WORDS = st.integers(0, 2**32 - 1)


def lanes(*words):
    return tuple(np.full(1, as_lane(word), np.int32) for word in words)


def arange(size):
    return np.arange(size, dtype=np.int32)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 1, 3, 4), (100_001,)])
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_words_equal_jax(shape, seed):
    expected = jax.random.bits(jax.random.key(seed), shape, "uint32")
    for large in (False, True):
        words = element_words(arange, shape, lanes(0, seed), lanes(0, 0), large)
        np.testing.assert_array_equal(words.view(np.uint32), expected)


@given(WORDS, WORDS, WORDS)
def test_fold_in_equals_jax(word0, word1, data):
    key = jax.random.wrap_key_data(np.array([word0, word1], np.uint32), impl="threefry2x32")
    expected = jax.random.key_data(jax.random.fold_in(key, data))
    assert qcore.fold_in((word0, word1), data) == tuple(int(word) for word in expected)
    assert qcore.fold_in(word0 << 32 | word1, data) == qcore.fold_in((word0, word1), data)


@given(st.integers(0, 2**64 - 1))
def test_64_bit_starts(start):
    high, low = element_index(arange, (2, 3), lanes(start >> 32, start & 0xFFFFFFFF), large=False)
    index = (high.view(np.uint32).astype(np.uint64) << np.uint64(32)) | low.view(np.uint32)
    expected = np.array([(start + i) % 2**64 for i in range(6)], np.uint64)
    np.testing.assert_array_equal(index.ravel(), expected)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_products_of_64_bits(x, factor):
    high, low = _multiply(np.full(1, x, np.int32), factor)
    product = int(high.view(np.uint32)[0]) << 32 | int(low.view(np.uint32)[0])
    assert product == x * factor % 2**64


def test_indices_of_arrays_beyond_32_bits():
    """An array with 2^40 elements, of which only a few positions on each axis are looked at."""
    positions = {2**20: np.int32([0, 1, 2**20 - 1]), 2**20 + 3: np.int32([0, 5, 2**20 + 2])}
    high, low = element_index(positions.get, (2**20, 2**20 + 3), lanes(0, 9), large=True)
    index = (high.view(np.uint32).astype(object) << 32) + low.view(np.uint32).astype(object)
    rows, columns = (list(map(int, axis)) for axis in positions.values())
    assert index.tolist() == [[row * (2**20 + 3) + column + 9 for column in columns] for row in rows]
