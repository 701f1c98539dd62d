"""What code of models asks of its layers: attributes, dtypes, parameters, arguments and strides of the float layers."""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtorch.nn.intrinsic import ConvReLU1d
from qtorch.quantization import QConfig, default_dynamic_qconfig, quantize_model, report

INT8, FORMATS, WEIGHTS = None, QConfig("e4m3fn", "e4m3fn"), QConfig(None, "mxfp8_e4m3")
SETTINGS = {"int8": INT8, "formats": FORMATS, "weights": WEIGHTS, "dynamic": default_dynamic_qconfig}


def quantized(model, settings, x):
    with warnings.catch_warnings():  # of layers that dynamic settings leave in floats
        warnings.simplefilter("ignore")
        return quantize_model(model.eval(), settings, None if settings is default_dynamic_qconfig else [x])


def public(layer):
    return {name for name in vars(layer) if not name.startswith("_")}


class Attributes(nn.Module):
    """Each layer is asked for what its float form has, as Whisper's encoder asks `self.conv.stride`."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.up = nn.Conv1d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose1d(8, 4, 2)
        self.fc, self.norm, self.table = nn.Linear(4, 6), nn.LayerNorm(6), nn.Embedding(3, 6)
        self.fc.note = "my own"
        self.asked = {
            name: public(layer) for name, layer in self.named_children() if next(layer.parameters(), None) is not None
        }

    def forward(self, x):
        assert (self.conv.stride, self.fc.note, self.conv.weight.dtype) == ((2,), "my own", x.dtype)
        for name, asked in self.asked.items():
            assert not [one for one in asked if not hasattr(getattr(self, name), one)]
        return self.norm(self.fc(self.up(self.act(self.conv(x))).transpose(1, 2))) + self.table(torch.tensor([1]))


@pytest.mark.parametrize("name", SETTINGS)
def test_layers_have_the_attributes_of_float_layers(name):
    model, x = Attributes(), torch.randn(2, 4, 8)
    small = quantized(model, SETTINGS[name], x)
    assert any(row.state in ("quantized", "rounded") for row in report(small))
    assert small(x).shape == model(x).shape


def test_layers_have_the_attributes_in_training_and_recurrent_ones_too():
    x = torch.randn(2, 4, 8)
    assert quantize_model(Attributes(), train=lambda model: model(x))(x).shape == (2, 5, 6)
    rnn = nn.LSTM(4, 3, batch_first=True)
    small = quantized(rnn, default_dynamic_qconfig, None)
    assert not [one for one in public(rnn) if not hasattr(small, one)]
    assert ConvReLU1d(nn.Conv1d(1, 2, 3, stride=2), nn.ReLU()).stride == (2,)


class Borrowed(nn.Module):
    """Functions that take weights and biases of layers, as Mamba's convolution does."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv1d(4, 4, 3, groups=4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x):
        x = F.conv1d(x, self.conv.weight, self.conv.bias, groups=4) + self.conv(x)
        x = F.layer_norm(x.transpose(1, 2), (4,), self.norm.weight, self.norm.bias)
        return self.fc(self.norm(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", SETTINGS)
def test_weights_and_biases_have_the_dtype_of_the_model(name, dtype):
    torch.manual_seed(0)
    model, x = Borrowed().to(dtype).eval(), torch.randn(2, 4, 9).to(dtype)
    small = quantized(model, SETTINGS[name], x)
    y = small(x)
    assert (y.dtype, small.fc.bias.dtype, small.conv.bias.dtype) == (dtype,) * 3
    assert ((y - model(x)).float().norm() / model(x).float().norm()) < 0.1
    assert torch.float32 in {one.dtype for name, one in small.state_dict().items() if name.endswith("bias")}
    # A bias in 16 bits is computed with in float32, and has the same numbers there.
    wide = quantized(model.float(), SETTINGS[name], x.float())
    assert torch.equal(small.fc.bias.float(), wide.fc.bias)


class Whole(nn.Module):
    """All layers with parameters are quantized."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 2, bias=False)

    def forward(self, x):
        first = next(self.parameters())
        return self.fc(self.norm(x.to(first.device, first.dtype)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_model_without_floats_says_its_dtype_and_device(name, dtype):
    x = torch.randn(4, 8)
    small = quantized(Whole().to(dtype), SETTINGS[name], x)
    first = next(small.fc.parameters())
    assert (first.dtype, first.device, first.requires_grad) == (dtype, torch.device("cpu"), False)
    assert small(x).dtype is dtype
    assert not [name for name in small.state_dict() if "stands_for" in name]
    again = quantized(Whole().to(dtype), SETTINGS[name], x)
    again.load_state_dict(small.state_dict())
    assert torch.equal(again(x), small(x))
    assert next(small.to("meta").fc.parameters()).is_meta


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.fc = nn.Conv2d(3, 8, 3, 2, 1), nn.ConvTranspose2d(8, 3, 3, 2, 1), nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(input=self.up(output_size=x.shape[-2:], input=self.down(x)))


@pytest.mark.parametrize("name", SETTINGS)
def test_further_and_named_arguments_pass(name):
    torch.manual_seed(0)
    model, x = Up().eval(), torch.randn(2, 3, 8, 8)
    y = quantized(model, SETTINGS[name], x)(x)
    assert y.shape == (2, 3, 8, 2)
    assert (y - model(x)).norm() / model(x).norm() < 0.15


def test_indices_of_tables_are_called_input():
    table = quantized(nn.Embedding(4, 2), {"": default_dynamic_qconfig}, None)
    assert table(input=torch.tensor([1])).shape == (1, 2)


def complex_view(x):
    return torch.view_as_real(torch.view_as_complex(x.view(len(x), 4, -1, 2))).view(len(x), -1)


@pytest.mark.parametrize("view", [lambda x: x.view(len(x), -1), lambda x: torch.relu(x).view(len(x), -1), complex_view])
def test_views_behind_a_convolution(view):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 2)

        def forward(self, x):
            return self.fc(view(self.conv(x)))

    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 1, 8, 8)
    small = quantize_model(model, calibrate=[x])
    assert (small(x) - model(x)).norm() / model(x).norm() < 0.1


class Window(nn.Module):
    """Swin's attention: a container whose code uses a parameter of its own, and layers."""

    def __init__(self):
        super().__init__()
        self.table, self.qkv = nn.Parameter(torch.randn(4, 4)), nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.transpose(-1, -2) + self.table).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.fc = nn.LayerNorm(8), Window(), nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x + self.attention(self.norm(x)))


def test_a_container_hands_integers_to_its_layers():
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(2, 4, 8)
    with pytest.warns(UserWarning, match=r"layer 'attention' \(Window\): code of its own uses its table"):
        small = quantize_model(model, calibrate=[x])
    assert (small(x) - model(x)).norm() / model(x).norm() < 0.2


class Config:
    pass


class PreTrainedModel(nn.Module):
    """As transformers' base class, of which the workflow knows the name only."""

    _tied_weights_keys = None

    def __init__(self):
        super().__init__()
        self.config, self.table, self.head = Config(), nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.table(x))


@pytest.mark.parametrize("name", SETTINGS)
def test_models_of_transformers_say_that_they_are_quantized_and_what_they_tie(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", SimpleNamespace(PreTrainedModel=PreTrainedModel))
    model, x = PreTrainedModel(), torch.tensor([[1, 2]])
    small = quantized(model, SETTINGS[name], x)
    # from_pretrained raises for a configuration without quant_method, and takes any other for floats.
    assert small.config.quantization_config.keys() == {"quantized_by", "to_load"}
    assert not hasattr(model.config, "quantization_config")
    state = small.state_dict()
    tied = small._tied_weights_keys or {}
    assert tied.keys() == {key for key in state if key.startswith("head") and "weight" in key and name != "dynamic"}
    assert all(state[key].data_ptr() == state[first].data_ptr() for key, first in tied.items())
