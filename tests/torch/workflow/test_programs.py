"""Converted models as one graph: torch.compile(fullgraph=True) and torch.export, with the same bits."""

import pytest
import torch
from support import assert_same_bits
from torch import nn
from workflow_support import with_qconfig

from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import DeQuantStub, QuantStub, convert, get_default_qconfig, prepare, quantize_dynamic


class Mixed(nn.Module):
    """Static convolutions, a sum and a linear layer, and a dynamic one behind them."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant, self.add = QuantStub(), DeQuantStub(), FloatFunctional()
        self.conv, self.side, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(1, 4, 1), nn.Linear(64, 8)
        self.head = nn.Linear(8, 3)
        self.head.qconfig = None

    def forward(self, x):
        x = self.quant(x)
        x = self.add.add_relu(self.conv(x), self.side(x))
        return self.head(self.dequant(self.fc(torch.flatten(x, 1))))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    prepared = prepare(with_qconfig(Mixed().eval(), get_default_qconfig("fbgemm")))
    prepared(torch.randn(64, 1, 4, 4))
    return quantize_dynamic(convert(prepared), {"head"})


X = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.heavy)])
def test_compiled_in_one_graph(model, backend):
    with torch.no_grad():
        assert_same_bits(torch.compile(model, fullgraph=True, backend=backend)(X), model(X))


def test_exported(model):
    program = torch.export.export(model, (X,))
    with torch.no_grad():
        assert_same_bits(program.module()(X), model(X))
        assert_same_bits(program.module()(3 * X), model(3 * X))
    assert {"conv.weight.int_repr", "head.weight.int_repr"} <= program.state_dict.keys()
