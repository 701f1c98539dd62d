"""Networks that people have, switched by `convert`: the same bits in torch and JAX, forward and after training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from flax import nnx
from flax_support import module_of
from support import assert_same_bits

import qjax
import qtorch

STEPS = 20  # of heavy tests
QUICK = ("crepe",)


def start(model):
    """Numbers that are neither zeros nor ones, from a fixed generator."""
    rng = np.random.default_rng(3)
    return {
        name: np.float32(rng.uniform(0.5, 1.5, p.shape) if "var" in name else rng.normal(size=p.shape) * 0.3)
        for name, p in model.state_dict().items()
        if p.dtype is torch.float32
    }


def by_torch(kind, x, target, state, steps):
    """Logits at the start, all weights at the end, and the logits of the trained model in evaluation."""
    model = qtorch.reproducible.convert(kind())
    model.load_state_dict({name: torch.from_numpy(p) for name, p in state.items()}, strict=False)
    optimizer = qtorch.reproducible.AdamW(model.parameters(), lr=1e-2)
    x, target, first = torch.from_numpy(x), torch.from_numpy(target), None
    for _ in range(steps):
        y = model(x)
        first = y.detach().clone() if first is None else first
        loss = qtorch.reproducible.cross_entropy(y, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return first, model.state_dict(), model.eval()(x), model


def by_jax(kind, x, target, state, steps):
    room = qjax.reproducible
    model = room.convert(module_of(kind))
    room.load_state_dict(model, state)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = room.adamw(1e-2)
    moments, x, target = optimizer.init(params), jnp.asarray(x), jnp.asarray(target)

    @jax.jit
    def step(params, rest, moments):
        def loss(params):
            model = nnx.merge(graph, params, rest, copy=True)
            y = model(x)
            return room.cross_entropy(y, target), (y, nnx.split(model, nnx.Param, ...)[2])

        gradients, (y, rest) = jax.grad(loss, has_aux=True)(params)
        return y, rest, *optimizer.step(params, gradients, moments)

    first = None
    for _ in range(steps):
        y, rest, params, moments = step(params, rest, moments)
        first = y if first is None else first
    model = nnx.merge(graph, params, rest)
    model.eval()
    return first, room.state_dict(model), jax.jit(lambda x: model(x))(x)


def check(name, steps=STEPS):
    torch_kind, flax_kind, x, target = ARCHITECTURES[name]
    state = start(torch_kind())
    first, trained, logits, model = by_torch(torch_kind, x, target, state, steps)
    ours, theirs, last = by_jax(flax_kind, x, target, state, steps)
    assert_same_bits(ours, first)
    assert set(theirs) == set(state)
    for one in state:
        assert_same_bits(theirs[one], trained[one], one)
        assert not np.array_equal(trained[one].numpy(), state[one]) or "running" in one
    assert_same_bits(last, logits)
    return model, x, logits


@pytest.mark.heavy
@pytest.mark.parametrize("name", QUICK)
def test_training(name):
    check(name, 5)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_training_of_all_and_compiled_programs(name):
    """The trained model compiled by Inductor, forward and backward."""
    model, x, logits = check(name)
    torch._dynamo.reset()
    x, expected = torch.from_numpy(x), torch.autograd.grad(model(torch.from_numpy(x)).sum(), [*model.parameters()])
    y = torch.compile(model, fullgraph=True)(x)
    assert_same_bits(y, logits)
    for found, right in zip(torch.autograd.grad(y.sum(), [*model.parameters()]), expected, strict=True):
        assert_same_bits(found, right)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["mtcnn", "bert"])
def test_forward_and_gradients_compiled(name):
    """In one program of AOTAutograd, without Inductor."""
    kind, _, x, _ = ARCHITECTURES[name]
    model = kind()
    model.load_state_dict({name: torch.from_numpy(p) for name, p in start(model).items()}, strict=False)
    near = model(torch.from_numpy(x))
    qtorch.reproducible.convert(model)
    y, z = model(torch.from_numpy(x)), torch.compile(model, fullgraph=True, backend="aot_eager")(torch.from_numpy(x))
    torch.testing.assert_close(y, near, rtol=1e-4, atol=1e-5)
    assert_same_bits(z, y)
    parameters = [*model.parameters()]
    for found, right in zip(
        torch.autograd.grad(z.sum(), parameters), torch.autograd.grad(y.sum(), parameters), strict=True
    ):
        assert_same_bits(found, right)
