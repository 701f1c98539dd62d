"""Layers for training with simulated quantization, and prepare_qat: torch.ao's numbers in training, modes, warnings."""

import copy

import pytest
import torch
from quantization_support import torch_ao
from torch import nn
from workflow_support import bits

import qtorch
from qtorch.nn import intrinsic, qat
from qtorch.nn.intrinsic import qat as intrinsic_qat
from qtorch.quantization import (
    FakeQuantize,
    default_qat_qconfig,
    default_qconfig,
    disable_fake_quant,
    fuse_modules,
    get_default_qat_qconfig,
    prepare,
    prepare_qat,
)


def with_qconfig(model, qconfig=default_qat_qconfig):
    model.qconfig = qconfig
    return model


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_conv_bn_trains_with_the_bits_of_torchs_stable_form(relu, bias):
    pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    name = "ConvBnReLU2d" if relu else "ConvBn2d"
    parts = [nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8), *[nn.ReLU()] * relu]
    with torch_ao() as peer:
        import torch.ao.nn.intrinsic.qat as peer_qat

        theirs = with_qconfig(
            getattr(torch.ao.nn.intrinsic, name)(*copy.deepcopy(parts)),
            peer.get_default_qat_qconfig("fbgemm", version=0),
        )
        theirs = getattr(peer_qat, name).from_float(theirs)
    theirs._enable_slow_path_for_better_numerical_stability = True
    ours = with_qconfig(getattr(intrinsic, name)(*copy.deepcopy(parts)), get_default_qat_qconfig("fbgemm"))
    ours = getattr(intrinsic_qat, name).from_float(ours)
    steps = [torch.optim.SGD(module.parameters(), 0.1, momentum=0.9) for module in (ours, theirs)]
    for _ in range(8):
        x = torch.randn(4, 3, 6, 6)
        results = [module(x) for module in (ours, theirs)]
        assert torch.equal(bits(results[0]), bits(results[1]))
        for result, step in zip(results, steps, strict=True):
            step.zero_grad()
            (result - x[:, :1, 1:-1, 1:-1]).square().mean().backward()
            step.step()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert torch.equal(bits(ours.weight), bits(theirs.weight))
    assert torch.equal(bits(ours.bn.running_var), bits(theirs.bn.running_var))


FUSED = [(nn.Conv1d, nn.BatchNorm1d, 1), (nn.Conv2d, nn.BatchNorm2d, 2), (nn.Conv3d, nn.BatchNorm3d, 3)]


@pytest.mark.parametrize(("conv", "norm", "dims"), FUSED)
def test_evaluation_is_a_convolution_with_the_folded_weight(conv, norm, dims):
    torch.manual_seed(0)
    fused = with_qconfig(getattr(intrinsic, f"ConvBnReLU{dims}d")(conv(2, 4, 3), norm(4), nn.ReLU()))
    layer = getattr(intrinsic_qat, f"ConvBnReLU{dims}d").from_float(fused)
    x = torch.randn(4, 2, *[5] * dims)
    for _ in range(3):
        layer(x)
    layer.eval()
    weight, shift = layer.folded()
    plain = layer.convolve(x, layer.weight_fake_quant(weight), shift)
    assert torch.equal(bits(layer(x)), bits(plain.relu()))
    normed = torch.nn.functional.batch_norm(
        layer.convolve(x, layer.weight, layer.bias),
        layer.bn.running_mean,
        layer.bn.running_var,
        layer.bn.weight,
        layer.bn.bias,
        eps=layer.bn.eps,
    )
    assert (layer(x) - normed.relu()).abs().max() < 0.1  # but for the weight's rounding
    before = layer.bn.running_mean.clone()
    layer(x)
    assert torch.equal(before, layer.bn.running_mean)


def test_a_gamma_of_zero_is_no_nan():
    layer = intrinsic_qat.ConvBn2d(1, 2, 2, qconfig=default_qat_qconfig)
    nn.init.zeros_(layer.bn.weight)
    layer(torch.randn(2, 1, 4, 4)).sum().backward()
    assert torch.isfinite(layer.weight.grad).all()
    assert torch.isfinite(layer.bn.weight.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batches_of_16_bits_have_statistics_in_float32(dtype):
    layer = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).to(dtype).train()
    nn.init.ones_(layer[0].weight)  # variances of 10^6, which float16 does not hold
    layer.qconfig = get_default_qat_qconfig()
    trained = prepare_qat(fuse_modules(layer, ["0", "1"])).apply(disable_fake_quant)
    signs = torch.tensor([1, -1, 1, -1]).reshape(-1, 1, 1, 1)
    # The gradient of a variance of 0 is beyond float16, and so are squares of 1000: results were NaN, and 0.
    for values in signs * 0, signs.abs() * 3, signs * 1000:
        y = trained(values.expand(-1, -1, 3, 3).to(dtype))
        y.float().square().mean().backward()
        assert y.dtype == dtype
        assert y.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in trained.parameters())
    assert (y.abs() - 1).abs().max() < 0.05


def test_frozen_statistics_stay_through_train_and_updates_wait_for_training():
    model = nn.Sequential(intrinsic_qat.ConvBn2d(1, 2, 2, qconfig=default_qat_qconfig), nn.BatchNorm2d(2))
    layer, x = model[0], torch.randn(2, 1, 4, 4)
    model.apply(intrinsic_qat.freeze_bn_stats)
    model.train()
    before = layer.bn.running_mean.clone()
    model(x)
    assert torch.equal(layer.bn.running_mean, before)
    assert model[1].training
    assert layer.weight_fake_quant.training
    model.eval().apply(intrinsic_qat.update_bn_stats)
    assert not layer.bn.training
    model(x)
    assert torch.equal(layer.bn.running_mean, before)
    model.train()
    model(x)
    assert not torch.equal(layer.bn.running_mean, before)
    assert not intrinsic_qat.ConvBn2d(1, 2, 2, freeze_bn=True, qconfig=default_qat_qconfig).bn.training


PAIRS = [
    (nn.Linear(3, 2), qat.Linear),
    (nn.Conv1d(2, 4, 3, 2, 1, 1, 2), qat.Conv1d),
    (nn.Conv2d(2, 4, 3, padding="same", padding_mode="reflect"), qat.Conv2d),
    (nn.Conv3d(2, 4, 3, bias=False), qat.Conv3d),
    (intrinsic.LinearReLU(nn.Linear(3, 2, bias=False), nn.ReLU()), intrinsic_qat.LinearReLU),
    (intrinsic.ConvReLU1d(nn.Conv1d(2, 4, 3), nn.ReLU()), intrinsic_qat.ConvReLU1d),
    (intrinsic.ConvReLU2d(nn.Conv2d(2, 4, 3), nn.ReLU()), intrinsic_qat.ConvReLU2d),
    (intrinsic.ConvReLU3d(nn.Conv3d(2, 4, 3), nn.ReLU()), intrinsic_qat.ConvReLU3d),
]


@pytest.mark.parametrize(("floats", "kind"), PAIRS)
def test_other_layers_multiply_with_the_rounded_weight(floats, kind):
    torch.manual_seed(0)
    floats = with_qconfig(copy.deepcopy(floats))
    layer = kind.from_float(floats)
    part = floats[0] if isinstance(floats, nn.Sequential) else floats
    assert layer.weight is part.weight
    x = torch.randn(2, 3) if isinstance(part, nn.Linear) else torch.randn(2, 2, *[5] * (part.weight.dim() - 2))
    result = layer(x)
    rounded = copy.deepcopy(floats)
    inner = rounded[0] if isinstance(rounded, nn.Sequential) else rounded
    inner.weight.data = layer.weight_fake_quant(part.weight).detach()
    assert torch.equal(bits(result), bits(rounded(x)))
    result.sum().backward()
    assert layer.weight.grad is not None


def test_what_layers_refuse():
    with pytest.raises(TypeError, match=r"qconfig of qat\.Linear is a NoneType"):
        qat.Linear(1, 1)
    with pytest.raises(TypeError, match="module is a Conv2d; allowed is exactly Linear"):
        qat.Linear.from_float(with_qconfig(nn.Conv2d(1, 1, 1)))
    unfit = with_qconfig(intrinsic.ConvBn2d(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, affine=False)))
    with pytest.raises(ValueError, match="affine=False or track_running_stats=False"):
        intrinsic_qat.ConvBn2d.from_float(unfit)


def cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


def test_prepare_qat_swaps_and_observes():
    torch.manual_seed(0)
    fused = fuse_modules(cnn(), ["0", "1", "2"])
    model = prepare_qat(with_qconfig(fused))
    assert type(model[0]) is intrinsic_qat.ConvBnReLU2d
    assert type(model[4]) is qat.Linear
    assert type(fused[0]) is intrinsic.ConvBnReLU2d
    assert isinstance(model[0].activation_post_process, FakeQuantize)
    assert not hasattr(model[3], "activation_post_process")
    y = model(torch.randn(4, 1, 4, 4))
    y.sum().backward()
    assert len(y.unique()) <= 128
    again = prepare_qat(model)
    assert list(again.state_dict()) == list(model.state_dict())
    counted = []
    again[4].activation_post_process.register_forward_hook(lambda *_: counted.append(1))
    again(torch.randn(4, 1, 4, 4))
    assert counted == [1]


def test_evaluation_stops_ranges():
    torch.manual_seed(0)
    model = prepare_qat(with_qconfig(fuse_modules(cnn(), ["0", "1", "2"])))
    model(torch.randn(4, 1, 4, 4))
    model.eval()
    before = copy.deepcopy(model.state_dict())
    model(9 * torch.randn(4, 1, 4, 4))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model.train()(9 * torch.randn(4, 1, 4, 4))
    scale = "4.activation_post_process.scale"
    assert not torch.equal(before[scale], model.state_dict()[scale])


def test_what_prepare_qat_refuses():
    calibrated = prepare(with_qconfig(nn.Sequential(nn.Linear(1, 1)), default_qconfig))
    with pytest.raises(ValueError, match="layer '0' was prepared for calibration"):
        prepare_qat(calibrated)
    with pytest.raises(ValueError, match="model has no layer to observe"):
        prepare_qat(nn.Sequential(nn.Linear(1, 1)))
    with pytest.raises(ValueError, match="inplace=True cannot put another layer"):
        prepare_qat(with_qconfig(nn.Linear(1, 1)), inplace=True)


def test_old_names_of_batch_norms_load():
    layer = intrinsic_qat.ConvBn2d(1, 2, 2, qconfig=default_qat_qconfig)
    new = {name: torch.rand_like(value.float()).to(value.dtype) for name, value in layer.state_dict().items()}
    names = {"bn.weight": "gamma", "bn.bias": "beta"}
    old = {names.get(name, name.removeprefix("bn.")): value for name, value in new.items()}
    layer.load_state_dict(old)
    assert all(torch.equal(new[name], value) for name, value in layer.state_dict().items())


def test_qtorch_has_the_rooms():
    assert qtorch.nn.intrinsic.qat.ConvBn2d is intrinsic_qat.ConvBn2d
