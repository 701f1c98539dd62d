"""The MX layers' products are those of operands that are quantized along what each product sums over."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore
from examples import mx_linear_jax, mx_linear_torch
from qcore import NAMED, NVFP4, BlockScaled

E4M3, E5M2 = NAMED["mxfp8_e4m3"][0], NAMED["mxfp8_e5m2"][0]
PAIRS = [(E4M3, E5M2), (NVFP4(), E5M2), (NVFP4(), NVFP4()), (BlockScaled("int8", {0: 8}, "rceil"), E4M3)]


def operands(forward, backward, x, w, g):
    """What is multiplied, worked out by the reference."""

    def q(a, number, axis):
        number = replace(number, block={axis: number.block[0][1]})
        return qcore.quantize(a, number, "nearest")

    return (
        (q(x, forward, 2), q(w, forward, 1)),
        (q(g, backward, 2), q(w, forward, 0)),
        (q(g.reshape(-1, g.shape[-1]), backward, 0), q(x.reshape(-1, x.shape[-1]), forward, 0)),
    )


def inputs():
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 25, 70), (45, 70), (3, 25, 45)))


@pytest.mark.parametrize(("forward", "backward"), PAIRS, ids=str)
def test_torch(forward, backward):
    x, w, g = inputs()
    first, second, third = operands(forward, backward, x, w, g)
    tensors = [torch.from_numpy(a).requires_grad_() for a in (x, w)]
    y = mx_linear_torch.linear(*tensors, forward, backward)
    y.backward(torch.from_numpy(g))
    assert_same_bits(y, torch.from_numpy(first[0]) @ torch.from_numpy(first[1]).mT)
    assert_same_bits(tensors[0].grad, torch.from_numpy(second[0]) @ torch.from_numpy(second[1]))
    assert_same_bits(tensors[1].grad, torch.from_numpy(third[0]).mT @ torch.from_numpy(third[1]))


@pytest.mark.heavy
@pytest.mark.parametrize(("forward", "backward"), PAIRS, ids=str)
def test_jax(forward, backward):
    x, w, g = inputs()
    first, second, third = operands(forward, backward, x, w, g)
    y, pull = jax.vjp(lambda x, w: mx_linear_jax.linear(x, w, forward, backward), jnp.asarray(x), jnp.asarray(w))
    grad_x, grad_w = pull(jnp.asarray(g))
    assert_same_bits(y, jnp.asarray(first[0]) @ jnp.asarray(first[1]).mT)
    assert_same_bits(grad_x, jnp.asarray(second[0]) @ jnp.asarray(second[1]))
    assert_same_bits(grad_w, jnp.asarray(third[0]).mT @ jnp.asarray(third[1]))


def test_a_model_learns():
    torch.manual_seed(0)
    x = torch.randn(256, 40)
    labels = (x[:, :3].sum(1) > 0).long()
    model = torch.nn.Sequential(mx_linear_torch.MXLinear(40, 64), torch.nn.ReLU(), mx_linear_torch.MXLinear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.15
    assert (model(x).argmax(1) == labels).float().mean() > 0.95
