"""Initial weights: the same in PyTorch and JAX, and torch.nn's distributions."""

import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import module_of
from support import assert_same_bits
from torch import nn

from qcore import fold_in
from qcore.random import initial_state, uniform
from qjax import reproducible as jax_room
from qtorch import reproducible as torch_room

KEY = (3, 1 << 31)


class TorchModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 40)
        self.conv = nn.Conv2d(4, 8, 3, groups=2)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(40, 4)
        self.slope = nn.PReLU()
        self.out = nn.Linear(40, 30)


class JaxModel(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.table = nnx.Embed(50, 40, rngs=rngs)
        self.conv = nnx.Conv(4, 8, (3, 3), feature_group_count=2, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 40, decode=False, rngs=rngs)
        self.slope = nnx.PReLU()
        self.out = nnx.Linear(40, 30, rngs=rngs)


def of_torch(model):
    torch_room.initialize(model, KEY)
    return {name: x.numpy() for name, x in model.state_dict().items() if not name.endswith("num_batches_tracked")}


def test_both_begin_with_the_same_numbers():
    ours, model = of_torch(TorchModel()), module_of(JaxModel)
    jax_room.initialize(model, KEY)
    theirs = {name: np.asarray(x) for name, x in jax_room.state_dict(model).items()}
    assert set(ours) == set(theirs)
    for name, x in ours.items():
        assert_same_bits(x, theirs[name], name)
    switched = of_torch(torch_room.convert(TorchModel()))
    for name, x in ours.items():
        assert_same_bits(switched[name], x, name)


def test_distributions_are_those_of_torch():
    found = of_torch(TorchModel())
    bounds = {"conv.weight": 18**-0.5, "conv.bias": 18**-0.5, "out.weight": 40**-0.5, "out.bias": 40**-0.5}
    for name, bound in bounds.items():
        assert 0.6 * bound < abs(found[name]).max() <= bound
    assert found["table.weight"].std() == pytest.approx(1, abs=0.05)
    assert (found["norm.weight"] == 1).all()
    assert (found["norm.running_var"] == 1).all()
    zeros = "norm.bias", "norm.running_mean", "attention.in_proj_bias"
    assert not any(found[name].any() for name in zeros)
    torchs = TorchModel().state_dict()
    for name in ("conv.weight", "out.weight", "table.weight"):
        assert torchs[name].std().item() == pytest.approx(found[name].std(), rel=0.1)


def test_a_weight_depends_on_its_name_alone():
    alone = initial_state(KEY, {"out.weight": (30, 40)})["out.weight"]
    assert_same_bits(alone, of_torch(TorchModel())["out.weight"])
    bound = 40**-0.5
    assert_same_bits(alone, uniform(fold_in(KEY, 0x78C59858), (30, 40), -bound, bound))


def test_norms_count_from_zero():
    model = nn.BatchNorm2d(3)
    model(torch.ones(2, 3, 4, 4))
    torch_room.initialize(model, KEY)
    assert model.num_batches_tracked == 0


def test_what_is_unknown_is_refused():
    model = nn.Sequential(nn.Linear(2, 3), nn.GRU(3, 3))
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"layer '1' is a GRU, whose first numbers are not defined; allowed are"):
        torch_room.initialize(model, KEY)
    for layer in (nn.Bilinear(2, 2, 2), nn.EmbeddingBag(3, 2)):
        with pytest.raises(ValueError, match=rf"the model itself is a {type(layer).__name__}, .* not defined; allowed"):
            torch_room.initialize(layer, KEY)
    with pytest.raises(ValueError, match="key"):
        torch_room.initialize(nn.Linear(1, 1), -1)
    with pytest.raises(ValueError, match="layout in torch is not known"):
        jax_room.initialize(nnx.ConvTranspose(2, 3, (2,), rngs=nnx.Rngs(0)), KEY)
    with pytest.raises(ValueError, match=r"tensors\['weight'\] has shape \(1, 1\); allowed is the model's"):
        jax_room.load_state_dict(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), {"weight": [[1.0]], "bias": [3.0]})
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("wrong", [None, "model", nn.Linear])
def test_what_is_no_model_is_refused(wrong):
    message = rf"model is a {type(wrong).__name__}; allowed is a (torch.nn|flax.nnx).Module"
    for room in (torch_room, jax_room):
        for function in (room.initialize, room.set_key):
            with pytest.raises(TypeError, match=message):
                function(wrong, KEY)
    with pytest.raises(TypeError, match=message):
        jax_room.state_dict(wrong)
    with pytest.raises(TypeError, match="tensors is a NoneType; allowed is a mapping"):
        jax_room.load_state_dict(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), None)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))


def test_layers_of_ones_own_have_numbers_by_their_parameters_names():
    assert_same_bits(of_torch(Own())["weight"], np.ones(3, np.float32))
