"""What torch's eager tests check and no other module of ours does; `test_torchs_list.py` says where the rest is."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from workflow_support import with_qconfig

from qtorch import quantization
from qtorch.nn import intrinsic, quantized
from qtorch.nn.intrinsic import qat as intrinsic_qat
from qtorch.nn.intrinsic.quantized import dynamic as fused_dynamic
from qtorch.nn.quantized import dynamic
from qtorch.quantization import (
    DeQuantStub,
    QConfig,
    QTensor,
    QuantStub,
    QuantWrapper,
    convert,
    default_dynamic_qconfig,
    default_per_channel_qconfig,
    default_qat_qconfig,
    default_qconfig,
    fuse_modules,
    fuse_modules_qat,
    get_default_dynamic_quant_module_mappings,
    prepare,
    prepare_qat,
    propagate_qconfig_,
    quantize_dynamic,
    quantize_per_tensor,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def noise(exact, rounded):
    """The signal over the noise in dB."""
    return float(20 * torch.log10(exact.norm() / (exact - rounded).norm()).detach())


class Between(nn.Module):
    """Something between stubs."""

    def __init__(self, inner):
        super().__init__()
        self.quant, self.inner, self.dequant = QuantStub(), inner, DeQuantStub()

    def forward(self, x):
        return self.dequant(self.inner(self.quant(x)))


def test_a_stub_without_settings_stays():
    model = with_qconfig(Between(nn.Linear(4, 4)).eval(), default_qconfig)
    model.dequant.qconfig = None
    prepared = prepare(model)
    prepared(torch.randn(8, 4))
    converted = convert(prepared)
    assert type(converted.dequant) is DeQuantStub
    assert type(converted.inner) is quantized.Linear


def test_a_wrapper_takes_the_settings_of_what_it_wraps():
    model = nn.Sequential(QuantWrapper(with_qconfig(nn.Conv2d(1, 1, 1), default_qconfig))).eval()
    prepared = prepare(model)
    prepared(torch.randn(2, 1, 4, 4))
    assert type(convert(prepared)[0].dequant) is quantized.DeQuantize


def test_dynamic_quantization_in_two_steps():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    whole = quantize_dynamic(model, {"1"})
    propagate_qconfig_(model, {"1": default_dynamic_qconfig})
    convert(model, get_default_dynamic_quant_module_mappings(), inplace=True)
    assert type(model[0]) is nn.Linear
    x = torch.randn(8, 4)
    assert torch.equal(model(x), whole(x))
    with pytest.raises(ValueError, match="the model itself has no observer; call prepare"):
        convert(with_qconfig(nn.Linear(4, 4), default_dynamic_qconfig))


def test_fused_linear_layers_are_dynamic():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    small = quantize_dynamic(fuse_modules(model, ["0", "1"]))
    assert type(small[0]) is fused_dynamic.LinearReLU
    x = torch.randn(8, 4)
    assert torch.equal(small(x), quantize_dynamic(model)(x))


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", pytest.param("GRU", marks=pytest.mark.heavy)])
def test_sequences_of_several_lengths(kind, enforce_sorted):
    floats = getattr(nn, kind)(3, 5, num_layers=2, bidirectional=True).eval()
    layer = quantize_dynamic(floats)
    lengths = [10, 5, 2] if enforce_sorted else [2, 10, 5]
    x = torch.randn(10, 3, 3)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=enforce_sorted)
    y, last = layer(packed)
    expected, expected_last = floats(packed)
    torch.testing.assert_close(y.data, expected.data, rtol=0, atol=0.05)
    torch.testing.assert_close(last, expected_last, rtol=0, atol=0.05)
    assert pad_packed_sequence(y)[1].tolist() == lengths
    same = pack_padded_sequence(x, torch.tensor([10] * 3))
    hidden = torch.randn(4, 3, 5)
    state = (hidden, hidden) if kind == "LSTM" else hidden
    assert torch.equal(layer(same, state)[0].data.reshape(10, 3, 10), layer(x, state)[0])
    with pytest.raises(ValueError, match=r"input is \(17, 2\); allowed is .* or a PackedSequence of such rows"):
        layer(pack_padded_sequence(x[..., :2], torch.tensor(lengths), enforce_sorted=enforce_sorted))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_packed_sequences_have_the_numbers_of_torch():
    ao = pytest.importorskip("torch.ao.nn.quantized.dynamic")
    ours = dynamic.LSTM.from_float(with_qconfig(floats := nn.LSTM(3, 5), default_dynamic_qconfig))
    theirs = ao.LSTM.from_float(with_qconfig(floats, torch.ao.quantization.default_dynamic_qconfig))
    packed = pack_padded_sequence(torch.randn(10, 3, 3), torch.tensor([10, 5, 2]))
    torch.testing.assert_close(ours(packed)[0].data, theirs(packed)[0].data, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.Hardsigmoid(), nn.Tanh(), nn.LeakyReLU(0.1), nn.ReLU()])
def test_activations_after_training(layer):
    model = prepare_qat(with_qconfig(Between(layer), default_qat_qconfig))
    x = torch.randn(4, 3, 8)
    model(x)
    converted = convert(model.eval())
    torch.testing.assert_close(converted(x), model(x), rtol=0, atol=1 / 64)  # of the 7 bits of fixed ranges
    assert isinstance(converted.inner(converted.quant(x)), QTensor)
    assert not hasattr(converted.inner, "activation_post_process")
    assert not converted.inner._forward_hooks


def test_dropout_is_nothing_in_integers():
    model = prepare_qat(with_qconfig(Between(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))), default_qat_qconfig))
    x = torch.randn(8, 4)
    model(x)
    converted = convert(model.eval())
    assert torch.equal(converted(x), converted.dequant(converted.inner[0](converted.quant(x))))
    with pytest.raises(ValueError, match=r"dropout of a QTensor in training; allowed is evaluation: model\.eval\(\)"):
        converted.train()(x)


def test_hooks_go_through_training():
    calls = []
    model = Between(nn.Linear(4, 4))
    model.inner.register_forward_pre_hook(lambda module, inputs: calls.append("before"))
    model.inner.register_forward_hook(lambda module, inputs, output: calls.append("after"))
    model = prepare_qat(with_qconfig(model, default_qat_qconfig))
    model(torch.randn(8, 4))
    assert calls == ["before", "after"]
    convert(model.eval())(torch.randn(8, 4))
    assert calls == ["before", "after"] * 2


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_conv_bn_without_rounding_is_both_layers(relu, frozen, mode):
    kind = intrinsic_qat.ConvBnReLU2d if relu else intrinsic_qat.ConvBn2d
    place = 4, 6, (3, 2), (2, 1), (1, 0), 1, 2
    fused = kind(*place, None, mode, 1e-3, 0.2, freeze_bn=frozen, qconfig=default_qat_qconfig).double()
    fused.apply(quantization.disable_fake_quant)
    conv, norm = nn.Conv2d(*place, False, mode).double(), nn.BatchNorm2d(6, 1e-3, 0.2).double().train(not frozen)
    conv.weight.data = fused.weight.detach().clone()
    for _ in range(2):
        x = torch.randn(3, 4, 7, 8, dtype=torch.double, requires_grad=True)
        z = x.detach().clone().requires_grad_()
        expected, y = norm(conv(x)), fused(z)
        expected = expected.relu() if relu else expected
        weights = torch.randn_like(y)
        (expected * weights).sum().backward()
        (y * weights).sum().backward()
        pairs = [(expected, y), (x.grad, z.grad), (conv.weight.grad, fused.weight.grad)]
        pairs += [(norm.weight.grad, fused.bn.weight.grad), (norm.bias.grad, fused.bn.bias.grad)]
        pairs += zip(norm.buffers(), fused.bn.buffers(), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_fusing_in_training_without_observers_changes_nothing():
    floats = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2))
    fused = fuse_modules_qat(floats, [["0", "1", "2"], ["3", "4"]])
    prepared = prepare_qat(with_qconfig(fused, QConfig(activation=nn.Identity, weight=nn.Identity)))
    assert type(fused[3]) is intrinsic.ConvBn2d
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(prepared(x), floats(x))
    for norm, trained in ((floats[1], prepared[0].bn), (floats[4], prepared[3].bn)):
        torch.testing.assert_close(norm.state_dict(), trained.state_dict())


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.down, self.pool, self.last = nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(2), nn.Linear(32, 5)
        self.sum = quantized.FloatFunctional()

    def forward(self, x):
        x = self.relu(self.norm(self.conv(x)))
        return self.last(self.pool(self.sum.add_relu(self.down(x), x)).flatten(1))


@pytest.mark.parametrize(
    ("qconfig", "least"),
    [
        (default_qconfig, 30),
        (default_per_channel_qconfig, 30),
        (quantization.default_weight_only_qconfig, 35),
        (quantization.default_activation_only_qconfig, 35),
    ],
)
def test_noise_of_models(qconfig, least):
    floats, x = Network().eval(), torch.rand(64, 3, 9, 9)
    exact = floats(x)
    row = ["module.conv", "module.norm", "module.relu"]
    if least == 30:
        prepared = prepare(with_qconfig(fuse_modules(QuantWrapper(floats), row), qconfig))
        prepared(x)
        assert noise(exact, convert(prepared)(x)) > least
        return
    model = prepare_qat(with_qconfig(fuse_modules_qat(QuantWrapper(floats).train(), row), qconfig)).eval()
    model.apply(quantization.disable_fake_quant)
    model(x)
    assert noise(exact, model(x)) > 100
    model.apply(quantization.enable_fake_quant)
    model.apply(quantization.disable_observer)
    assert noise(exact, model(x)) > least


def test_parameters_of_a_layer_are_set_and_go_through_files():
    layer = quantized.Linear(4, 3)
    weight = quantize_per_tensor(torch.rand(3, 4), 0.1, 4, torch.qint8)
    layer.set_weight_bias(weight, torch.rand(3))
    layer.scale, layer.zero_point = 0.5, 3
    x = quantize_per_tensor(torch.rand(2, 4), 0.2, 10, torch.quint8)
    y = layer(x)
    assert (y.q_scale(), y.q_zero_point()) == (0.5, 3)
    assert layer.weight().equal(weight)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.copy(layer), copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert other(x).equal(y)
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        layer.scale = "wide"
