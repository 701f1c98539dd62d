"""quantize_model: networks that were not written for quantization, by one call."""

import copy

import pytest
import torch
from front_models import ConvNet, decibels, images
from torch import nn
from torch.nn import functional as F

from qcore import BlockScaled
from qtorch.nn import quantized
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization import (
    MinMaxObserver,
    QConfig,
    QuantWrapper,
    default_dynamic_qconfig,
    default_per_channel_weight_observer,
    default_qat_qconfig,
    default_qconfig,
    quantize_model,
    report,
)


@pytest.fixture(scope="module")
def floats():
    return ConvNet().eval()


pytestmark = pytest.mark.filterwarnings("ignore:.*blocks.3.aux.* has seen nothing")


@pytest.fixture(scope="module")
def small(floats):
    with pytest.warns(UserWarning, match=r"layer 'blocks\.3\.aux\.module' have an observer that has seen nothing"):
        return quantize_model(floats, calibrate=images())


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x in images():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def kinds(model, *types):
    return [path for path, module in model.named_modules() if isinstance(module, types)]


def test_what_is_fused_and_where_integers_begin_and_end(floats, small):
    assert [row.path for row in report(small) if row.layer == "BatchNorm2d"] == []
    assert kinds(small, nn.BatchNorm2d) == []
    assert "stem.0.module" in kinds(small, quantized.Conv2d)  # with its ReLU in it
    # a ReLU6 between convolutions gets integers, and a skip and a concatenation floats
    stubs = kinds(small, quantized.Quantize, quantized.DeQuantize)
    assert (
        stubs
        == (
            "stem.0.quant stem.0.dequant blocks.0.conv.0.quant blocks.0.conv.6.dequant blocks.1.conv.0.quant "
            "blocks.1.conv.6.dequant blocks.2.conv1.quant blocks.2.conv2.dequant blocks.3.conv.quant "
            "blocks.3.one.dequant blocks.3.other.dequant blocks.3.aux.quant blocks.3.aux.dequant fc.quant fc.dequant"
        ).split()
    )
    assert not kinds(floats, QuantWrapper)
    assert decibels(floats(images()[0]), small(images()[0])) > 30


@pytest.mark.heavy
def test_copies_files_and_exports_have_the_same_bits(floats, small):
    x = images()[0]
    y = small(x)
    again = quantize_model(floats, calibrate=[torch.zeros(1, 3, 16, 16)])
    again.load_state_dict(small.state_dict())
    exported = torch.export.export(small, (x,)).module()
    for model in (copy.deepcopy(small), again, exported, torch.compile(small, backend="eager")):
        assert torch.equal(model(x), y)


@pytest.mark.parametrize(
    ("qconfig", "calibrate", "least"),
    [
        (None, train, None),
        pytest.param(QConfig("e4m3fn", "mxfp8_e4m3"), train, None, marks=pytest.mark.heavy),
        (QConfig(None, default_per_channel_weight_observer), None, 45),
        (QConfig(None, default_per_channel_weight_observer), images(), 45),
        pytest.param(QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")), None, 15, marks=pytest.mark.heavy),
        (QConfig("e4m3fn", "mxfp8_e4m3"), images(), 25),
    ],
    ids=["training", "training of formats", "weights", "fused weights", "groups of 4 bits", "formats"],
)
def test_settings(floats, qconfig, calibrate, least):
    data = {"train": train} if calibrate is train else {"calibrate": calibrate}
    made = quantize_model(floats, qconfig, **data)
    x = images()[0]
    assert not made.training
    assert torch.equal(copy.deepcopy(made)(x), made(x))
    assert least is None or decibels(floats(x), made(x)) > least
    assert {row.state for row in report(made)} <= {"quantized", "rounded", "passing", "float"}
    assert least is None or isinstance(made.fc, RoundedLayer)


class Between(nn.Module):
    """Two convolutions with a function between them."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.function = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), function

    def forward(self, x):
        return self.two(self.function(self.one(x)))


STAYS = {
    "pad": lambda x: F.pad(x, (1, 1, 2, 0)),
    "pad by reflection": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "chunk": lambda x: x.chunk(2, 1)[0].repeat(1, 2, 1, 1),
    "parts of which one is used": lambda x: x.split(2, 1)[1].repeat_interleave(2, 1),
    "flip": lambda x: x.flip(3).roll(1, 2),
    "index": lambda x: x[:, :, 1:, ::2],
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "pixel_shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
    "permute": lambda x: x.permute(0, 1, 3, 2).contiguous(),
    "clamps": lambda x: F.relu6(x).clamp(max=2.0),
    "pools": lambda x: F.avg_pool2d(F.max_pool2d(x, 2, 1), 2),
    "shape": lambda x: x.view(x.shape[0], x.size(1), -1, 4),
    "a layer of one's own": type("Turn", (nn.Module,), {"forward": lambda self, x: x.rot90(2, (2, 3))})(),
    "a part of itself": lambda x: nn.Identity()(x).narrow(2, 0, 3),
}
GOES_THROUGH_FLOATS = {
    "a number that the range may not have": lambda x: F.pad(x, (1, 1), value=5.0),
    "a sum": lambda x: x + x,
    "a scale of its own": torch.sigmoid,
    "a mean, with a smaller range": lambda x: x.mean((2, 3), keepdim=True),
    "a mask": lambda x: x.masked_fill(x > 0.1, 0.1),  # a jump would make much of one step
    "a property that integers have not": lambda x: x if x.requires_grad or x.is_floating_point() else -x,
    "a bound in a tensor": lambda x: torch.clamp(x, min=torch.zeros(())),
}


@pytest.mark.parametrize("name", [*STAYS, *GOES_THROUGH_FLOATS])
def test_functions_between_layers(name):
    """Integers stay integers where a function moves or clamps them; the model has the same numbers either way."""
    model = Between(STAYS.get(name) or GOES_THROUGH_FLOATS[name]).eval()
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    small = quantize_model(model, calibrate=[x])
    stubs = kinds(small, quantized.Quantize, quantized.DeQuantize)
    inner = ["one.dequant", "two.quant"] if name in GOES_THROUGH_FLOATS else []
    assert stubs == ["one.quant", *inner, "two.dequant"]
    assert decibels(model(x), small(x)) > 25


@pytest.mark.parametrize("train", [False, True], ids=["calibrated", "trained"])
@pytest.mark.parametrize(
    "clamp",
    [nn.ReLU6(), F.relu6, nn.ReLU6(inplace=True), nn.Hardtanh(0, 6), lambda x: F.hardtanh(x, 0, max_val=6.0), F.relu],
    ids=["ReLU6", "relu6", "in place", "Hardtanh", "hardtanh", "relu"],
)
def test_ranges_behind_clamps(clamp, train):
    """A convolution before a clamp has the range that the clamp leaves, and saturates to it."""
    model = Between(clamp).eval()
    x = 40 * torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    data = {"train": lambda model: model(x)} if train else {"calibrate": [x]}
    settings = default_qat_qconfig if train else QConfig(MinMaxObserver, default_per_channel_weight_observer)
    small = quantize_model(model, settings, **data)
    most = clamp(model.one(x)).max().item()
    layer = small.one.module
    assert layer.zero_point == 0
    assert layer.scale.item() == pytest.approx(most / (127 if train else 255), rel=0.02 if train else 1e-6)
    assert decibels(model(x), small(x)) > (30 if train else 33)


def test_dynamic_settings_and_parts(floats):
    with pytest.warns(UserWarning, match=r"stay in floats: layer 'stem\.0' \(Conv2d\)"):
        made = quantize_model(floats, default_dynamic_qconfig)
    assert isinstance(made.fc, quantized.dynamic.Linear)
    mixed = quantize_model(floats, {"": default_qconfig, "fc": default_dynamic_qconfig, "blocks.3": None}, images())
    assert isinstance(mixed.fc, quantized.dynamic.Linear)
    assert isinstance(mixed.blocks[3].one, nn.Conv2d)
    assert kinds(mixed.blocks[3], nn.BatchNorm2d) == ["bn"]


class Positions(nn.Sequential):
    """A model that owns a table itself, as vision transformers do."""

    def __init__(self):
        super().__init__(nn.Linear(3, 4))
        self.table = nn.Parameter(torch.randn(1, 3))

    def forward(self, x):
        return super().forward(x + self.table)


def test_tables_of_models_are_named():
    with pytest.warns(UserWarning, match=r"the model itself \(Positions\): code of its own uses its table"):
        small = quantize_model(Positions().eval(), calibrate=[torch.randn(2, 3)])
    assert isinstance(small[0].module, quantized.Linear)


@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.heavy)])
def test_recurrent_layers_say_which_settings_quantize_them(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = kind(8, 16, batch_first=True), nn.Linear(16, 4)

        def forward(self, x):
            self.rnn.flatten_parameters()
            return self.head(self.rnn(x)[0])

    x = torch.randn(2, 6, 8)
    with pytest.warns(UserWarning, match=rf"layer 'rnn' .*\{{nn.{kind.__name__}: default_dynamic_qconfig\}} have one"):
        quantize_model(Net(), calibrate=[x])
    small = quantize_model(Net(), {"": default_qconfig, kind: default_dynamic_qconfig}, [x])
    assert report(small)["rnn"].state == "quantized"
    assert small(x).shape == (2, 6, 4)
