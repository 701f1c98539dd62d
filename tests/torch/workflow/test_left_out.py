"""Settings of parts of models, and layers that stay in floats."""

import torch
from torch import nn

from qtorch.nn import quantized
from qtorch.quantization import (
    QuantWrapper,
    convert,
    get_default_qconfig,
    prepare,
)


def test_nested_settings_and_layers_that_are_left_out():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.drop, self.fc2 = nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16)

        def forward(self, x):
            return self.fc2(self.drop(self.fc1(x)))

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = QuantWrapper(Block()), Block(), nn.Linear(16, 2)

        def forward(self, x):
            return self.last(self.second(self.first(x)))

    torch.manual_seed(0)
    model, x = Nested().eval(), torch.randn(64, 16)
    model.first.qconfig = get_default_qconfig("qnnpack")
    model.first.module.fc2.qconfig = get_default_qconfig("fbgemm")
    prepared = prepare(model)
    assert prepared.first.module.fc1.activation_post_process.quant_max == 255
    assert prepared.first.module.fc2.activation_post_process.quant_max == 127
    assert not hasattr(prepared.second.fc1, "activation_post_process")
    prepared(x)
    result = convert(prepared)
    assert type(result.first.module.fc1) is quantized.Linear
    assert result.first.module.fc2.weight.axis == 0
    assert type(result.last) is type(result.second.fc1) is nn.Linear
    torch.testing.assert_close(result(x), model(x), rtol=0, atol=0.05)
