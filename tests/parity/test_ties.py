"""Matrices that layers share are stored once in quantized models, unless the layers part."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx
from support import assert_same_bits
from torch import nn

import qjax
from qtorch.quantization import (
    QConfig,
    QConfigDynamic,
    default_per_channel_weight_observer,
    load_converted,
    quantize_model,
)

ROWS, WIDTH = 64, 32
CHANNELS = QConfigDynamic(weight=default_per_channel_weight_observer)
SETTINGS = {
    "integers": QConfig(None, default_per_channel_weight_observer),
    "codes": QConfig(None, "mxfp4"),
    "bytes": QConfig(None, "gguf(q8_0)"),
    "both": QConfig("e4m3fn", "e4m3fn"),
    "dynamic": {"": CHANNELS, nn.Embedding: CHANNELS},
}


class Language(nn.Module):
    """A table that is the last matrix, too."""

    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.relu(self.body(self.embed(ids))))


def held(model):
    """Bytes of all memory that a state_dict has."""
    storages = (value.untyped_storage() for value in model.state_dict().values())
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def made(settings, model=None):
    torch.manual_seed(0)
    model, ids = model or Language().eval(), torch.arange(8)
    small = quantize_model(model, settings, calibrate=[ids] if settings is SETTINGS["both"] else None)
    return small, small(ids), ids


def parted(model):
    model.head.weight = nn.Parameter(model.embed.weight.detach() * 1.5)
    return model


@pytest.mark.parametrize("name", SETTINGS)
def test_one_matrix(name):
    settings = SETTINGS[name]
    (small, y, ids), (apart, _, _) = made(settings), made(settings, parted(Language()).eval())
    assert held(apart) - held(small) >= ROWS * WIDTH // 2
    names = [name for name in small.state_dict() if name.startswith(("embed", "head"))]
    assert {name.split(".")[0] for name in names} == {"embed", "head"}
    for again in (copy.deepcopy(small), pickle.loads(pickle.dumps(small)), small.to(torch.float32)):
        assert held(again) == held(small)
        assert_same_bits(again(ids), y)


@pytest.mark.parametrize("name", ["integers", "codes"])
def test_loading(name):
    """A tied model takes the state of a tied one, and of one whose layers parted."""
    for first, shared in ((Language(), True), (parted(Language()), False)):
        small, y, ids = made(SETTINGS[name], first.eval())
        model = Language()
        model.qconfig = SETTINGS[name]
        loaded = load_converted(model, small.state_dict())
        assert_same_bits(loaded(ids), y)
        assert (held(loaded) == held(small)) == shared or not shared


class Pair(nnx.Module):
    """Two products with one kernel."""

    def __init__(self):
        self.first, self.second = (nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(seed)) for seed in (0, 1))
        self.second.kernel = self.first.kernel

    def __call__(self, x):
        return self.second(jax.nn.relu(self.first(x)))


def test_jax():
    """The first product is fused with its ReLU."""
    settings, x, model = qjax.quantization.QConfig("e4m3fn", "e4m3fn"), jnp.ones((2, WIDTH)), Pair()
    small = qjax.nnx.quantize_model(model, settings, calibrate=[x])
    assert small.first.weight is small.second.weight
    model.second.kernel = nnx.Param(model.second.kernel[...] * 1.5)
    apart = qjax.nnx.quantize_model(model, qjax.quantization.QConfig(None, "mxfp4"))
    assert apart.first.weight is not apart.second.weight
