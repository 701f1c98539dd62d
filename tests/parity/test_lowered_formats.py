"""Lowered models take formats with shared scales and posits: what layers return, and the gradients that come back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore
import qjax.auto_low
import qtorch.auto_low

PAIRS = [("mxfp8_e4m3", "mxfp8_e5m2"), ("nvfp4", "mxfp4"), ("posit16", "posit16")]
X, W, G = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((6, 40), (70, 40), (6, 70)))


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_torch(forward, backward):
    layer = torch.nn.Linear(40, 70, bias=False)
    layer.weight.data = torch.from_numpy(W.copy())
    plain = layer(torch.from_numpy(X)).detach()
    qtorch.auto_low.lower(layer, ["linear"], forward, backward, "nearest", "nearest")
    y = layer(torch.from_numpy(X))
    y.backward(torch.from_numpy(G))
    assert_same_bits(y, qcore.quantize(plain.numpy(), forward, "nearest"))
    assert_same_bits(
        layer.weight.grad, torch.from_numpy(qcore.quantize(G, backward, "nearest")).mT @ torch.from_numpy(X)
    )


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_jax(forward, backward):
    def product(w):
        return jnp.asarray(X) @ w.T

    lowered = qjax.auto_low.lower(product, ["linear"], forward, backward, "nearest", "nearest")
    y, pull = jax.vjp(lowered, jnp.asarray(W))
    assert_same_bits(y, qcore.quantize(np.asarray(product(jnp.asarray(W))), forward, "nearest"))
    _, plain = jax.vjp(product, jnp.asarray(W))
    assert_same_bits(pull(jnp.asarray(G))[0], plain(jnp.asarray(qcore.quantize(G, backward, "nearest")))[0])
