"""quantize_model: networks that were not written for quantization, by one call."""

import copy

import pytest
import torch
from front_models import ConvNet, decibels, images
from torch import nn

from qcore import BlockScaled
from qtorch.nn import quantized
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization import (
    QConfig,
    QuantWrapper,
    default_dynamic_qconfig,
    default_per_channel_weight_observer,
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
    assert stubs == [
        *("stem.0.quant", "stem.0.dequant"),
        *("blocks.0.conv.0.quant", "blocks.0.conv.6.dequant"),
        *("blocks.1.conv.0.quant", "blocks.1.conv.6.dequant"),
        *("blocks.2.conv1.quant", "blocks.2.conv2.dequant"),
        *("blocks.3.conv.quant", "blocks.3.one.dequant", "blocks.3.other.dequant"),
        *("blocks.3.aux.quant", "blocks.3.aux.dequant", "fc.quant", "fc.dequant"),
    ]
    assert not kinds(floats, QuantWrapper)
    assert decibels(floats(images()[0]), small(images()[0])) > 30


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # what kernels keep of the buffers
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
        (QConfig("e4m3fn", "mxfp8_e4m3"), train, None),
        (QConfig(None, default_per_channel_weight_observer), None, 45),
        (QConfig(None, default_per_channel_weight_observer), images(), 45),
        (QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")), None, 15),
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


def test_dynamic_settings_and_parts(floats):
    with pytest.warns(UserWarning, match=r"stay in floats: layer 'stem\.0' \(Conv2d\)"):
        made = quantize_model(floats, default_dynamic_qconfig)
    assert isinstance(made.fc, quantized.dynamic.Linear)
    mixed = quantize_model(floats, {"": default_qconfig, "fc": default_dynamic_qconfig, "blocks.3": None}, images())
    assert isinstance(mixed.fc, quantized.dynamic.Linear)
    assert isinstance(mixed.blocks[3].one, nn.Conv2d)
    assert kinds(mixed.blocks[3], nn.BatchNorm2d) == ["bn"]


def test_functions_that_calibrate_and_arguments_by_name(floats, small):
    def run(model):
        for x in images():
            model(x)

    x = images()[0]
    assert torch.equal(quantize_model(floats, calibrate=run)(x), small(x))
    assert torch.equal(quantize_model(floats, calibrate=({"x": x} for x in images()))(x), small(x))
    assert torch.equal(quantize_model(floats, calibrate=[(x,) for x in images()])(x), small(x))
    layer = quantize_model(nn.Linear(3, 2), default_qconfig, [torch.randn(4, 3)])
    assert isinstance(layer.module, quantized.Linear)
    assert layer.weight is layer.module.weight


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3,), TypeError, "model is a int"),
        ((nn.Linear(1, 1), 3), TypeError, "qconfig has a qconfig that is a"),
        ((nn.Linear(1, 1), {"": None}), ValueError, "no settings but None"),
        ((nn.Linear(1, 1),), ValueError, "calibrate=None; the model itself needs the range"),
        (
            (nn.Linear(1, 1), None, torch.ones(1)),
            TypeError,
            r"calibrate is a Tensor; allowed are None, a list of inputs",
        ),
        ((nn.Linear(1, 1), None, []), ValueError, "calibrate has no inputs"),
        ((nn.Linear(1, 1), None, lambda model: None), ValueError, "calibrate has not run the model"),
        ((nn.Linear(1, 1), {"fc": default_qconfig}, [torch.ones(1)]), ValueError, "names no module"),
    ],
)
def test_wrong_calls(arguments, error, text):
    with pytest.raises(error, match=text):
        quantize_model(*arguments)


def test_wrong_functions():
    with pytest.raises(TypeError, match="train is a int"):
        quantize_model(nn.Linear(1, 1), train=3)
    with pytest.raises(TypeError, match="calibrate and train are given"):
        quantize_model(nn.Linear(1, 1), None, [torch.ones(1, 1)], train=train)
