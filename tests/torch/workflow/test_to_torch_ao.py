"""Each kind of layer: converted here, loaded into torch.ao's model, and the same outputs there."""

import pytest
import torch
from quantization_support import torch_ao, torch_engine
from support import assert_same_bits
from torch import nn

import qtorch.quantization as tq
from qtorch.nn.quantized import FloatFunctional

pytest.importorskip("torch.ao.quantization")

IMAGES, VOLUMES, SEQUENCES, ROWS = (2, 4, 6, 5), (2, 4, 3, 4, 5), (2, 4, 9), (6, 4)


class Functional(nn.Module):
    """A method of FloatFunctional."""

    def __init__(self, floats, name):
        super().__init__()
        self.ff, self.name = floats(), name

    def forward(self, x):
        if self.name.endswith("scalar"):
            return getattr(self.ff, self.name)(x, 0.75)
        if self.name == "matmul":
            return self.ff.matmul(x, x.transpose(2, 3))
        return self.ff.cat([x, x], 1) if self.name == "cat" else getattr(self.ff, self.name)(x, x)


TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d


def conv_bn(kind, norm):
    return nn.Sequential(kind(4, 6, 3), norm(6))


LAYERS = {
    "Linear": (lambda _: nn.Linear(4, 3), ROWS),
    "Linear without bias": (lambda _: nn.Linear(4, 3, bias=False), ROWS),
    "LinearReLU": (lambda _: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), ROWS),
    "Conv1d": (lambda _: nn.Conv1d(4, 6, 3, 2, 1), SEQUENCES),
    "Conv2d": (lambda _: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGES),
    "Conv3d": (lambda _: nn.Conv3d(4, 6, 2, bias=False), VOLUMES),
    "ConvReLU1d": (lambda _: nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU()), SEQUENCES),
    "ConvReLU2d": (lambda _: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()), IMAGES),
    "ConvReLU3d": (lambda _: nn.Sequential(nn.Conv3d(4, 6, 2), nn.ReLU()), VOLUMES),
    "ConvBn2d": (lambda _: conv_bn(nn.Conv2d, nn.BatchNorm2d), IMAGES),
    "ConvTranspose1d": (lambda _: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), SEQUENCES),
    "ConvTranspose2d": (lambda _: nn.ConvTranspose2d(4, 6, 3, 2, groups=2), IMAGES),
    "ConvTranspose3d": (lambda _: nn.ConvTranspose3d(4, 6, 2, 2, bias=False), VOLUMES),
    "ConvTransposeBn2d": (lambda _: conv_bn(nn.ConvTranspose2d, nn.BatchNorm2d), IMAGES),
    "BatchNorm2d": (lambda _: nn.BatchNorm2d(4), IMAGES),
    "BatchNorm3d": (lambda _: nn.BatchNorm3d(4), VOLUMES),
    "BNReLU2d": (lambda _: nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), IMAGES),
    "BNReLU3d": (lambda _: nn.Sequential(nn.BatchNorm3d(4), nn.ReLU()), VOLUMES),
    "LayerNorm": (lambda _: nn.LayerNorm(5), IMAGES),
    "GroupNorm": (lambda _: nn.GroupNorm(2, 4), IMAGES),
    "InstanceNorm1d": (lambda _: nn.InstanceNorm1d(4, affine=True), SEQUENCES),
    "InstanceNorm2d": (lambda _: nn.InstanceNorm2d(4, affine=True), IMAGES),
    "InstanceNorm3d": (lambda _: nn.InstanceNorm3d(4), VOLUMES),
    "ELU": (lambda _: nn.ELU(0.7), IMAGES),
    "LeakyReLU": (lambda _: nn.LeakyReLU(0.1), IMAGES),
    "PReLU": (lambda _: nn.PReLU(), IMAGES),
    "PReLU of channels": (lambda _: nn.PReLU(4), IMAGES),
    "Hardswish": (lambda _: nn.Hardswish(), IMAGES),
    "Sigmoid": (lambda _: nn.Sigmoid(), IMAGES),
    "ReLU6": (lambda _: nn.ReLU6(), IMAGES),
    **{
        f"QFunctional.{name}": (lambda floats, name=name: Functional(floats, name), IMAGES)
        for name in ("add", "add_relu", "mul", "matmul", "cat", "add_scalar", "mul_scalar")
    },
}


def filled(model):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(
                    torch.randn(value.shape, generator=generator).abs() + 0.1
                    if "var" in name
                    else torch.randn(value.shape, generator=generator)
                )
    return model


def fused(package, model):
    layer = model.module
    rows = [f"module.{i}" for i in range(len(layer))] if isinstance(layer, nn.Sequential) else None
    return package.fuse_modules(model, rows) if rows else model


def converted(package, make, floats, x):
    model = fused(package, package.QuantWrapper(filled(make(floats))).eval())
    settings = package.get_default_qconfig("fbgemm")
    if any(
        isinstance(layer, (nn.PReLU, *TRANSPOSED)) for layer in model.modules()
    ):  # whose weights have one scale in torch.ao
        settings = package.QConfig(settings.activation, package.default_weight_observer)
    model.qconfig = settings
    model = package.prepare(model)
    model(x)
    return package.convert(model)


@pytest.mark.parametrize("name", LAYERS)
def test_static_layers(name):
    """Calibrated there on other data, so that all that counts is loaded."""
    make, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(shape, generator=generator)
    ours = converted(tq, make, FloatFunctional, x)
    with torch_ao() as ao, torch_engine("fbgemm"):
        theirs = converted(ao, make, torch.ao.nn.quantized.FloatFunctional, 3 * x + 1)
        if name == "Sigmoid":  # which torch.ao's convert leaves, with its own fixed scale
            theirs.module = torch.ao.nn.quantized.Sigmoid(1.0, 0)
        theirs.load_state_dict(tq.to_torch_ao(ours.state_dict(), theirs))
        if name.startswith("PReLU"):  # for torch's kernel docs/from-torch-ao.md
            own, loaded = ours.module, theirs.module
            assert (loaded.scale, loaded.zero_point) == (own.scale.item(), own.zero_point.item())
            assert_same_bits(own.weight().dequantize(), loaded.weight.dequantize())
        else:
            assert_same_bits(ours(x), theirs(x), name)


DYNAMIC = {
    "product": (lambda: nn.Linear(4, 3, bias=False), ROWS),
    "product and ReLU": (lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()), ROWS),
    "Linear": (lambda: nn.Linear(4, 3), ROWS),
    "LinearReLU": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), ROWS),
    "LSTM": (lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True), SEQUENCES[::2] + (4,)),
    "GRU": (lambda: nn.GRU(4, 3), SEQUENCES[::2] + (4,)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), ROWS),
    "GRUCell": (lambda: nn.GRUCell(4, 3), ROWS),
    "RNNCell": (lambda: nn.RNNCell(4, 3), ROWS),
}


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=["int8", "float16"])
@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_layers(name, dtype):
    """Products have the same bits; fbgemm does not round before it adds a bias, and torch's sigmoid and tanh differ."""
    make, shape = DYNAMIC[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    ours = tq.quantize_dynamic(fused(tq, tq.QuantWrapper(filled(make())).eval()).module, dtype=dtype)
    with torch_ao() as ao, torch_engine("fbgemm"):
        model = fused(ao, ao.QuantWrapper(make()).eval())
        kinds = {nn.Linear, nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell, torch.ao.nn.intrinsic.LinearReLU}
        theirs = ao.quantize_dynamic(model, kinds, dtype).module
        theirs.load_state_dict(tq.to_torch_ao(ours.state_dict(), theirs))
        for own, other in zip(flat(ours(x)), flat(theirs(x)), strict=True):
            exact = name.startswith("product") and dtype is torch.qint8
            torch.testing.assert_close(own, other, rtol=0, atol=0 if exact else 2e-6)


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else [one for part in result for one in flat(part)]


def test_embeddings():
    settings = tq.QConfigDynamic(weight=tq.PerChannelMinMaxObserver.with_args(dtype=torch.quint8))
    ours = tq.quantize_dynamic(nn.Sequential(filled(nn.Embedding(10, 4))), {nn.Embedding: settings})
    state = ours.state_dict()
    state["0.weight.scale"] = torch.full((10,), 0.25)  # with which torch's q * scale - zero_point * scale is exact
    ours.load_state_dict(state)
    with torch_ao() as ao, torch_engine("fbgemm"):
        model = nn.Sequential(nn.Embedding(10, 4))
        model.qconfig = ao.float_qparams_weight_only_qconfig
        theirs = ao.convert(ao.prepare(model))
        theirs.load_state_dict(tq.to_torch_ao(ours.state_dict(), theirs))
        rows = torch.arange(10)
        assert_same_bits(ours(rows), theirs(rows))
        again = tq.from_torch_ao(theirs.state_dict())
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], state[key]) for key in state)


def test_scales_of_outputs_that_torch_ao_has_not():
    ours = tq.QuantWrapper(nn.ConvTranspose2d(4, 4, 2))
    ours.qconfig = tq.get_default_qconfig("fbgemm")
    prepared = tq.prepare(ours.eval())
    prepared(torch.randn(IMAGES))
    state = tq.convert(prepared).state_dict()
    with torch_ao() as ao, torch_engine("fbgemm"):
        theirs = converted(ao, lambda _: nn.ConvTranspose2d(4, 4, 2), None, torch.randn(IMAGES))
        with pytest.raises(ValueError, match=r"module\.weight has a scale for each output, .* default_weight_observer"):
            tq.to_torch_ao(state, theirs)
