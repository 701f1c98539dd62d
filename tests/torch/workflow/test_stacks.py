"""Stacks of matrices, such as the experts of a mixture, in layers of classes of their own."""

import re

import pytest
import torch
from support import assert_same_bits
from torch import nn

import qtorch
from qtorch.quantization import QConfig, get_default_qconfig, load_converted, quantize_model, report


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(4, 64, 32)), nn.Parameter(torch.randn(4, 32, 64))
        self.place = nn.Parameter(torch.randn(1, 3, 32))  # is no stack

    def forward(self, x, chosen):
        rows = [torch.relu(row @ self.up[k].T) @ self.down[int(k)].T for row, k in zip(x, chosen, strict=True)]
        return torch.stack(rows) + self.place[0, 0]


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.experts = nn.Linear(32, 4), Experts()

    def forward(self, x):
        return x + self.experts(x, self.gate(x).argmax(1))


@pytest.mark.parametrize("number", ["mxfp4", "nvfp4", "e4m3fn", "nf4(block=64,nested=256)", "gguf(q8_0)", "block(8)"])
def test_formats_for_weights_alone(number):
    model, settings, x = Mixture().eval(), QConfig(None, number), torch.randn(5, 32)
    small = quantize_model(model, settings)
    held, expected = small.experts, Mixture().eval()
    for name in ("up", "down"):
        rounded = qtorch.quantize(getattr(model.experts, name).detach(), held.up.number)
        assert_same_bits(getattr(held, name).numbers(), rounded)
        for index in (0, 3, -1, torch.tensor(2)):
            assert_same_bits(getattr(held, name)[index], rounded[index])
        getattr(expected.experts, name).data = rounded
    assert isinstance(held.place, nn.Parameter)
    expected.gate.weight.data = small.gate.weight()
    assert_same_bits(small(x), expected(x))
    again = Mixture().eval()
    again.qconfig = settings
    assert_same_bits(load_converted(again, small.state_dict())(x), small(x))


def test_reports():
    small = quantize_model(Mixture().eval(), QConfig(None, "mxfp4"))
    row = next(row for row in report(small) if row.path == "experts")
    assert (row.state, row.weight, row.bits) == ("quantized", "mxfp4", 4)


def test_other_settings_have_the_remedy():
    with pytest.warns(UserWarning, match=re.escape('QConfig(None, "mxfp4") or another format stores its up, down')):
        quantize_model(Mixture().eval(), get_default_qconfig(), calibrate=[torch.randn(5, 32)])
