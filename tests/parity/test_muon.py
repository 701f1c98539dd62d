"""Muon in torch and JAX: the same bits, torch's own numbers, and each iteration beside exact sums in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from support import assert_same_bits

import qcore
import qjax.optim
import qjax.reproducible
import qtorch.optim
import qtorch.reproducible
from qcore.reproducible.muon import COEFFICIENTS, iterations

F = np.float32


def matrix(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def expected(x, triples, storage, operands=None, accumulator=None):
    """Newton-Schulz iterations in NumPy, by the reference of rounding and of products."""
    stored = (lambda y: y) if storage is None else lambda y: qcore.quantize(y, storage)
    wide = x.shape[0] <= x.shape[1]
    x = stored(np.ascontiguousarray(x if wide else x.T))

    def product(a, b):
        return qcore.linalg.matmul(
            np.ascontiguousarray(a), np.ascontiguousarray(b), operands=operands, accumulator=accumulator
        )

    norm = stored(F(np.sqrt(F(np.sum(np.square(x, dtype=np.float64))))).reshape(1))[0]
    x = stored(x / norm)
    for a, b, c in np.array(triples, F):
        gram = stored(product(x, x.T))
        change = stored(gram * b + product(gram, gram) * c)
        x = stored(x * a + product(change, x))
    return x if wide else x.T


@pytest.mark.parametrize(
    ("shape", "coefficients", "options"),
    [
        pytest.param((12, 20), "simple", {}, marks=pytest.mark.heavy),
        pytest.param((20, 12), "quintic", {"storage": "float16"}, marks=pytest.mark.heavy),
        ((8, 8), "polar_express", {"storage": None, "operands": ("e4m3fn", "e4m3fn")}),
        pytest.param((8, 32), "deepseek_v4", {"accumulator": "hopper.wgmma.bf16"}, marks=pytest.mark.heavy),
        pytest.param(
            (16, 64), "cans", {"storage": None, "operands": ("mxfp8_e4m3", "mxfp8_e4m3")}, marks=pytest.mark.heavy
        ),
        pytest.param((1, 7), "aol", {"storage": "e5m2"}, marks=pytest.mark.heavy),
    ],
)
def test_iterations(shape, coefficients, options):
    x = matrix(shape)
    given = {"storage": "bfloat16"} | options
    wanted = expected(x, iterations(coefficients, 2), **given)
    given["steps"] = 2  # of the set's 4 to 10: XLA compiles each
    found = qtorch.reproducible.orthogonalize(torch.from_numpy(x), coefficients, **given)
    assert_same_bits(found.contiguous().numpy(), np.ascontiguousarray(wanted))
    assert_same_bits(qjax.reproducible.orthogonalize(x, coefficients, **given), np.ascontiguousarray(wanted))


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (1, 5)])
@pytest.mark.parametrize("options", [{}, {"adjust_lr_fn": "match_rms_adamw", "nesterov": False, "ns_steps": 3}])
def test_torchs_numbers(shape, options):
    """The momentum has the bits of torch's; its bfloat16 products have sums in an order of their own."""
    ours, theirs = (torch.nn.Parameter(torch.from_numpy(matrix(shape))) for _ in range(2))
    optimizer, peer = qtorch.optim.Muon([ours], lr=0.0625, **options), torch.optim.Muon([theirs], lr=0.0625, **options)
    for step in range(3):
        ours.grad = torch.from_numpy(matrix(shape, step))
        theirs.grad = ours.grad.clone()
        optimizer.step()
        peer.step()
        assert_same_bits(optimizer.state[ours]["momentum_buffer"], peer.state[theirs]["momentum_buffer"])
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)
    state = peer.state_dict()
    state["param_groups"] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(state)
    assert torch.equal(optimizer.state[ours]["momentum_buffer"], peer.state[theirs]["momentum_buffer"])


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_optaxs_numbers(shape):
    """Up to float32's roundings, without Nesterov's momentum, whose biases optax corrects and torch does not."""
    options = {"nesterov": False, "weight_decay": 0.1}
    ours = qjax.optim.muon(2**-5, adjust_lr_fn="match_rms_adamw", storage=None, **options)
    theirs = optax.contrib.muon(2**-5, consistent_rms=0.2, **options)
    p = q = jnp.asarray(matrix(shape))
    state, peer = ours.init(p), theirs.init(q)
    with jax.default_matmul_precision("highest"):
        for number in range(2):
            gradient = jnp.asarray(matrix(shape, 7 + number))
            p, state = ours.step(p, gradient, state)
            updates, peer = theirs.update(gradient, peer, q)
            q = optax.apply_updates(q, updates)
    assert abs(np.asarray(p) - matrix(shape)).max() > 0.01
    np.testing.assert_allclose(p, q, rtol=0, atol=1e-6)


def test_steps_in_torch_and_jax():
    shapes = [(64, 64), (6, 10)]
    params = [torch.nn.Parameter(torch.from_numpy(matrix(shape))) for shape in shapes]
    ours = qtorch.optim.Muon8bit(params, lr=0.02, ns_steps=1)
    theirs = qjax.optim.muon_8bit(0.02, ns_steps=1)
    trained = [jnp.asarray(matrix(shape)) for shape in shapes]
    state, step = theirs.init(trained), jax.jit(theirs.step)
    for number in range(2):
        gradients = [matrix(shape, 9 + number) for shape in shapes]
        for p, g in zip(params, gradients, strict=True):
            p.grad = torch.from_numpy(g)
        ours.step()
        trained, state = step(trained, gradients, state)
    for p, q, m in zip(params, trained, state.momentum, strict=True):
        assert_same_bits(p.detach().numpy(), np.asarray(q))
        kept = ours.state[p]
        names = [name for name in ("momentum_buffer", "momentum_buffer_scale") if name in kept]
        for entry, leaf in zip(names, jax.tree.leaves(m), strict=True):
            assert_same_bits(kept[entry].numpy(), np.asarray(leaf))
    assert "States in codes (8bit, blocks of 256): 1 of 2 parameters" in repr(ours)
    assert state.momentum[0].codes.dtype == jnp.uint8


@pytest.mark.parametrize("coefficients", ["polar_express", "deepseek_v4"])
def test_singular_values_go_to_one(coefficients):
    x = qtorch.reproducible.orthogonalize(torch.from_numpy(matrix((24, 64))), coefficients, storage=None)
    values = torch.linalg.svdvals(x)
    assert (values - 1).abs().max() < 2e-2


def test_iterations_by_count():
    assert iterations("cans", 7) == (*COEFFICIENTS["cans"], *[COEFFICIENTS["cans"][-1]] * 2)
    assert iterations((1, 2, 3), None) == ((1.0, 2.0, 3.0),) * 5
    assert iterations("quintic", 2) == COEFFICIENTS["quintic"][:2]


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("params has a tensor of shape (3,); allowed are two dimensions", lambda p: qtorch.optim.Muon([p[0]])),
        ("params has an array of shape (3,)", lambda p: qjax.optim.muon().init(jnp.ones(3))),
        ("coefficients='newton'; allowed are", lambda p: qtorch.optim.Muon([p], ns_coefficients="newton")),
        (
            "coefficients=(1, 2); allowed are three numbers, and simple",
            lambda p: qjax.optim.muon(ns_coefficients=(1, 2)),
        ),
        ("adjust_lr_fn='moonshot'; allowed are", lambda p: qtorch.optim.Muon([p], adjust_lr_fn="moonshot")),
        ("steps=100; allowed is an int from 0 to 99", lambda p: qtorch.optim.Muon([p], ns_steps=100)),
        ("momentum=1.0; allowed is a number from 0 to below 1", lambda p: qtorch.optim.Muon([p], momentum=1.0)),
        ("nosuch", lambda p: qtorch.optim.Muon([p], operands="nosuch")),
        ("nosuch", lambda p: qtorch.optim.Muon([p], accumulator="nosuch")),
    ],
)
def test_wrong(message, call):
    with pytest.raises((TypeError, ValueError)) as error:
        call(torch.ones(3, 3))
    assert message in str(error.value)
