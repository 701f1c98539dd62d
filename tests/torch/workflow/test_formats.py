"""Formats in the settings of any layer: the law of their scales, and which layers round."""

import copy

import numpy as np
import pytest
import torch
from front_models import ConvNet, Others, SameConv, Transformer, decibels, images
from torch import nn
from workflow_support import bits, with_qconfig

from qcore import BlockScaled, encode, parse
from qtorch import quantize
from qtorch.nn.quantized import dynamic
from qtorch.nn.rounded import CodedWeight, RoundedLayer
from qtorch.quant import Quantizer
from qtorch.quantization import (
    FakeQuantize,
    HistogramObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigDynamic,
    convert,
    default_dynamic_qconfig,
    default_per_channel_weight_observer,
    default_qconfig,
    load_converted,
    prepare,
    prepare_qat,
    quantize_dynamic,
    quantize_model,
    report,
)


def nearest(y):
    """Numbers of e4m3fn next to float32 numbers, ties to even, by search: q's own rounding is not used."""
    y = np.clip(y.astype(np.float64), -448, 448)
    magnitude = np.abs(y)
    quantum = 2.0 ** np.clip(np.floor(np.log2(np.maximum(magnitude, 2.0**-20))) - 3, -9, 5)
    return np.sign(y) * np.rint(magnitude / quantum) * quantum


def oracle(x, scale):
    inverse = np.float32(1) / np.float32(scale)
    return nearest((x.astype(np.float64) * inverse).astype(np.float32)).astype(np.float32) * np.float32(scale)


@pytest.mark.parametrize("largest", [1e-3, 1.0, 448.0, 2208.0, 3e30])
def test_a_format_gets_the_scale_of_the_largest_magnitude(largest):
    torch.manual_seed(0)
    x = torch.randn(64) * (largest / 4)
    x[0] = -largest
    x = x.clamp(-largest, largest)
    observer = QConfig("e4m3fn", "e4m3fn").activation()
    y = observer(x)
    scale = np.float32(np.float64(np.float32(largest)) / 448)
    assert observer.scale.item() == scale
    assert np.array_equal(y.numpy().view(np.int32), oracle(x.numpy(), scale).view(np.int32))
    assert torch.equal(observer.eval()(2 * x).abs().amax(), observer.scale[0] * 448)  # observes on, and saturates


def test_scales_of_other_observers_and_of_channels():
    x = torch.tensor([[1.0, -4.0, 0.5], [8.0, 2.0, -1.0]])
    channels = FakeQuantize(PerChannelMinMaxObserver, number="e4m3fn")
    y = channels(x)
    assert channels.scale.tolist() == [np.float32(4 / 448), np.float32(8 / 448)]
    assert all(torch.equal(row, FakeQuantize(number="e4m3fn")(one)) for row, one in zip(y, x, strict=True))
    moving = FakeQuantize(MovingAverageMinMaxObserver.with_args(averaging_constant=0.5), number="e4m3fn")
    moving(torch.tensor([2.0]))
    moving(torch.tensor([4.0]))
    assert moving.scale.item() == np.float32(3 / 448)
    histogram = FakeQuantize(HistogramObserver, number="e4m3fn")
    histogram(torch.cat([torch.randn(10_000), torch.tensor([100.0])]))
    assert histogram.scale.item() < 100 / 448


@pytest.mark.parametrize("number", ["mxfp4", "bfloat16", "posit(8,1)", "fixed(8,4)", "nvfp4", "block(8)"])
def test_formats_with_a_scale_or_a_range_of_their_own_get_none(number):
    qconfig = QConfig(number, number)
    assert type(qconfig.activation()) is type(qconfig.weight()) is Quantizer
    assert qconfig.weight().quantization.forward_number == parse(number)


def test_large_activations_are_no_nan_and_codes_are_packed():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8)), 1000 * torch.randn(4, 8)
    prepared = prepare(with_qconfig(model, QConfig("e4m3fn", "e4m3fn")))
    y = prepared(x)
    made = convert(prepared)
    assert made(x).isfinite().all()
    torch.testing.assert_close(made(x), y, rtol=0.1, atol=0.1 * y.abs().max().item())
    layer = made[0]
    codes, scales = encode(model[0].weight.detach().numpy(), BlockScaled("e4m3fn", {...: None}, scale="float32"))
    assert np.array_equal(layer.weight.codes.numpy(), codes)
    assert np.array_equal(layer.weight.scales0.numpy(), scales)
    expected = oracle(torch.nn.functional.linear(x, layer.weight(), layer.bias).numpy(), layer.output.scale.item())
    assert np.array_equal(bits(made(x)).numpy(), expected.view(np.int32))
    row = report(made)["0"]
    assert (row.state, row.bits, row.output, row.scale) == ("rounded", 8, "e4m3fn", layer.output.scale.item())
    old = QConfig(lambda: Quantizer("e4m3fn", forward_rounding="nearest"), "e4m3fn")  # as it was, without a scale
    unscaled = prepare(with_qconfig(copy.deepcopy(model), old))
    unscaled(x)
    assert convert(unscaled)(x).isnan().any()


FORMATS = QConfig("e4m3fn", "mxfp8_e4m3")


def test_layers_of_all_kinds_are_rounded():
    model, x = Others().eval(), torch.randn(2, 3, 4, 4)
    prepared = prepare(with_qconfig(copy.deepcopy(model), FORMATS))
    prepared(x)
    made = convert(prepared)
    assert decibels(model(x), made(x)) > 15
    rows = {row.path: row for row in report(made) if row.state != "float" and row.state != "passing"}
    assert [*rows] == ["same", "act", "up", "lstm", "gru", "cell"]
    assert all(row.weight == "mxfp8_e4m3" and row.bits == 8 for row in rows.values())
    assert isinstance(made.same, SameConv)
    assert isinstance(made.lstm, dynamic.LSTM)
    assert torch.equal(copy.deepcopy(made)(x), made(x))
    loaded = load_converted(with_qconfig(Others(), FORMATS), made.state_dict())
    assert torch.equal(loaded(x), made(x))


def test_formats_of_recurrent_layers_have_scales_of_their_inputs():
    torch.manual_seed(0)
    lstm, x = nn.Sequential(nn.LSTM(8, 32)), 1000 * torch.randn(5, 2, 8)
    made = quantize_dynamic(lstm, {nn.LSTM: QConfig("e4m3fn", "mxfp4")})
    assert type(made[0]) is dynamic.LSTM
    assert made(x)[0].isfinite().all()
    product = made[0].ih[0]
    rounded = Quantizer(BlockScaled("e4m3fn", {...: None}, scale="float32"), forward_rounding="nearest")(x)
    expected = nn.functional.linear(rounded, CodedWeight(lstm[0].weight_ih_l0, parse("mxfp4"))(), lstm[0].bias_ih_l0)
    assert torch.equal(product(x), expected)
    for wrong in (QConfig(HistogramObserver, "mxfp4"), QConfig(default_qconfig.activation, "e4m3fn")):
        with pytest.raises(TypeError, match=r"layer '0': qconfig\.activation makes .*; allowed are a format or None"):
            prepare(with_qconfig(copy.deepcopy(lstm), wrong))
    with pytest.raises(ValueError, match="weight is FakeQuantize"):
        QConfig("e4m3fn", FakeQuantize.with_args(number="e4m3fn"))


def test_embeddings_and_tied_weights():
    model, words = Transformer().eval(), torch.randint(50, (2, 7))
    made = quantize_model(model, QConfig("e4m3fn", "mxfp8_e4m3"), [words])
    assert decibels(model(words), made(words)) > 15
    assert isinstance(made.attn, RoundedLayer)  # a linear layer that was a Conv1D
    assert torch.equal(made.embed.weight, made.head.weight())
    groups = quantize_model(model, QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")))
    assert {report(groups)[name].bits for name in ("embed", "attn", "proj", "fc", "out", "head")} == {4}
    assert decibels(model(words), groups(words)) > 12
    small = quantize_model(model, default_dynamic_qconfig)
    assert isinstance(small.attn, dynamic.Linear)
    assert decibels(model(words), small(words)) > 25


def test_subclasses_round_their_weights():
    model, x = nn.Sequential(SameConv(3, 4, 2), nn.Flatten(), nn.Linear(64, 2)).eval(), torch.randn(2, 3, 4, 4)
    only = quantize_model(model, QConfig(None, default_per_channel_weight_observer))
    assert (report(only)["0"].state, report(only)["0"].bits) == ("rounded", 8)
    assert decibels(model(x), only(x)) > 35
    trained = prepare_qat(with_qconfig(copy.deepcopy(model).train(), FORMATS))
    trained(x).square().mean().backward()
    assert convert(trained.eval())(x).isfinite().all()


@pytest.mark.parametrize(
    "qconfig",
    [None, pytest.param(FORMATS, marks=pytest.mark.heavy), default_dynamic_qconfig, QConfigDynamic(weight="mxfp4")],
)
def test_models_of_bfloat16(qconfig):
    model, words = Transformer().eval().bfloat16(), torch.randint(50, (2, 7))
    made = quantize_model(model, qconfig, None if isinstance(qconfig, QConfigDynamic) else [words])
    assert made(words).dtype is torch.bfloat16
    assert decibels(model(words).float(), made(words).float()) > 10
    if not isinstance(qconfig, QConfigDynamic):
        with pytest.warns(UserWarning, match="has seen nothing"):
            images_model = quantize_model(ConvNet().eval().bfloat16(), qconfig, [images()[0].bfloat16()])
        assert images_model(images()[0].bfloat16()).dtype is torch.bfloat16


def test_recurrent_layers_of_bfloat16():
    x = torch.randn(5, 2, 8).bfloat16()
    for layer in (nn.LSTM(8, 4), nn.GRU(8, 4), nn.LSTMCell(8, 4), nn.GRUCell(8, 4), nn.RNNCell(8, 4)):
        for settings in (default_dynamic_qconfig, QConfig("e4m3fn", "mxfp4")):
            made = quantize_dynamic(nn.Sequential(layer.bfloat16()), {"": settings})
            found = made(x if isinstance(layer, nn.RNNBase) else x[0])
            assert dtypes(found) == {torch.bfloat16}


def dtypes(found):
    return {found.dtype} if isinstance(found, torch.Tensor) else set().union(*map(dtypes, found))


def test_weights_are_like_tensors():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4)).bfloat16(), torch.randn(2, 8).bfloat16()
    coded = convert(_seen(prepare(with_qconfig(copy.deepcopy(model), FORMATS)), x))
    integers = quantize_dynamic(model)
    static = quantize_model(model, calibrate=[x])
    for weight in (coded[0].weight, integers[0].weight, static[0].weight):
        assert (weight.dtype, weight.device, tuple(weight.shape)) == (torch.bfloat16, torch.device("cpu"), (4, 8))
        assert (weight.ndim, weight.dim(), weight.numel(), weight.size(0), weight.size()) == (2, 2, 32, 4, (4, 8))
        numbers = weight.dequantize()
        assert numbers.dtype is torch.bfloat16
        assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, numbers))
        assert torch.equal(x @ weight.T, x @ numbers.T)
        assert torch.equal(weight * 2, numbers * 2)
        assert torch.equal(weight[1], numbers[1])
        assert torch.equal(torch.stack([weight, weight]), torch.stack([numbers] * 2))
        with pytest.raises(AttributeError):
            weight.no_such_name  # noqa: B018


def _seen(model, x):
    model(x)
    return model


def test_a_batch_norm_and_its_relu_have_a_rounded_result():
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.BatchNorm2d(4), nn.ReLU()).eval(),
        torch.randn(2, 1, 6, 6),
    )
    small = quantize_model(model, QConfig("e4m3fn", "e4m3fn"), [x])
    scale = small[2].activation_post_process.scale
    y = small(x)
    assert torch.equal(y, quantize(y / scale, "e4m3fn", "nearest") * scale)
    assert (y - model(x)).norm() / model(x).norm() < 0.1
