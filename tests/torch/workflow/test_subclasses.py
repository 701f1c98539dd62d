"""Layers of subclasses in `quantize_model`: their parts where these compute the same, else floats and the reason."""

import copy

import pytest
import torch
from front_models import SameConv, decibels
from support import assert_same_bits
from torch import nn
from torch.nn import functional as F

from qtorch.nn import quantized
from qtorch.quantization import default_qconfig, quantize_model, report
from qtorch.quantization.subclasses import Parts, SamePad, taken_apart


class Dynamic(nn.Conv2d):
    """TensorFlow's padding, found anew at each call, as in timm and efficientnet."""

    def forward(self, x):
        pads = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            whole = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [whole // 2, whole - whole // 2]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class NormAct(nn.BatchNorm2d):
    """A batch norm and its activation, as in timm."""

    def __init__(self, width):
        super().__init__(width)
        self.drop, self.act = nn.Identity(), nn.ReLU6(inplace=True)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class ConvNorm(nn.Conv2d):
    """A convolution that owns its batch norm, as in detectron2."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.norm = nn.BatchNorm2d(self.out_channels)

    def forward(self, x):
        return self.norm(super().forward(x))


class Doubled(nn.Conv2d):
    """What no parts compute."""

    def forward(self, x):
        return 2 * super().forward(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm = Dynamic(3, 8, 3, 2, bias=False), NormAct(8)
        self.deep, self.two = Dynamic(8, 8, 5, groups=8), ConvNorm(8, 8, 1)
        self.same, self.fc = SameConv(8, 6, 2), nn.Linear(6, 4)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)

    def forward(self, x):
        assert isinstance(self.norm.act, nn.ReLU6)
        x = self.two(self.deep(self.norm(self.one(x))))
        return self.fc(self.same(x).mean((2, 3)))


@pytest.fixture(scope="module")
def floats():
    return Net().eval()


X = 3 * torch.randn(4, 3, 11, 10, generator=torch.Generator().manual_seed(0))


def test_parts_run_in_integers(floats):
    """No subclass is left, batch norms go into convolutions, and the whole is integers from end to end of a row."""
    small = quantize_model(floats, calibrate=[X], trusted=[Dynamic, NormAct, "two", SameConv])
    rows = report(small)
    assert small.one.stride == (2, 2)  # as for code that reads it
    assert {row.layer for row in rows if row.state == "float"} == set()
    assert not [module for module in small.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [path for path, module in small.named_modules() if isinstance(module, quantized.Quantize)] == [
        "one.inner.quant",
        "fc.quant",
    ]
    assert decibels(floats(X), small(X)) > 30
    other = torch.randn(2, 3, 12, 12)  # a size that calibration has not seen
    assert decibels(floats(other), small(other)) > 25
    for made in (copy.deepcopy(small), torch.export.export(small, (X,)).module()):
        assert_same_bits(made(X), small(X))


def test_training_of_parts(floats):
    def train(model):
        model(X).square().mean().backward()

    trained = quantize_model(floats, train=train, trusted=[Dynamic, NormAct, "two", "same"])
    assert decibels(floats(X), trained(X)) > 3  # batch norms follow the data
    assert isinstance(trained.two.inner, quantized.Conv2d)


def test_others_stay_in_floats_with_the_reason():
    model = nn.Sequential(Doubled(3, 4, 2), nn.Flatten(), nn.Linear(36, 2)).eval()
    x = torch.randn(2, 3, 4, 4)
    with pytest.warns(UserWarning, match=r"layer '0' \(Doubled\): it is of a subclass of Conv2d"):
        made = quantize_model(model, calibrate=[x])
    assert "subclass of Conv2d" in report(made)["0"].reason


@pytest.mark.parametrize(
    ("layer", "kinds"),
    [
        (Dynamic(3, 2, 2, 2), [SamePad, nn.Conv2d]),  # of an even image, where nothing is padded
        (Dynamic(3, 2, 1), [nn.Conv2d]),
        (SameConv(3, 2, 2), [nn.ZeroPad2d, nn.Conv2d]),
        (ConvNorm(3, 2, 2), [nn.Conv2d, nn.BatchNorm2d]),
        (NormAct(3), [nn.BatchNorm2d, nn.Identity, nn.ReLU6]),  # that changes nothing, and could stand behind as well
        (Doubled(3, 2, 2), None),
        (nn.utils.parametrizations.weight_norm(Dynamic(3, 2, 2)), None),
    ],
    ids=["SAME", "nothing", "a child before", "a child behind", "a norm", "other code", "a parametrization"],
)
def test_which_parts(layer, kinds):
    made = parts_of(layer.eval(), torch.randn(1, 3, 6, 6))
    assert kinds == (list(map(type, made)) if isinstance(made, Parts) else None)


def parts_of(layer, x):
    layer.qconfig = default_qconfig
    return taken_apart(layer, {"": x}, lambda layer: True)


def test_hooks_of_users_see_the_whole_layer(floats):
    model, seen = copy.deepcopy(floats), []
    model.norm.register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    small = quantize_model(model, calibrate=[X], trusted=[Dynamic, ConvNorm, "norm", "same"])
    seen.clear()
    small(X)
    assert seen == ["Parts"]


class Sized(nn.Conv2d):
    """A convolution whose class only chooses its sizes, as transformers' depthwise one does."""

    def __init__(self, width):
        super().__init__(width, width, 3, groups=width)


class Lazy(nn.Linear):
    """Code that calibration does not reach."""

    def forward(self, x):
        return super().forward(x) if x.abs().max() < 100 else 0 * super().forward(x)


def test_code_that_data_may_not_reach_is_not_replaced():
    """Only known classes become torch's layer, and layers that the user names; others say so in their reason."""
    model, x = nn.Sequential(Sized(3), nn.Flatten(), Lazy(12, 2)).eval(), torch.randn(2, 3, 4, 4)
    with pytest.warns(UserWarning, match=r"layer '2' \(Lazy\): .* quantize_model takes trusted=\[Lazy\]"):
        small = quantize_model(model, calibrate=[x])
    assert isinstance(small[0].inner.module, quantized.Conv2d)
    assert (small[2](torch.full((1, 12), 200.0)) == 0).all()
    for trusted in ([Lazy], {"2"}):
        assert isinstance(quantize_model(model, calibrate=[x], trusted=trusted)[2].inner.module, quantized.Linear)


def test_known_classes_of_packages():
    kind = type("Conv2dSame", (Dynamic,), {"__module__": "timm.layers.conv2d_same"})
    small = quantize_model(nn.Sequential(kind(3, 4, 3, 2)).eval(), calibrate=[torch.randn(2, 3, 5, 5)])
    assert isinstance(small[0].inner.module, quantized.Conv2d)


@pytest.mark.parametrize(
    ("trusted", "error", "text"),
    [
        ("2", TypeError, "trusted='2'; allowed is a list of classes and names of layers"),
        ([3], TypeError, "3 of trusted"),
        (["0"], ValueError, r"trusted has '0'; layers of subclasses are: 2 \(Lazy\)"),
        ([nn.Conv2d], ValueError, "trusted has Conv2d; layers of subclasses are"),
    ],
)
def test_wrong_trust(trusted, error, text):
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Flatten(), Lazy(12, 2))
    with pytest.raises(error, match=text):
        quantize_model(model, calibrate=[torch.randn(2, 3, 4, 4)], trusted=trusted)


def test_a_class_with_the_name_of_torchs_is_told_apart():
    kind = type("Linear", (nn.Module,), {"__module__": "geometric", "forward": lambda self, x: x})
    with pytest.raises(ValueError, match=r"there are Sequential, geometric\.Linear"):
        quantize_model(nn.Sequential(kind()), calibrate=[torch.randn(2, 2)])
