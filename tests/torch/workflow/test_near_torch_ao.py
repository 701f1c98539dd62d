"""Calibrated networks beside torch.ao's: the error against floats, in decibels, is at most 0.5 more than theirs.

torchvision's whole networks need torchvision.
"""

import copy

import pytest
import torch
from front_models import Conv1D, decibels
from module_packages import Torch
from networks import NETWORKS
from quantization_support import torch_ao, torch_engine
from torch import nn
from workflow_support import Residual

import qtorch.quantization as tq
from benchmarks.support.torchvision import describe_operators
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import quantize_model

pytest.importorskip("torch.ao.quantization")

OURS = tq, FloatFunctional


def conv(inputs, outputs, size, activation=nn.ReLU, groups=1, stride=1):
    layers = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Between(nn.Module):
    """A network between stubs."""

    def __init__(self, package):
        super().__init__()
        self.quant, self.dequant = package.QuantStub(), package.DeQuantStub()

    def forward(self, x):
        return self.dequant(self.network(self.quant(x)))

    @property
    def rows(self):
        """What is fused: a convolution, its batch norm and ReLU."""
        for path, module in self.named_modules():
            if isinstance(module, nn.Sequential) and isinstance(module[0], nn.Conv2d):
                yield [f"{path}.{index}" for index, layer in enumerate(module) if not isinstance(layer, nn.ReLU6)]


class MobileNet(Between):
    """MobileNetV2's block with a skip, its ReLU6 as it is, and one with a stride."""

    def __init__(self, package, floats):
        super().__init__(package)
        self.stem, self.add, self.fc = conv(4, 8, 3, nn.ReLU6), floats(), nn.Linear(12, 5)
        parts = conv(8, 16, 1, nn.ReLU6), conv(16, 16, 3, nn.ReLU6, 16), conv(16, 8, 1, None)
        self.block = nn.Sequential(nn.Identity(), *parts)
        parts = conv(8, 16, 1, nn.ReLU6), conv(16, 16, 3, nn.ReLU6, 16, 2), conv(16, 12, 1, None)
        self.down, self.pool = nn.Sequential(nn.Identity(), *parts), nn.AdaptiveAvgPool2d(1)

    def network(self, x):
        x = self.stem(x)
        x = self.down(self.add.add(x, self.block(x)))
        return self.fc(self.pool(x).flatten(1))


class GoogLeNet(Between):
    """Branches, one behind a pool, that are concatenated, and a head that only training uses."""

    def __init__(self, package, floats):
        super().__init__(package)
        self.one, self.three, self.pool = conv(4, 6, 1), conv(4, 6, 3), nn.MaxPool2d(3, 1, 1)
        self.side, self.cat, self.fc, self.aux = conv(4, 4, 1), floats(), nn.Linear(16, 5), nn.Linear(16, 5)

    def network(self, x):
        x = self.cat.cat([self.one(x), self.three(x), self.side(self.pool(x))], 1)
        if self.training:
            self.aux(x.mean((2, 3)))
        return self.fc(x.mean((2, 3)))


class ResNet(Residual):
    """Convolutions, batch norms, a sum and its ReLU."""

    def __init__(self, package, floats):
        super().__init__(floats, (package.QuantStub, package.DeQuantStub))
        self.conv1, self.fc = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.Linear(288, 10)

    rows = ["conv1", "bn1", "relu1"], ["conv2", "bn2"]


def network(name):
    """One of `networks`, with the modules of a package."""

    def made(package, floats):
        own = {"stubs": (package.QuantStub, package.DeQuantStub), "FloatFunctional": floats}
        return NETWORKS[name].make(type("Of", (Torch,), own))()

    return made


NETS = {"MobileNetV2": MobileNet, "GoogLeNet": GoogLeNet, "ResNet": ResNet}
NETS |= {name: network(name) for name in ("ShuffleNet", "U-Net")}


def batch(seed):
    return torch.randn(8, 4, 12, 12, generator=torch.Generator().manual_seed(seed))


def floats_of(kind, package=tq, functional=FloatFunctional):
    torch.manual_seed(1)
    model = kind(package, functional).train()
    for seed in range(3):
        model(batch(seed))  # statistics
    return model.eval()


def error(model, package, rows, x, data):
    """The decibels that a model in integers is away from floats."""
    expected = model(x)
    rows = [list(row) for row in rows]
    model = package.fuse_modules(copy.deepcopy(model), rows) if rows else model
    model.qconfig = package.get_default_qconfig("fbgemm")
    for layer in model.modules():  # with one scale, as torch.ao wants them
        if isinstance(layer, (nn.ConvTranspose2d, nn.PReLU)):
            layer.qconfig = package.QConfig(model.qconfig.activation, package.default_weight_observer)
    model = package.prepare(model)
    for one in data:
        model(one)
    return -decibels(expected, package.convert(model)(x))


@pytest.mark.filterwarnings("ignore:.*aux.* has seen nothing")
@pytest.mark.parametrize("name", NETS)
def test_small_networks(name):
    kind, x, data = NETS[name], batch(9), [batch(4), batch(5)]
    model = floats_of(kind)
    ours = error(model, tq, model.rows, x, data)
    with torch_ao() as ao, torch_engine("fbgemm"):
        theirs = floats_of(kind, ao, torch.ao.nn.quantized.FloatFunctional)
        assert torch.equal(theirs(x), model(x))
        assert ours <= error(theirs, ao, theirs.rows, x, data) + 0.5
    assert ours < -20


@pytest.mark.filterwarnings("ignore:.*aux.* has seen nothing")
@pytest.mark.parametrize("name", NETS)
def test_one_call(name):
    """`quantize_model` of the same network finds what is fused, and places what is quantized itself."""
    kind, x, data = NETS[name], batch(9), [batch(4), batch(5)]
    model = floats_of(kind)
    with torch_ao() as ao, torch_engine("fbgemm"):
        theirs = floats_of(kind, ao, torch.ao.nn.quantized.FloatFunctional)
        least = error(theirs, ao, theirs.rows, x, data)
    model.quant, model.dequant = nn.Identity(), nn.Identity()
    assert -decibels(model(x), quantize_model(model, None, data)(x)) <= least + 0.5


def test_linear_layers_of_gpt2():
    """transformers' Conv1D, beside torch.ao's linear layer with the same weight."""
    torch.manual_seed(0)
    layer, x = nn.Sequential(Conv1D(12, 8), nn.ReLU(), Conv1D(6, 12)).eval(), torch.randn(20, 8)
    ours = -decibels(layer(x), quantize_model(layer, None, [x])(x))
    with torch_ao() as ao, torch_engine("fbgemm"):
        other = nn.Sequential(ao.QuantStub(), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6), ao.DeQuantStub()).eval()
        with torch.no_grad():
            for index, here in ((1, layer[0]), (3, layer[2])):
                other[index].weight.copy_(here.weight.T)
                other[index].bias.copy_(here.bias)
        assert ours <= error(other, ao, [["1", "2"]], x, [x]) + 0.5
    assert ours < -30


WHOLE = "mobilenet_v2", "googlenet", "shufflenet_v2_x0_5", "resnet18", "mobilenet_v3_large"


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WHOLE)
def test_networks_of_torchvision(name, monkeypatch):
    """Their quantizable networks, with random weights and the stubs of the one package or the other."""
    describe_operators()
    models = pytest.importorskip("torchvision.models.quantization")
    torch.manual_seed(0)
    settings = {"init_weights": True} if name == "googlenet" else {}
    model = getattr(models, name)(weights=None, quantize=False, **settings).train()
    data = [torch.randn(4, 3, 96, 96) for _ in range(4)]
    with torch.no_grad():
        for _ in range(3):
            model(data[0])  # statistics
    model.eval()
    errors = []
    with torch_ao() as ao, torch_engine("fbgemm"), torch.no_grad():
        here = {ao.QuantStub: tq.QuantStub, ao.DeQuantStub: tq.DeQuantStub}
        here[torch.ao.nn.quantized.FloatFunctional] = FloatFunctional
        for package in (tq, ao):
            own = copy.deepcopy(model)
            for module in list(own.modules()):
                for child, layer in list(module.named_children()):
                    if package is tq and type(layer) in here:
                        setattr(module, child, here[type(layer)]())
            with monkeypatch.context() as patch:
                if package is tq:
                    patch.setattr(
                        ao, "fuse_modules", lambda model, rows, inplace: tq.fuse_modules(model, rows, inplace)
                    )
                own.fuse_model(is_qat=False)
            errors.append(error(own, package, [], data[3], data[:3]))
    assert errors[0] <= errors[1] + 0.5
