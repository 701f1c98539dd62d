"""Models for servers: what the files say, read by our reader of compressed-tensors; tests/peers has the owner's."""

import json

import pytest
import torch
from support import assert_same_bits
from torch import nn

from qcore import BlockScaled
from qtorch.exchange import load_quantized
from qtorch.export import to_compressed_tensors
from qtorch.quantization import (
    QConfig,
    QConfigDynamic,
    default_per_channel_weight_observer,
    default_weight_observer,
    get_default_qconfig,
    quantize_model,
)

ROWS = BlockScaled("e4m3fn", {-1: None}, scale="float32")
INTEGERS, DYNAMIC = {"type": "int", "num_bits": 8}, {"dynamic": True, "symmetric": True}
CASES = {  # settings, the format, what the scheme says of weights, and of inputs
    "W4A16": (
        QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")),
        "pack-quantized",
        {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32},
        None,
    ),
    "W3A16": (
        QConfig(None, BlockScaled("int3", {-1: 32}, scale="float32")),
        "pack-quantized",
        {"type": "int", "num_bits": 3, "strategy": "group"},
        None,
    ),
    "W8A16": (QConfig(None, default_weight_observer), "pack-quantized", INTEGERS | {"strategy": "tensor"}, None),
    "W8A8": (
        QConfigDynamic(weight=default_per_channel_weight_observer),
        "int-quantized",
        INTEGERS | {"strategy": "channel"},
        INTEGERS | DYNAMIC | {"strategy": "token"},
    ),
    "W8A8 formats": (
        QConfigDynamic(*[BlockScaled("int8", {-1: None}, scale="float32")] * 2),
        "int-quantized",
        INTEGERS | {"strategy": "channel"},
        INTEGERS | DYNAMIC | {"strategy": "token"},
    ),
    "W8A8 static": (
        get_default_qconfig(),
        "int-quantized",
        INTEGERS | {"strategy": "channel"},
        INTEGERS | {"dynamic": False, "symmetric": False, "strategy": "tensor"},
    ),
    "FP8 weights": (QConfig(None, "e4m3fn"), "float-quantized", {"type": "float", "strategy": "tensor"}, None),
    "FP8": (
        QConfigDynamic(ROWS, ROWS),
        "float-quantized",
        {"type": "float", "num_bits": 8, "strategy": "channel"},
        DYNAMIC | {"type": "float", "strategy": "token"},
    ),
    "FP8 static": (
        QConfig("e4m3fn", "e4m3fn"),
        "float-quantized",
        {"type": "float", "strategy": "tensor"},
        {"type": "float", "dynamic": False, "strategy": "tensor"},
    ),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(10, 64), nn.LayerNorm(64)
        self.up, self.down, self.head = nn.Linear(64, 96), nn.Linear(96, 64, bias=False), nn.Linear(64, 10)

    def forward(self, ids):
        return self.head(self.down(torch.relu(self.up(self.norm(self.embed(ids))))))


def convolution():
    return nn.Sequential(nn.Conv2d(1, 1, 1))


def inner(layer):
    return getattr(layer, "module", layer)


@pytest.mark.parametrize("name", CASES)
def test_files(name, tmp_path):
    settings, kind, weights, inputs = CASES[name]
    data = [torch.arange(10)] if "static" in name else None
    small = quantize_model(Net().eval(), {"": settings, "head": None}, calibrate=data)
    to_compressed_tensors(small, tmp_path, data)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["format"], config["ignore"]) == ("compressed-tensors", kind, ["head"])
    scheme = config["config_groups"]["group_0"]
    assert (scheme["targets"], len(config["config_groups"])) == (["Linear"], 1)
    assert scheme["weights"].items() >= weights.items()
    if inputs is None:
        assert scheme["input_activations"] is None
    else:
        assert scheme["input_activations"].items() >= inputs.items()
    found = load_quantized(tmp_path)
    for path in ("up", "down"):
        assert_same_bits(found[f"{path}.weight"].dequantize(), inner(small.get_submodule(path)).weight.numbers())
    assert_same_bits(found["head.weight"], Net().head.weight.detach())
    assert_same_bits(found["up.bias"], Net().up.bias.detach())
    names = {name for name in found if not name.endswith(("input_scale", "input_zero_point"))}
    assert names == set(Net().state_dict())
    if name == "W8A8 static":  # the integers of what comes in, moved from quint8 to int8
        stub = small.up.quant if hasattr(small.up, "quant") else small.norm.module
        assert_same_bits(found["up.input_scale"], stub.scale.reshape(1))
        assert found["up.input_zero_point"].tolist() == [int(stub.zero_point) - 128]
    if name == "FP8 static":  # the scale to which the norm's results were rounded
        assert_same_bits(found["up.input_scale"], small.norm.activation_post_process.scale.reshape(1))


def test_a_table_that_is_the_last_matrix_is_written_once_more_as_numbers(tmp_path):
    model = Net().eval()
    model.head.weight = model.embed.weight
    small = quantize_model(model, QConfig(None, "e4m3fn"))
    to_compressed_tensors(small, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    found = load_quantized(tmp_path)
    assert config["ignore"] == ["head"]
    assert_same_bits(found["head.weight"], found["embed.weight"])


def test_two_schemes_name_their_layers(tmp_path):
    one, other = CASES["W4A16"][0], CASES["FP8 weights"][0]
    to_compressed_tensors(quantize_model(Net().eval(), {"up": one, "down": other}), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    assert [group["targets"] for group in config["config_groups"].values()] == [["up"], ["down"]]


@pytest.mark.parametrize(
    ("make", "settings", "data", "words"),
    [
        (
            Net,
            QConfig(None, "nf4(block=64)"),
            None,
            "'up': its weight is nf4(block=64); allowed are int2 to int8",
        ),
        (Net, QConfig("e4m3fn", "e4m3fn"), torch.arange(10), "layer 'up': the scale of its input is not known"),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 1, 1)),
            get_default_qconfig(),
            torch.ones(1, 1, 2, 2),
            "Conv2d in integers",
        ),
        (Net, QConfig(None, BlockScaled("int4", {-1: 48}, scale="float32")), None, "'up': its blocks of 1 x 48"),
        (Net, None, None, "no quantized linear layer"),
    ],
)
def test_what_compressed_tensors_lacks(make, settings, data, words, tmp_path):
    model = make().eval()
    if settings is not None:
        model = quantize_model(model, settings, calibrate=None if data is None else [data])
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        to_compressed_tensors(model, tmp_path)
