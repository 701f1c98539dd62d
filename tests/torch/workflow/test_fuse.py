"""fuse_modules: which rows become which layers, the bits of folded batch norms, hooks, and what is refused."""

import copy

import pytest
import torch
from quantization_support import torch_ao
from torch import nn
from workflow_support import bits

from qtorch.nn import intrinsic
from qtorch.quantization import default_qconfig, fuse_modules, fuse_modules_qat


def trained_norm(kind, channels, **settings):
    """A batch norm whose statistics and parameters are not the first ones."""
    norm = kind(channels, **settings)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            if tensor is not None:
                tensor.uniform_(-1, 1)
        norm.running_var.uniform_(0.1, 2)
    return norm


CONVOLUTIONS = [(nn.Conv1d, nn.BatchNorm1d, 1), (nn.Conv2d, nn.BatchNorm2d, 2), (nn.Conv3d, nn.BatchNorm3d, 3)]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("conv", "norm", "dims"), CONVOLUTIONS)
def test_folded_weights_have_the_bits_of_the_formula(conv, norm, dims, bias, affine):
    torch.manual_seed(dims)
    model = nn.Sequential(conv(4, 6, 3, groups=2, bias=bias), trained_norm(norm, 6, affine=affine), nn.ReLU()).eval()
    fused = fuse_modules(model, ["0", "1", "2"])
    layer, bn = model[0], model[1]
    gamma, beta = (bn.weight, bn.bias) if affine else (torch.ones(6), torch.zeros(6))
    inverse = torch.rsqrt(bn.running_var + bn.eps)
    weight = layer.weight * (gamma * inverse).reshape(-1, *[1] * (dims + 1))
    shift = ((layer.bias if bias else torch.zeros(6)) - bn.running_mean) * inverse * gamma + beta
    assert type(fused[0]).__name__ == f"ConvReLU{dims}d"
    assert torch.equal(bits(fused[0][0].weight), bits(weight))
    assert torch.equal(bits(fused[0][0].bias), bits(shift))
    x = torch.randn(2, 4, *[5] * dims)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)


def test_folded_weights_have_the_bits_of_torch():
    pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 4)
    norms = trained_norm(nn.BatchNorm2d, 8), trained_norm(nn.BatchNorm1d, 4)
    model = nn.Sequential(conv, norms[0], nn.ReLU(), nn.Flatten(), linear, norms[1], nn.Linear(4, 4), nn.ReLU()).eval()
    rows = [["0", "1", "2"], ["4", "5"], ["6", "7"]]
    with torch_ao() as peer:
        theirs = peer.fuse_modules(model, rows).state_dict()
    ours = fuse_modules(model, rows).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(bits(ours[name]), bits(theirs[name])) for name in ours)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("conv", "norm", "dims"), CONVOLUTIONS)
def test_training_keeps_the_batch_norm_and_the_numbers(conv, norm, dims, relu):
    torch.manual_seed(0)
    model = nn.Sequential(conv(2, 4, 3), trained_norm(norm, 4), *[nn.ReLU()] * relu)
    fused = fuse_modules(model, [str(i) for i in range(len(model))])
    assert type(fused[0]) is getattr(intrinsic, f"ConvBn{'ReLU' * relu}{dims}d")
    assert isinstance(fused[1], nn.Identity)
    x = torch.randn(3, 2, *[5] * dims)
    assert torch.equal(bits(fused(x)), bits(copy.deepcopy(model)(x)))
    assert fused[0].training
    assert fused[1].training


@pytest.mark.parametrize(
    ("layers", "fused"),
    [
        ([nn.Conv1d(1, 1, 1), nn.ReLU()], "ConvReLU1d"),
        ([nn.Conv2d(1, 1, 1), nn.ReLU()], "ConvReLU2d"),
        ([nn.Conv3d(1, 1, 1), nn.ReLU()], "ConvReLU3d"),
        ([nn.Linear(1, 1), nn.ReLU()], "LinearReLU"),
        ([nn.BatchNorm2d(1), nn.ReLU()], "BNReLU2d"),
        ([nn.BatchNorm3d(1), nn.ReLU()], "BNReLU3d"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_rows_with_a_relu(layers, fused, training):
    result = fuse_modules(nn.Sequential(*layers).train(training), ["0", "1"])
    assert type(result[0]) is getattr(intrinsic, fused)
    assert result[0].training == training


def test_a_linear_layer_takes_its_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), trained_norm(nn.BatchNorm1d, 4)).eval()
    fused = fuse_modules(model, ["0", "1"])
    assert type(fused[0]) is nn.Linear
    x = torch.randn(5, 3)
    torch.testing.assert_close(fused(x), model(x))
    both = fuse_modules(nn.Sequential(*model, nn.ReLU()).eval(), ["0", "1", "2"])
    assert type(both[0]) is intrinsic.LinearReLU
    assert torch.equal(both(x), fused(x).relu())


def test_several_rows_nested_names_and_what_stays():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(1, 1, 1), nn.ReLU()

    model = nn.Sequential(Block(), Block(), nn.Linear(1, 1)).eval()
    model[0].conv.qconfig = default_qconfig
    fused = fuse_modules(model, [["0.conv", "0.relu"], ["1.conv", "1.relu"]])
    assert type(fused[0].conv) is type(fused[1].conv) is intrinsic.ConvReLU2d
    assert fused[0].conv.qconfig == default_qconfig  # settings go along
    assert type(model[0].conv) is nn.Conv2d  # a copy
    assert fuse_modules(model, [["0.conv", "0.relu"]], inplace=True) is model
    assert type(model[0].conv) is intrinsic.ConvReLU2d


@pytest.mark.parametrize("training", [False, True])
def test_hooks_of_the_ends_go_along_and_run_once(training):
    calls = []
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()).train(training)
    model[0].register_forward_pre_hook(lambda module, inputs: calls.append(("before", type(module).__name__)))
    model[2].register_forward_hook(lambda module, inputs, output: calls.append(("after", type(module).__name__)))
    fused = fuse_modules(model, ["0", "1", "2"])
    fused(torch.randn(2, 1, 2, 2))
    name = "ConvBnReLU2d" if training else "ConvReLU2d"
    assert calls == [("before", name), ("after", name)]


def test_a_users_own_row():
    class LinearTanh(nn.Sequential):
        pass

    custom = {"additional_fuser_method_mapping": {(nn.Linear, nn.Tanh): lambda training, *parts: LinearTanh(*parts)}}
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh()).eval()
    assert type(fuse_modules(model, ["0", "1"], fuse_custom_config_dict=custom)[0]) is LinearTanh
    fused = fuse_modules(model, ["0", "1"], fuser_func=lambda parts: [LinearTanh(*parts), nn.Identity()])
    assert type(fused[0]) is LinearTanh
    with pytest.raises(ValueError, match="fuser_func returned 1 modules"):
        fuse_modules(model, ["0", "1"], fuser_func=lambda parts: [LinearTanh(*parts)])


def wrong_models():
    def conv():
        return nn.Conv2d(1, 2, 1)

    yield "affine=True", nn.Sequential(conv(), nn.BatchNorm2d(2, affine=False)), ["0", "1"]
    yield "running statistics", nn.Sequential(conv(), nn.BatchNorm2d(2, track_running_stats=False)).eval(), ["0", "1"]
    yield "a part is fused already", nn.Sequential(intrinsic.ConvReLU2d(conv(), nn.ReLU()), nn.ReLU()), ["0", "1"]
    different = nn.Sequential(conv(), nn.ReLU())
    different[0].qconfig, different[1].qconfig = default_qconfig, None
    yield "the layers have different qconfigs", different, ["0", "1"]
    mixed = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    mixed[1].eval()
    yield "the layers are in training, evaluation", mixed, ["0", "1"]


@pytest.mark.parametrize(("message", "model", "row"), list(wrong_models()))
def test_what_is_refused_leaves_the_model_alone(message, model, row):
    before = str(model)
    with pytest.raises(ValueError, match=message):
        fuse_modules(model, row)
    assert str(model) == before


def test_wrong_types():
    with pytest.raises(ValueError, match="model is in evaluation"):
        fuse_modules_qat(nn.Sequential(nn.Linear(1, 1), nn.ReLU()).eval(), ["0", "1"])
    with pytest.raises(TypeError, match=r"LinearReLU of \(ReLU\); allowed is \(linear: Linear, relu: ReLU\)"):
        intrinsic.LinearReLU(nn.ReLU())


def test_parts_by_name():
    conv, bn, relu = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()
    for made in (
        intrinsic.ConvBnReLU2d(conv=conv, bn=bn, relu=relu),
        intrinsic.ConvBnReLU2d(conv, relu=relu, bn=bn),
    ):
        assert list(made) == [conv, bn, relu]
        assert list(made._modules) == ["0", "1", "2"]
    assert list(intrinsic.BNReLU2d(batch_norm=bn, relu=relu)) == [bn, relu]
    for wrong in ({"linear": nn.Linear(1, 1)}, {"linear": nn.Linear(1, 1), "bn": bn, "relu": relu}):
        with pytest.raises(
            TypeError, match=r"LinearReLU of \(linear=Linear.*; allowed is \(linear: Linear, relu: ReLU\)"
        ):
            intrinsic.LinearReLU(**wrong)
