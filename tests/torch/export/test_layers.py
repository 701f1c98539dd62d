"""Each quantized layer in ONNX: onnxruntime has its integers. One model has several layers, as exports take time."""

import pytest
import torch
from export_support import check, operators
from torch import nn

import qtorch.nn.intrinsic as nni
from qcore.affine import AffineInteger
from qtorch.nn import quantized
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QuantStub,
    convert,
    prepare,
    quantize_dynamic,
)

PER_CHANNEL = PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_affine, ch_axis=0)
SETTINGS = {
    "uint8": QConfig(
        MinMaxObserver.with_args(dtype=torch.quint8),
        PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric),
    ),
    "zero points everywhere": QConfig(MinMaxObserver.with_args(dtype=torch.qint8), PER_CHANNEL),
    "4 bits": QConfig(
        MinMaxObserver.with_args(dtype=AffineInteger(0, 15)), MinMaxObserver.with_args(dtype=AffineInteger(-8, 7))
    ),
    "16 bits": QConfig(
        MinMaxObserver.with_args(dtype=AffineInteger.of_width(16, False)),
        MinMaxObserver.with_args(dtype=AffineInteger.of_width(16)),
    ),
}


class Between(nn.Module):
    """Layers between stubs; each of them sees the same input."""

    def __init__(self, *layers):
        super().__init__()
        self.quant, self.layers = QuantStub(), nn.ModuleList(layers)
        self.dequant = nn.ModuleList(DeQuantStub() for _ in layers)

    def forward(self, x):
        x = self.quant(x)
        return tuple(leave(layer(x)) for layer, leave in zip(self.layers, self.dequant, strict=True))


class Functions(nn.Module):
    """All methods of `FloatFunctional`, and functions of torch on quantized tensors."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        names = "add", "add_relu", "mul", "mul_relu", "matmul", "einsum", "cat"
        self.made = nn.ModuleDict({f"f_{name}": FloatFunctional() for name in names})
        self.scalars = FloatFunctional()

    def forward(self, x):
        x = self.quant(x)
        y = x.flip(-1)
        made = [getattr(self.made[f"f_{name}"], name)(x, y) for name in ("add", "add_relu", "mul", "mul_relu")]
        made += [self.made.f_matmul.matmul(x, y.transpose(-1, -2)), self.made.f_cat.cat([x, y], 1)]
        made += [self.made.f_einsum.einsum("bcij,bckj->bik", x, y)]
        made += [self.scalars.add_scalar(x, 0.7), self.scalars.mul_scalar(x, -1.3)]
        made += [torch.relu(x), nn.functional.max_pool2d(x, 2), nn.functional.adaptive_avg_pool2d(x, 2), x.mean((2, 3))]
        made += [nn.functional.interpolate(x, scale_factor=2, mode="bilinear"), nn.functional.avg_pool2d(x, 3, 2, 1)]
        made += [x.permute(0, 2, 3, 1).reshape(2, -1), nn.functional.hardtanh(x, -0.5, 0.5), torch.sigmoid(x)]
        return tuple(self.dequant(one) for one in made)


def images(*sizes):
    return torch.randn(2, 4, *sizes, generator=torch.Generator().manual_seed(3))


MODELS = {
    "convolutions": lambda: (
        Between(
            nn.Conv2d(4, 6, 3, padding=1, stride=2),
            nn.Conv2d(4, 8, (3, 2), dilation=(1, 2), groups=2, bias=False),
            nn.Conv2d(4, 4, 3, padding=1, groups=4),
            *(nn.Conv2d(4, 5, 3, padding=(2, 1), padding_mode=mode) for mode in ("reflect", "replicate", "circular")),
            nn.Conv2d(4, 4, 3, padding="same"),
            nni.ConvReLU2d(nn.Conv2d(4, 6, 3), nn.ReLU()),
        ),
        images(7, 6),
    ),
    "rows": lambda: (
        Between(
            nn.Conv1d(4, 6, 3, padding=1),
            nn.Conv1d(4, 4, 2, stride=2, groups=2),
            nni.ConvReLU1d(nn.Conv1d(4, 6, 3), nn.ReLU()),
            nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1),
            nn.InstanceNorm1d(4, affine=True),
        ),
        images(9),
    ),
    "volumes": lambda: (
        Between(
            nn.Conv3d(4, 6, 2, padding=1),
            nni.ConvReLU3d(nn.Conv3d(4, 6, 2), nn.ReLU()),
            nn.ConvTranspose3d(4, 3, 2, stride=2),
            nn.BatchNorm3d(4),
            nni.BNReLU3d(nn.BatchNorm3d(4), nn.ReLU()),
            nn.InstanceNorm3d(4, affine=True),
        ),
        images(4, 3, 5),
    ),
    "transposed": lambda: (
        Between(
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
            nn.ConvTranspose2d(4, 6, 2, groups=2, dilation=2),
        ),
        images(5, 4),
    ),
    "linear": lambda: (
        Between(nn.Linear(6, 5), nn.Linear(6, 7, bias=False), nni.LinearReLU(nn.Linear(6, 5), nn.ReLU())),
        images(5, 6),
    ),
    "activations": lambda: (
        Between(nn.ReLU(), nn.ReLU6(), nn.ELU(), nn.Hardswish(), nn.LeakyReLU(), nn.PReLU(4), nn.Sigmoid()),
        2 * images(5, 6),
    ),
    "norms": lambda: (
        Between(
            nn.BatchNorm2d(4),
            nni.BNReLU2d(nn.BatchNorm2d(4), nn.ReLU()),
            nn.LayerNorm(6),
            nn.GroupNorm(2, 4),
            nn.InstanceNorm2d(4, affine=True),
            nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2)),
        ),
        images(5, 6),
    ),
    "functions": lambda: (Functions(), images(6, 6)),
}


# An export takes seconds: ordinary runs have one list of layers; whole networks have other integers (test_onnx.py).
QUICK = {("convolutions", "zero points everywhere")}
CASES = [
    pytest.param(name, settings, marks=[] if (name, settings) in QUICK else pytest.mark.heavy)
    for name in MODELS
    for settings in SETTINGS
]


# `convert` leaves torch's own ReLUs, which take quantized tensors.
ACTIVATIONS = nn.Sequential(
    quantized.Quantize(0.1, 120), quantized.ReLU(), quantized.MaxPool2d(2), quantized.ReLU6(), quantized.DeQuantize()
)


def converted(name, settings):
    """A model of the table in integers, and its input."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    norms = [layer for layer in model.modules() if "Norm" in type(layer).__name__]
    for one in (one for layer in norms for one in (*layer.parameters(), *layer.buffers()) if one.is_floating_point()):
        one.data.uniform_(0.2, 1.4)  # not zeros and ones
    model.eval().qconfig = SETTINGS[settings]
    with torch.no_grad():
        prepared = prepare(model)
        prepared(x)
        return convert(prepared), x


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_static_layers(name, settings, tmp_path):
    model, x = converted(name, settings)
    check(model, (x,), tmp_path)


def table(dtype):
    model = nn.Sequential(nn.Embedding(10, 4))
    observer = PerChannelMinMaxObserver.with_args(dtype=dtype, qscheme=torch.per_channel_affine)
    model.qconfig = QConfig(nn.Identity, observer)
    return convert(prepare(model.eval()))


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8])
def test_tables(dtype, tmp_path):
    check(table(dtype), (torch.tensor([[1, 0, 9], [3, 3, 2]]),), tmp_path)


class First(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args):
        return self.layer(*args)[0]


DYNAMIC = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (4, 6)),
    "lstm": (lambda: First(nn.LSTM(6, 5, bidirectional=True)), (3, 2, 6)),
    "gru": (lambda: First(nn.GRU(6, 5, 2, batch_first=True)), (2, 3, 6)),
    "lstm cell": (lambda: First(nn.LSTMCell(6, 5)), (2, 6)),
    "linear with relu": (lambda: nn.Sequential(nni.LinearReLU(nn.Linear(6, 5), nn.ReLU())), (4, 6)),
    "gru cell": (lambda: nn.Sequential(nn.GRUCell(6, 5)), (2, 6)),
    "rnn cell": (lambda: nn.Sequential(nn.RNNCell(6, 5)), (2, 6)),
}
QUICK_DYNAMIC = ("gru cell",)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in QUICK_DYNAMIC else pytest.mark.heavy) for one in DYNAMIC]
)
def test_dynamic_layers(name, tmp_path):
    """All bits are equal, also those of floats, and for tiny ranges."""
    torch.manual_seed(0)
    make, shape = DYNAMIC[name]
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    made, _ = check(quantize_dynamic(make().eval()), (x,), tmp_path, others=[(x * 1e-5,), (0 * x,), (100 * x - 7,)])
    assert "MatMulInteger" in operators(made)


@pytest.mark.heavy
def test_layers_that_convert_does_not_make(tmp_path):
    check(ACTIVATIONS, (5 * images(4, 4),), tmp_path)


def test_each_layer_has_a_case():
    """A new module of the public rooms needs a line above. Names of rooms and of modules of floats are no layers."""
    others = {"dynamic", "functional", "FXFloatFunctional", "FloatFunctional"}
    rooms = quantized, quantized.dynamic, nni.quantized, nni.quantized.dynamic
    wanted = {getattr(room, name) for room in rooms for name in room.__all__ if name not in others}
    models = [converted(name, "uint8")[0] for name in MODELS]
    models += [ACTIVATIONS, table(torch.quint8), *(quantize_dynamic(make().eval()) for make, _ in DYNAMIC.values())]
    found = {type(module) for model in models for module in model.modules()}
    assert sorted(f"{one.__module__}.{one.__name__}" for one in wanted - found) == []
