"""ShuffleNet and U-Net in PyTorch and flax, written from their descriptions: quantized, trained, saved and exported."""

import copy
import io

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from carrying_support import calibrated, channels_last, same_at_every_layer, tensors_of
from covering import usually
from flax import nnx
from quantization_support import torch_ao, torch_engine
from support import assert_same_bits
from torch import nn
from torch.nn import functional as F

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qjax.quantization import functional
from qtorch.nn.quantized import FloatFunctional

BATCH = np.random.default_rng(0).normal(size=(8, 4, 12, 12)).astype(np.float32)


def block(*layers):
    return nn.Sequential(*layers)


class ShuffleNet(nn.Module):
    """Two units of ShuffleNet v2: one half of the channels passes, the other goes through three convolutions."""

    rows = tuple([f"{unit}.{i}" for i in row] for unit in ("a", "b") for row in ((0, 1, 2), (3, 4), (5, 6, 7)))

    def __init__(self, package, floats):
        super().__init__()
        self.quant, self.dequant = package.QuantStub(), package.DeQuantStub()
        self.stem = nn.Conv2d(4, 8, 1)
        for name in ("a", "b"):
            parts = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()
            deep = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4)
            setattr(self, name, block(*parts, *deep, nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()))
            setattr(self, f"{name}_cat", floats())
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(self.quant(x))
        for branch, joined in ((self.a, self.a_cat), (self.b, self.b_cat)):
            left, right = x.chunk(2, 1)
            x = F.channel_shuffle(joined.cat([left, branch(right)], 1), 2)
        return self.dequant(self.fc(x.mean((2, 3))))


class JaxShuffleNet(nnx.Module):
    rows = ShuffleNet.rows

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        self.stem = nnx.Conv(4, 8, (1, 1), rngs=rngs)
        for name in ("a", "b"):
            layers = []
            for size, groups in ((1, 1), (3, 4), (1, 1)):
                conv = nnx.Conv(4, 4, (size, size), feature_group_count=groups, rngs=rngs)
                layers += [conv, nnx.BatchNorm(4, epsilon=1e-5, rngs=rngs), *([] if size == 3 else [qnn.ReLU()])]
            setattr(self, name, nnx.Sequential(*layers))
            setattr(self, f"{name}_cat", qnn.FloatFunctional())
        self.fc = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = self.stem(self.quant(x))
        for branch, joined in ((self.a, self.a_cat), (self.b, self.b_cat)):
            left, right = functional.chunk(x, 2, -1)
            x = functional.channel_shuffle(joined.cat([left, branch(right)], -1), 2, channels_last=True)
        return self.dequant(self.fc(x.mean((1, 2))))


class UNet(nn.Module):
    """Down, up by a transposed convolution with a batch norm, and the skipped images beside what comes up."""

    rows = (["down.0", "down.1", "down.2"], ["deep.0", "deep.1", "deep.2"], ["up", "norm"])

    def __init__(self, package, floats):
        super().__init__()
        self.quant, self.dequant = package.QuantStub(), package.DeQuantStub()
        self.down = block(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.deep = block(nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.up, self.norm, self.cat = nn.ConvTranspose2d(8, 6, 2, 2), nn.BatchNorm2d(6), floats()
        self.act, self.head = nn.PReLU(12), nn.Conv2d(12, 2, 1)

    def forward(self, x):
        skip = self.down(self.quant(x))
        x = self.norm(self.up(self.deep(F.max_pool2d(skip, 2))))
        x = self.act(self.cat.cat([F.pad(skip, (1, 1, 0, 0)), F.pad(x, (1, 1, 0, 0))], 1))
        return self.dequant(self.head(x)).permute(0, 2, 3, 1)


class JaxUNet(nnx.Module):
    rows = UNet.rows

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        for name, sizes in (("down", (4, 6)), ("deep", (6, 8))):
            conv, norm = nnx.Conv(*sizes, (3, 3), rngs=rngs), nnx.BatchNorm(sizes[1], epsilon=1e-5, rngs=rngs)
            setattr(self, name, nnx.Sequential(conv, norm, qnn.ReLU()))
        self.up = nnx.ConvTranspose(8, 6, (2, 2), (2, 2), padding="VALID", rngs=rngs)
        self.norm, self.cat = nnx.BatchNorm(6, epsilon=1e-5, rngs=rngs), qnn.FloatFunctional()
        self.act, self.head = qnn.PReLU(12), nnx.Conv(12, 2, (1, 1), rngs=rngs)

    def __call__(self, x):
        skip = self.down(self.quant(x))
        x = self.norm(self.up(self.deep(qnn.max_pool(skip, (2, 2), (2, 2)))))
        sides = ((0, 0), (0, 0), (1, 1), (0, 0))
        x = self.act(self.cat.cat([functional.pad(skip, sides), functional.pad(x, sides)], -1))
        return self.dequant(self.head(x))


NETS = {"ShuffleNet": (ShuffleNet, JaxShuffleNet), "U-Net": (UNet, JaxUNet)}


def floats_of(kind, package=tq, functional=FloatFunctional):
    torch.manual_seed(1)
    model = kind(package, functional)
    for _ in range(3):  # statistics
        model(torch.from_numpy(BATCH))
    return model.eval()


@pytest.mark.heavy  # with stubs of their own; test_quantize_model has these blocks without
@pytest.mark.parametrize("name", NETS)
def test_converted_models(name):
    """The same integers at every layer in both packages, of floats and of integers that are carried over."""
    kind, jax_kind = NETS[name]
    floats, settings = floats_of(kind), tq.get_default_qconfig("fbgemm")
    observed = calibrated(tq.fuse_modules(floats, kind.rows), settings, BATCH)
    converted = tq.convert(observed)
    own = qnn.from_torch(jax_kind(), tensors_of(floats))
    own.eval()
    weight = "fc.weight" if name == "ShuffleNet" else "up.weight"
    assert_same_bits(qnn.to_torch(own)[weight], tensors_of(floats)[weight])
    expected = floats(torch.from_numpy(BATCH)).detach()
    np.testing.assert_allclose(own(channels_last(BATCH)), expected, atol=1e-4)
    fused, of_jax = qnn.fuse_modules(own, kind.rows), jq.get_default_qconfig("fbgemm")
    served = qnn.from_torch(fused, tensors_of(converted), of_jax)
    same_at_every_layer(converted, served, BATCH[::-1].copy(), channels_last)
    same_state(qnn.to_torch(served), tensors_of(converted))
    prepared = qnn.from_torch(qnn.prepare(fused, of_jax), tensors_of(observed))
    same_state(qnn.to_torch(qnn.convert(prepared)), tensors_of(converted))


def same_state(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        assert array.reshape(-1).tobytes() == expected[name].reshape(-1).tobytes(), name


@pytest.mark.parametrize("name", usually(("U-Net",), NETS))
def test_copies_files_and_exports(name):
    """All have the bits of the converted model; nothing between the stubs is in floats."""
    kind, _ = NETS[name]
    floats, settings = floats_of(kind), tq.get_default_qconfig("fbgemm")
    fused = tq.fuse_modules(floats, kind.rows)
    small, x = tq.convert(calibrated(fused, settings, BATCH)), torch.from_numpy(BATCH)
    expected = small(x)
    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    loaded = tq.load_converted(fused, torch.load(file, weights_only=True))
    exported = torch.export.export(small, (x,)).module()
    for model in (copy.deepcopy(small), loaded, exported):
        assert_same_bits(model(x), expected)
    assert not [row.path for row in tq.report(small) if row.state == "float" and row.name not in ("Identity",)]


@pytest.mark.parametrize("name", NETS)
def test_as_near_as_torch_ao(name):
    """The error beside the model of floats, in decibels: at most 0.5 more than that of torch.ao's model."""
    kind, x = NETS[name][0], torch.from_numpy(BATCH[::-1].copy())

    def error(package, functional):
        floats = floats_of(kind, package, functional)
        model = package.fuse_modules(copy.deepcopy(floats), [list(row) for row in kind.rows])
        model.qconfig = package.get_default_qconfig("fbgemm")
        for layer in model.modules():  # with one scale, as torch.ao wants them
            if isinstance(layer, (nn.ConvTranspose2d, nn.PReLU)):
                layer.qconfig = package.QConfig(model.qconfig.activation, package.default_weight_observer)
        model = package.prepare(model)
        model(torch.from_numpy(BATCH))
        expected = floats(x)
        return 20 * torch.log10((package.convert(model)(x) - expected).norm() / expected.norm())

    ours = error(tq, FloatFunctional)
    with torch_ao() as ao, torch_engine("fbgemm"):
        assert ours < error(ao, torch.ao.nn.quantized.FloatFunctional) + 0.5
    assert ours < -20


@pytest.mark.heavy
@pytest.mark.parametrize("name", NETS)
def test_trained_models(name):
    """Fake-quantized training runs, and the converted model is near what was trained, in both packages."""
    kind, jax_kind = NETS[name]
    torch.manual_seed(2)
    model, x = kind(tq, FloatFunctional).train(), torch.from_numpy(BATCH)
    rows = [row for row in kind.rows if row[0] != "up"]  # whose batch norm is folded in evaluation only
    model = tq.fuse_modules(model, rows)
    model.qconfig = tq.get_default_qat_qconfig("fbgemm")
    trained = tq.prepare_qat(model)
    optimizer = torch.optim.SGD(trained.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        trained(x).square().mean().backward()
        optimizer.step()
    trained.eval()
    apart = (tq.convert(trained)(x) - trained(x)).norm() / trained(x).norm()
    assert apart < 0.1
    own = jax_kind()
    own.train()
    prepared = qnn.prepare_qat(qnn.fuse_modules(own, rows), jq.get_default_qat_qconfig("fbgemm"))
    nnx.jit(lambda model, x: model(x))(prepared, channels_last(BATCH))
    prepared.eval()
    simulated = prepared(channels_last(BATCH))
    made = qnn.convert(prepared)(channels_last(BATCH))
    assert jnp.linalg.norm((made - simulated).ravel()) < 0.1 * jnp.linalg.norm(simulated.ravel())
