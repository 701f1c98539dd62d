"""Whole models through the workflow: calibration, training, conversion; the bits of what was simulated, and formats."""

import copy

import pytest
import torch
from covering import some, usually
from quantization_support import torch_ao, torch_engine
from torch import nn
from workflow_support import ROWS, Residual, digits, mlp, outputs, steps_apart, trained, with_qconfig

from qcore.affine import AffineInteger
from qtorch.nn import quantized
from qtorch.nn.intrinsic import qat as intrinsic_qat
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization import (
    FakeQuantize,
    MinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    convert,
    default_eval_fn,
    disable_observer,
    fuse_modules,
    get_default_qat_qconfig,
    get_default_qconfig,
    prepare,
    prepare_qat,
    quantize,
    quantize_qat,
)

LAYERS = ["conv1", "conv2", "fc"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: other threads are only waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def accuracy(model):
    images, labels = digits()
    with torch.no_grad():
        return (model(images[1397:]).argmax(1) == labels[1397:]).float().mean().item()


def calibrate(model):
    images, _ = digits()
    with torch.no_grad():
        for batch in images[:256].split(64):
            model(batch)


@pytest.mark.parametrize("backend", ["fbgemm", pytest.param("qnnpack", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("make", [mlp, Residual])
def test_calibrated_models_predict_as_floats_do(make, backend):
    model = trained(make(), 100).eval()
    if make is Residual:
        model = fuse_modules(model, ROWS)
    result = quantize(with_qconfig(model, get_default_qconfig(backend)), lambda model: calibrate(model), [])
    assert accuracy(model) > 0.85
    assert accuracy(result) > accuracy(model) - 0.02
    weights = [module for module in result.modules() if isinstance(module, quantized.Linear)]
    assert all(weight.weight().values.dtype is torch.int8 for weight in weights)


def wide(bits):
    """Settings of 2 to 16 bits."""
    activation = MinMaxObserver.with_args(dtype=AffineInteger.of_width(bits, False))
    weight = PerChannelMinMaxObserver.with_args(dtype=AffineInteger.of_width(bits), qscheme="symmetric")
    return QConfig(activation, weight)


def test_more_bits_are_more_exact():
    model = trained(mlp(), 100).eval()
    images = digits()[0][:100]
    errors = []
    for bits in (2, 4, 6, 8, 12, 16):
        result = quantize(with_qconfig(copy.deepcopy(model), wide(bits)), lambda model: calibrate(model), [])
        errors.append((result(images) - model(images)).abs().mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 < errors[0]


def qat(per_channel=False):
    model = with_qconfig(fuse_modules(Residual().train(), ROWS), get_default_qat_qconfig("fbgemm"))
    if not per_channel:
        model.qconfig = get_default_qat_qconfig("qnnpack")
    return trained(prepare_qat(model), 40)


@some((0, 0), (1, 1), frozen=[False, True], per_channel=[False, True])
def test_trained_models_compute_what_they_were_trained_for(per_channel, frozen):
    """Each layer, given the same integers, is within one step of its simulation, with the same scales."""
    model = qat(per_channel)
    if frozen:
        model.apply(disable_observer)
        model.apply(intrinsic_qat.freeze_bn_stats)
        model = trained(model, 2)
    model.eval()
    result = convert(model)
    for name in LAYERS:
        simulated, layer = model.get_submodule(name), result.get_submodule(name)
        assert torch.equal(layer.scale.reshape(1), simulated.activation_post_process.scale)
        weight = simulated.rounded_weight()
        assert torch.equal(layer.weight().dequantize(), weight.detach() + 0.0)
    images = digits()[0][1397:1497]
    floats, integers = outputs(model, images, LAYERS), outputs(result, images, LAYERS)
    x = integers["conv1"]
    assert steps_apart(floats["conv1"], x) <= 1.001
    again = model.conv2(x.dequantize())
    assert steps_apart(again, integers["conv2"]) <= 1.001
    pooled = torch.flatten(result.pool(result.add.add_relu(integers["conv2"], x)), 1)
    assert steps_apart(model.fc(pooled.dequantize()), result.fc(pooled)) <= 1.001
    assert accuracy(result) > accuracy(model) - 0.01


def test_convert_observes_nothing_and_takes_stored_scales():
    model = qat().eval()
    with torch.no_grad():
        model.fc.weight.mul_(3)  # its range was never seen
    scale = model.fc.weight_fake_quant.scale.clone()
    assert torch.equal(convert(model).fc.weight().qparams.scale.reshape(1), scale)
    assert torch.equal(model.fc.weight_fake_quant.scale, scale)


def test_quantize_qat_trains_and_converts():
    model = with_qconfig(fuse_modules(Residual().train(), ROWS), get_default_qat_qconfig())
    result = quantize_qat(model, lambda model: [model.load_state_dict(trained(model, 20).state_dict())], [])
    assert type(result.conv1).__name__ == "ConvReLU2d"
    assert not result.conv1.training
    assert type(result.add) is quantized.QFunctional
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_default_eval_fn_calibrates():
    images, labels = digits()
    model = with_qconfig(mlp().eval(), get_default_qconfig())
    result = quantize(model, default_eval_fn, [list(zip(images[:64].split(16), labels[:64].split(16), strict=True))])
    assert type(result.quant) is quantized.Quantize


FORMATS = ["e4m3fn", "mxfp8_e4m3", "mxfp4", "fixed(8,4)", "float(5,2)", "nvfp4"]


@pytest.mark.parametrize("number", usually(FORMATS[:-1], FORMATS))
def test_any_format_is_calibrated_and_trained(number):
    """Weights are kept as codes; what is converted computes what was simulated."""
    images = digits()[0][:50]
    qconfig = QConfig("e4m3fn", number)
    model = with_qconfig(fuse_modules(Residual().train(), ROWS), qconfig)
    model = trained(prepare_qat(model), 5).eval()
    result = convert(model)
    assert all(isinstance(getattr(result, name), RoundedLayer) for name in LAYERS)
    assert torch.equal(result(images), model(images))
    codes = sum(value.numel() * value.element_size() for value in result.fc.weight.state_dict().values())
    assert codes < 0.3 * 4 * model.fc.weight.numel()
    calibrated = with_qconfig(fuse_modules(Residual().eval(), ROWS), qconfig)
    prepared = prepare(calibrated)
    prepared(images)
    plain = convert(prepared)
    assert torch.equal(plain.fc.output.scale, prepared.fc.activation_post_process.scale)
    torch.testing.assert_close(plain(images), calibrated(images), rtol=0, atol=0.5)
    assert not torch.equal(plain(images), calibrated(images))


def test_weights_alone_and_integers_with_formats():
    images = digits()[0][:50]
    model = mlp().eval()
    only = convert(prepare(with_qconfig(copy.deepcopy(model), QConfig(nn.Identity, wide(8).weight))))
    assert type(only.module[1]) is RoundedLayer
    torch.testing.assert_close(only(images), model(images), rtol=0, atol=0.05)
    mixed = with_qconfig(copy.deepcopy(model), wide(8))
    mixed.module[3].qconfig = QConfig(wide(8).activation, "e4m3fn")
    prepared = prepare(mixed)
    prepared(images)
    result = convert(prepared)
    assert [type(layer) for layer in result.module[1::2]] == [quantized.Linear, RoundedLayer]
    torch.testing.assert_close(result(images), model(images), rtol=0, atol=0.1)


def of_torch(model, qconfig, peer):
    """The same model with torch.ao's own stubs, fused, in evaluation."""
    theirs = Residual(torch.ao.nn.quantized.FloatFunctional, (peer.QuantStub, peer.DeQuantStub)).eval()
    theirs.load_state_dict(model.state_dict())
    return with_qconfig(peer.fuse_modules(theirs, ROWS), qconfig)


@pytest.mark.parametrize("backend", ["fbgemm", pytest.param("qnnpack", marks=pytest.mark.heavy)])
def test_scales_and_predictions_are_torchs(backend):
    """Of 1,797 images; where another digit is predicted, two logits lie within one step of the result's scale."""
    pytest.importorskip("torch.ao.quantization")
    model, images = trained(Residual(), 60).eval(), digits()[0]
    ours = prepare(with_qconfig(fuse_modules(model, ROWS), get_default_qconfig(backend)))
    with torch_ao() as peer, torch_engine(backend):
        theirs = peer.prepare(of_torch(model, peer.get_default_qconfig(backend), peer))
        for prepared in (ours, theirs):
            calibrate(prepared)
        for name in ("quant", "conv1", "conv2", "add", "fc"):
            mine, peers = (m.get_submodule(name).activation_post_process.calculate_qparams() for m in (ours, theirs))
            assert torch.equal(mine[0], peers[0]), name
            assert torch.equal(mine[1], peers[1].to(torch.int32)), name
        ours = convert(ours)
        logits = [m(images) for m in (ours, peer.convert(theirs))]
    steps = ((logits[0] - logits[1]) / ours.fc.scale).abs()
    assert steps.max() <= 1.001
    assert (steps > 0.5).float().mean() < 0.01
    exceptions = (logits[0].argmax(1) != logits[1].argmax(1)).nonzero().flatten().tolist()
    assert len(exceptions) <= 5, exceptions
    for image in exceptions:
        first, second = logits[0][image].topk(2).values
        assert first - second <= 1.001 * ours.fc.scale, image


@pytest.mark.parametrize("steps", [30, pytest.param(300, marks=pytest.mark.heavy)])
def test_training_follows_torchs_loss(steps):
    """The loss of each step within 1e-5; torch.ao's layers take their stable path."""
    pytest.importorskip("torch.ao.quantization")
    images, labels = digits()
    ours = prepare_qat(with_qconfig(fuse_modules(Residual().train(), ROWS), get_default_qat_qconfig("fbgemm")))
    with torch_ao() as peer:
        theirs = Residual(torch.ao.nn.quantized.FloatFunctional, (peer.QuantStub, peer.DeQuantStub)).train()
        theirs = peer.fuse_modules_qat(theirs, ROWS)
        theirs = peer.prepare_qat(with_qconfig(theirs, peer.get_default_qat_qconfig("fbgemm", version=0)))
        for module in theirs.modules():
            if hasattr(module, "_enable_slow_path_for_better_numerical_stability"):
                module._enable_slow_path_for_better_numerical_stability = True
        losses = []
        for model in (ours, theirs):
            optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
            generator = torch.Generator().manual_seed(0)
            for _ in range(steps):
                chosen = torch.randint(1397, (32,), generator=generator)
                loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    torch.testing.assert_close(losses[:steps], losses[steps:], rtol=0, atol=1e-5)
    assert losses[steps - 1] < losses[0] / 2


def test_plain_fake_quantize_is_all_there_is():
    model = qat(per_channel=True)
    kinds = {type(module) for module in model.modules() if hasattr(module, "fake_quant_enabled")}
    assert kinds == {FakeQuantize}
    assert isinstance(model.fc.weight_fake_quant.activation_post_process, MovingAveragePerChannelMinMaxObserver)


@pytest.mark.parametrize("training", [False, True])
def test_state_dicts_go_into_models_at_the_same_step(training):
    images = digits()[0][:32]
    rows = [row[:] for row in ROWS]

    def make():
        torch.manual_seed(int(training))
        settings = get_default_qat_qconfig() if training else get_default_qconfig()
        model = with_qconfig(fuse_modules(Residual().train(training), rows), settings)
        return prepare_qat(model) if training else prepare(model)

    first, second = make(), make()
    first(images + 1)
    second.load_state_dict(first.state_dict())
    first.eval(), second.eval()
    assert torch.equal(first(images), second(images))
    converted, other = convert(first), convert(make(), allow_uncalibrated=True).eval()
    assert all(isinstance(value, torch.Tensor) for value in converted.state_dict().values())
    other.load_state_dict(converted.state_dict())
    assert torch.equal(converted(images), other(images))
    assert torch.equal(converted(images), convert(second)(images))
