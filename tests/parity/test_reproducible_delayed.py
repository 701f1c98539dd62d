"""Training with defined bits and delayed scales: PyTorch's numbers, gradients and states are JAX's."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support import assert_same_bits

import qjax.reproducible
import qtorch.reproducible
from qcore import RECIPES
from qjax.nnx.products import Scaling


class OfFlax(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(8, 8, (3,), padding="VALID", rngs=rngs)
        self.general = nnx.LinearGeneral(8, (2, 2), rngs=rngs)

    def __call__(self, x):
        return self.general(qjax.reproducible.relu(self.conv(x))).reshape((len(x), -1, 4))


class OfTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.general = torch.nn.Conv1d(8, 8, 3), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.general(torch.relu(self.conv(x)).transpose(1, 2))


def test_layers_of_torch_keep_states():
    model = qtorch.reproducible.convert(OfTorch(), RECIPES["fp8_delayed_conv"])
    x = torch.ones(2, 8, 6)
    model(2 * x).sum().backward()
    assert model.conv.scaling[0, 1] == 2
    x[0] *= 448 / 2 + 1  # more than 448 / the scale, which saturates
    few = qtorch.quantize(x * model.conv.scaling[0, 0], "e4m3fn:saturate") / model.conv.scaling[0, 0]
    assert_same_bits(model.conv(x), model.conv(few))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:the recipe lowers")
def test_models_with_delayed_scales():
    ours, theirs = OfFlax(), OfTorch()
    recipe = RECIPES["fp8_delayed_conv"]
    ours, theirs = qjax.reproducible.convert(ours, recipe), qtorch.reproducible.convert(theirs, recipe)
    qjax.reproducible.initialize(ours, 5)
    qtorch.reproducible.initialize(theirs, 5)
    initial = {name: np.asarray(x) for name, x in qjax.reproducible.state_dict(ours).items()}
    parts = nnx.DiffState(0, (nnx.Param, Scaling))
    for step in range(2):
        x = np.random.default_rng(step).standard_normal((2, 6, 8)).astype(np.float32) * (step + 1)
        found = nnx.grad(lambda model, x=x: model(jnp.asarray(x)).sum(), argnums=parts)(ours)
        nnx.update(ours, nnx.filter_state(found, Scaling))
        theirs.zero_grad()
        theirs(torch.from_numpy(x).mT).sum().backward()
        assert_same_bits(found["conv"]["kernel"][...].transpose(2, 1, 0), theirs.conv.weight.grad)
        assert_same_bits(found["general"]["kernel"][...].reshape(8, 4).T, theirs.general.weight.grad)
        state = qjax.reproducible.state_dict(ours)
        assert state.keys() == theirs.state_dict().keys()
        for name, value in theirs.state_dict().items():
            assert_same_bits(state[name], value)
    weights = {name: x for name, x in initial.items() if "scaling" not in name}
    qjax.reproducible.load_state_dict(ours, weights)  # whose states stay
    assert_same_bits(qjax.reproducible.state_dict(ours)["conv.scaling"], theirs.conv.scaling)
    qjax.reproducible.initialize(ours, 5)
    qtorch.reproducible.initialize(theirs, 5)
    for name, value in theirs.state_dict().items():
        assert_same_bits(qjax.reproducible.state_dict(ours)[name], initial[name])
        assert_same_bits(value, initial[name])
