"""Models on the device meta, which have shapes and no numbers, can be looked at."""

import copy

import pytest
import torch
from torch import nn

import qtorch
from qtorch import quantization as q
from qtorch import recipes

X = torch.linspace(-1, 1, 128).reshape(4, 32)


def trained(model):
    model = copy.deepcopy(model).train()
    model.qconfig = q.get_default_qat_qconfig()
    model = q.prepare_qat(model)
    model(X)
    return model


KINDS = {
    "static": lambda model: q.quantize_model(model, q.get_default_qconfig(), calibrate=[X]),
    "dynamic": q.quantize_dynamic,
    "trained": trained,
    "formats": lambda model: q.quantize_model(model, q.QConfig("e4m3fn", "e4m3fn"), calibrate=[X]),
    "weights": lambda model: q.quantize_model(model, q.QConfig(None, "nf4(block=64)")),
    "lowered": lambda model: recipes.lower(model, qtorch.RECIPES["fp8_delayed"]),
    "quantizer": lambda _: nn.Sequential(qtorch.quant.Quantizer("e4m3fn")),
    "observers": lambda _: nn.Sequential(q.MinMaxObserver(), q.HistogramObserver(), q.FakeQuantize()),
}


@pytest.mark.parametrize("name", KINDS)
def test_models_are_shown(name):
    torch.manual_seed(0)
    model = KINDS[name](nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))).to("meta")
    assert all(repr(module) for module in model.modules())
    if name not in ("lowered", "quantizer", "observers"):
        assert str(q.report(model))


def test_tensors_are_shown():
    x = q.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).to("meta")
    assert repr(x) == "QTensor(meta, size=(2,), dtype=torch.qint8, scale=meta, zero_point=meta)"
