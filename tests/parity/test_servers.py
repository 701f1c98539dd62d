"""Files for servers from JAX are PyTorch's, byte for byte."""

import json

import jax.numpy as jnp
import pytest
import torch
from carrying_support import tensors_of
from flax import nnx
from flax_support import module_of
from safetensors.torch import load_file
from support import assert_same_bits, assert_same_trees
from torch import nn

import qjax.export
import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.export
import qtorch.quantization as tq
from qcore import BlockScaled

ROWS = BlockScaled("e4m3fn", {-1: None}, scale="float32")
SETTINGS = {
    "W4A16": lambda package: package.QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")),
    "W8A16": lambda package: package.QConfig(None, package.default_weight_observer),
    "W8A8": lambda package: package.QConfigDynamic(weight=package.default_per_channel_weight_observer),
    "W8A8 static": lambda package: package.get_default_qconfig(),
    "FP8": lambda package: package.QConfigDynamic(ROWS, ROWS),
    "FP8 static": lambda package: package.QConfig("e4m3fn", "e4m3fn"),
}
IDS = torch.arange(10)


class Torch(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(10, 64), nn.LayerNorm(64)
        self.up, self.act, self.down = nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64, bias=False)
        self.head = nn.Linear(64, 10)

    def forward(self, ids):
        return self.head(self.down(self.act(self.up(self.norm(self.embed(ids))))))


class Flax(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed, self.norm = nnx.Embed(10, 64, rngs=rngs), nnx.LayerNorm(64, epsilon=1e-5, rngs=rngs)
        self.up, self.down = nnx.Linear(64, 96, rngs=rngs), nnx.Linear(96, 64, use_bias=False, rngs=rngs)
        self.act, self.head = qnn.ReLU(), nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, ids):
        return self.head(self.down(self.act(self.up(self.norm(self.embed(ids))))))


def config(folder):
    """A configuration; the order of groups and of their layers is that of the model."""
    found = json.loads((folder / "config.json").read_text())
    groups = found["quantization_config"].pop("config_groups").values()
    return found, sorted(json.dumps(one | {"targets": sorted(one["targets"])}) for one in groups)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.heavy if one not in ("W4A16", "W8A8") else ()) for one in SETTINGS]
)
def test_files_are_equal(name, tmp_path):
    in_torch, in_jax = ([batch] if "static" in name else None for batch in (IDS, jnp.asarray(IDS.numpy())))
    floats, off = Torch().eval(), {"head": None, "embed": None}
    small = tq.quantize_model(floats, {"": SETTINGS[name](tq)} | off, calibrate=in_torch)
    own = qnn.quantize_model(
        qnn.from_torch(module_of(Flax), tensors_of(floats)), {"": SETTINGS[name](jq)} | off, calibrate=in_jax
    )
    qtorch.export.to_compressed_tensors(small, tmp_path / "torch", in_torch)
    qjax.export.to_compressed_tensors(own, tmp_path / "jax", in_jax)
    assert config(tmp_path / "torch") == config(tmp_path / "jax")
    expected, found = (load_file(tmp_path / package / "model.safetensors") for package in ("torch", "jax"))
    if name == "FP8 static":  # that of a norm in floats, whose sums have another order
        del expected["up.input_scale"]
        scale = own.norm.activation_post_process.scale[...]
        assert_same_bits(found.pop("up.input_scale"), scale)
    assert_same_trees(
        {key: x.view(torch.uint8) for key, x in found.items()},
        {key: x.view(torch.uint8) for key, x in expected.items()},
    )


def test_layers_are_named():
    rngs = nnx.Rngs(0)
    small = qnn.quantize_model(nnx.Sequential(nnx.Linear(4, 4, rngs=rngs)), jq.QConfig(None, "mxfp4"))
    with pytest.raises(ValueError, match=r"layer '0': its weight is mxfp4; allowed are int2 to int8"):
        qjax.export.to_compressed_tensors(small, "folder")
    with pytest.raises(ValueError, match="model has no quantized linear layer"):
        qjax.export.to_compressed_tensors(nnx.Linear(2, 2, rngs=rngs), "folder")
