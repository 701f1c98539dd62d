"""Formats for the layers of JAX's functions: what is refused."""

import jax.numpy as jnp
import pytest

from qjax.insight import cross_entropy, sensitivity
from qjax.recipes import lower

W = jnp.ones((2, 3))
DATA = [(jnp.ones((4, 2)), jnp.zeros(4, int))]


@pytest.mark.parametrize(
    ("model", "data", "text"),
    [
        (lambda x: x + 1, DATA, "model has no sites"),
        (lambda x: x @ W, [], "data is empty"),
        (lower(lambda x: x @ W, ["linear"], "e4m3fn", None, "nearest"), DATA, "lower"),
    ],
)
def test_refused(model, data, text):
    with pytest.raises(ValueError, match=text):
        sensitivity(model, data, ["e4m3fn"])


def test_targets_are_classes():
    with pytest.raises(TypeError, match="targets has dtype float32; allowed are ints, the classes"):
        cross_entropy(jnp.zeros((4, 3)), jnp.zeros(4))
