"""quantize_dynamic: which layers, by which entries, and what is refused instead of ignored."""

import copy

import pytest
import torch
from torch import nn
from workflow_support import recorded

from qtorch.nn.quantized import dynamic
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization import (
    QConfigDynamic,
    default_dynamic_qconfig,
    float16_dynamic_qconfig,
    from_torch_ao,
    get_default_dynamic_quant_module_mappings,
    per_channel_dynamic_qconfig,
    quantize_dynamic,
    report,
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.lstm = nn.Linear(4, 8), nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))


def kinds(model):
    layers = model.embed, model.lstm, model.head[0], model.head[2]
    return [type(layer).__module__.startswith("qtorch") for layer in layers]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, [True, True, True, True]),
        ({nn.Linear}, [True, False, True, True]),
        ({"head", nn.LSTM}, [False, True, True, True]),
        ({"head.0": default_dynamic_qconfig}, [False, False, True, False]),
        ({nn.Linear: per_channel_dynamic_qconfig, "head.0": None}, [True, False, False, True]),
        ({"": default_dynamic_qconfig, "lstm": None}, [True, False, True, True]),
    ],
)
def test_entries_say_what_is_quantized(spec, expected):
    model = Model()
    result = quantize_dynamic(model, spec)
    assert kinds(result) == expected
    assert kinds(model) == [False] * 4
    assert not result.training
    torch.testing.assert_close(result(X), model(X), rtol=0, atol=0.05)


def test_the_root_dtype_and_place():
    layer = nn.Linear(4, 2)
    assert type(quantize_dynamic(layer)) is dynamic.Linear
    with pytest.raises(ValueError, match="inplace=True cannot put another layer"):
        quantize_dynamic(copy.deepcopy(layer), inplace=True)
    halves = quantize_dynamic(layer, dtype=torch.float16)
    expected = nn.functional.linear(X, layer.weight.half().float(), layer.bias)
    assert torch.equal(halves(X), expected)
    assert torch.equal(quantize_dynamic(layer, {nn.Linear: float16_dynamic_qconfig})(X), expected)
    model = Model()
    assert quantize_dynamic(model, inplace=True) is model
    assert kinds(model) == [True] * 4


def test_any_format_is_a_weight():
    model = quantize_dynamic(Model(), {nn.Linear: QConfigDynamic(weight="mxfp4")})
    assert type(model.embed) is RoundedLayer
    torch.testing.assert_close(model(X), Model()(X), rtol=0, atol=0.3)


def test_a_mapping_of_ones_own():
    class Mine(nn.Module):
        @classmethod
        def from_float(cls, module):
            return cls()

    class Derived(nn.Linear):
        pass

    model = nn.Sequential(Derived(1, 1), nn.Linear(1, 1))
    mapping = get_default_dynamic_quant_module_mappings() | {Derived: Mine}
    assert type(quantize_dynamic(model, {Derived}, mapping=mapping)[0]) is Mine


def test_embeddings_are_quantized_where_they_are_named():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    indices = torch.arange(9)
    assert type(quantize_dynamic(model)[0]) is nn.Embedding
    result = quantize_dynamic(model, {nn.Embedding: per_channel_dynamic_qconfig})
    torch.testing.assert_close(result(indices), model(indices), rtol=0, atol=0.05)
    assert report(result)["0"].weight == "affine(-128,127) per channel"


def test_the_report_names_weights():
    rows = report(quantize_dynamic(Model(), {nn.Linear}))
    assert (rows["embed"].state, rows["embed"].weight) == ("quantized", "affine(-128,127)")
    assert (rows["lstm"].state, rows["lstm"].reason) == ("float", "its qconfig is None")


@pytest.mark.parametrize("name", ["int8", "float16"])
def test_state_dicts_of_torch_ao_load(name):
    saved = recorded(f"dynamic_{name}")
    head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))
    model = quantize_dynamic(head, dtype=torch.qint8 if name == "int8" else torch.float16)
    missing, unexpected = model.load_state_dict(from_torch_ao(saved["state"]), strict=False)
    assert (missing, unexpected) == ([], [])
    torch.testing.assert_close(model(saved["input"].flatten(1)), saved["output"], rtol=1e-5, atol=1e-5)
