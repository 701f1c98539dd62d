"""Random numbers and orders of keys against JAX's Threefry and plain Python."""

import jax
import numpy as np
import pytest

from qcore.random.draws import permutation, random_bits, uniform


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)])
def test_bits_equal_jax(shape):
    expected = jax.random.bits(jax.random.key(5), shape, "uint32")
    found = random_bits(5, shape)
    assert found.shape == shape
    np.testing.assert_array_equal(found, expected)


def test_uniform_is_rounded_once():
    words = [int(word) >> 8 for word in random_bits(3, (1000,))]
    expected = [np.float32(-0.3 + word * 2.0**-24 * (0.3 - -0.3)) for word in words]
    found = uniform(3, (1000,), -0.3, 0.3)
    assert found.tobytes() == np.array(expected, np.float32).tobytes()
    assert -0.3 <= found.min() < -0.29 < 0.29 < found.max() <= 0.3


def test_permutation_sorts_words():
    words = random_bits(9, (500,)).tolist()
    assert permutation(9, 500).tolist() == sorted(range(500), key=words.__getitem__)
    assert permutation(9, 0).tolist() == []


def test_wrong_arguments():
    with pytest.raises(ValueError, match="count=-1; allowed is an int >= 0"):
        permutation(1, -1)
    with pytest.raises(TypeError, match=r"shape=2\.5"):
        random_bits(1, (2.5,))
