"""Pools and norms with channels last: what those with channels first give, with a batch and without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import pairwise
from support import assert_same_bits

from qcore.affine import QParams
from qjax.quantization import functional, quantize_per_tensor
from qjax.quantization.functional.images import channels_first, channels_last

NUMBERS = jnp.arange(4, dtype=jnp.float32)
OUTPUT = {"eps": 1e-5, "output": QParams.of(0.5, 100)}
POOLS = {
    "max_pool": {"kernel_size": 3, "stride": 2, "padding": 1},
    "avg_pool": {"kernel_size": 2, "ceil_mode": True},
    "adaptive_avg_pool": {"output_size": 3},
}
OTHERS = {
    "interpolate": {"size": 7},
    "batch_norm": {"weight": None, "bias": NUMBERS, "mean": NUMBERS, "variance": NUMBERS + 1, **OUTPUT},
    "group_norm": {"groups": 2, "weight": NUMBERS, "bias": None, **OUTPUT},
}


def quantized(*shape):
    x = np.random.default_rng(0).normal(size=shape)
    return quantize_per_tensor(jnp.asarray(x, jnp.float32), 0.02, 100, "quint8")


def same_in_both_layouts(name, settings, q, axis):
    function = getattr(functional, name)
    expected = jax.jit(lambda q: channels_last(function(channels_first(q, axis), **settings), axis))(q)
    actual = jax.jit(lambda q: function(q, **settings, channels_last=True))(q)
    assert_same_bits(actual.values, expected.values)


@pairwise(name=[*POOLS], batch=[(), (2,)], dimensions=[1, 2, 3])
def test_pools(name, batch, dimensions):
    q = quantized(*batch, *(6, 5, 4)[:dimensions], 4)
    same_in_both_layouts(name, POOLS[name] | {"dimensions": dimensions}, q, len(batch))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_norms_and_images(name, dimensions):
    """Whose arrays have a batch."""
    same_in_both_layouts(name, OTHERS[name], quantized(2, *(6, 5, 4)[:dimensions], 4), 1)


def test_dimensions_by_place():
    q = quantized(6, 4)
    expected = functional.max_pool(channels_first(q, 0), 1, 2).values.T
    assert_same_bits(functional.max_pool(q, 1, 2, channels_last=True).values, expected)
    q = quantized(6, 5, 4)
    assert_same_bits(
        functional.adaptive_avg_pool(q, 2, channels_last=True).values,
        functional.adaptive_avg_pool(q, 2, 2, channels_last=True).values,
    )


@pytest.mark.parametrize("name", [*POOLS, *OTHERS])
def test_docstrings_tell_it(name):
    assert "\n    channels_last: True for" in getattr(functional, name).__doc__.partition("Returns:")[0]


def test_wrong_arrays():
    with pytest.raises(TypeError, match="input is a ArrayImpl; allowed is a QTensor"):
        functional.max_pool(jnp.ones((2, 3)), 1, 2, channels_last=True)
    for shape in ((), (3,), (2, 3, 4, 5)):
        with pytest.raises(ValueError, match=r"input has shape .*; allowed are 2 or 3 dimensions"):
            functional.max_pool(quantized(*shape), 1, 2, channels_last=True)
