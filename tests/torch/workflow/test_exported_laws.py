"""Programs of torch.export: a law is one operator with the layer's bits, which torch takes apart where it must."""

import io
from collections import Counter

import pytest
import torch
from support import assert_same_bits
from torch import nn

from qcore import BlockScaled
from qtorch.quantization import QConfig, default_dynamic_qconfig, default_per_channel_weight_observer, quantize_model


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def operators(program):
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def laws(program):
    return sum(count for name, count in operators(program).items() if name.startswith("qtorch."))


def exported(model, x, batch=None):
    return torch.export.export(model, (x,), dynamic_shapes=None if batch is None else ({0: batch},))


def check(model, x, most):
    """Few operators, and the bits of the model: as it is, from a file, and taken apart; for other batches as well."""
    other = torch.cat([x, x])
    with torch.no_grad():
        for batch in (None, torch.export.Dim("batch", min=2)):
            program = exported(model, x, batch)
            assert 0 < laws(program) <= most
            apart = program.run_decompositions()
            assert not laws(apart)
            for one in (x, other) if batch else (x,):
                for found in (program, apart, program.run_decompositions({})):
                    assert_same_bits(found.module()(one), model(one))
    return program


def images(*layers):
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), *layers, nn.Conv2d(4, 4, 1))


def test_operators_of_a_model():
    x = random(2, 4, 6, 6)
    model = nn.Sequential(*images(nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(36, 3)).eval()
    model = quantize_model(model, calibrate=[x])
    program = exported(model, x, torch.export.Dim("batch", min=2))
    assert operators(program)["qtorch.affine_law.default"] == 6  # quantize, three products, the pool, dequantize
    assert sum(operators(program).values()) < 20
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    y = torch.cat([-x, x])
    assert_same_bits(torch.export.load(file).module()(y), model(y))
    apart = program.run_decompositions()
    assert not laws(apart)
    assert_same_bits(apart.module()(y), model(y))


def test_only_laws_are_named():
    with pytest.raises(ValueError, match="os:getcwd is no law; allowed are programs that this version"):
        torch.ops.qtorch.affine_law([torch.ones(1)], [], '[{"name": "os:getcwd"}, ["tuple"], ["tuple"]]')


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (4, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.out((torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v).transpose(1, 2).flatten(2))


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(32, 16)

    def forward(self, x):
        a, b = self.first(x), self.second(x)
        return self.last(torch.cat([a + b, a * b], 1))


def linear(*layers):
    return nn.Sequential(nn.Linear(16, 16), *layers, nn.Linear(16, 16))


ROW, IMAGE = (2, 16), (2, 4, 8, 8)
KINDS = {
    "linear": (nn.Linear(16, 16), ROW),
    "conv1d": (nn.Conv1d(4, 4, 3, groups=2), (2, 4, 8)),
    "conv2d": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), IMAGE),
    "depthwise": (nn.Conv2d(16, 16, 3, groups=16), (2, 16, 6, 6)),
    "conv3d": (nn.Conv3d(4, 4, 3), (2, 4, 4, 4, 4)),
    "transposed 1d": (nn.ConvTranspose1d(4, 4, 3, 2, groups=2), (2, 4, 8)),
    "transposed 2d": (nn.ConvTranspose2d(4, 4, 3, 2), IMAGE),
    "joined": (Joined(), ROW),
    "attention": (Attention(), (2, 5, 16)),
    "activations": (linear(nn.Sigmoid(), nn.Hardswish(), nn.ELU(), nn.LeakyReLU(), nn.PReLU(), nn.ReLU6()), ROW),
    "layer norm": (linear(nn.LayerNorm(16)), ROW),
    "norms": (images(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4)), IMAGE),
    "pools": (images(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AdaptiveAvgPool2d(3)), IMAGE),
}


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:these layers have larger errors")
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_layers(kind):
    torch.manual_seed(0)
    model, shape = KINDS[kind]
    check(quantize_model(nn.Sequential(model).eval(), calibrate=[random(*shape)]), random(*shape), 14)


@pytest.mark.heavy
def test_embeddings():
    indices = torch.tensor([[1, 2], [3, 4]])
    check(quantize_model(nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 4)).eval(), calibrate=[indices]), indices, 4)


OTHERS = {
    "dynamic": default_dynamic_qconfig,
    "channels": QConfig(None, default_per_channel_weight_observer),
    "e4m3fn": QConfig(None, "e4m3fn"),
    "mxfp4": QConfig(None, "mxfp4"),
    "nf4": QConfig(None, "nf4(block=64)"),
    "groups": QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")),
}


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OTHERS)
def test_other_settings(name, dtype):
    model = quantize_model(nn.Sequential(nn.Linear(64, 8)).eval().to(dtype), OTHERS[name])
    check(model, random(2, 64).to(dtype), 4)


@pytest.mark.heavy
def test_compilers_see_operations():
    """Inductor fuses them, and Dynamo, which strict exports use, traces the layers' code."""
    x = random(2, 4, 8, 8)
    model = quantize_model(images(nn.BatchNorm2d(4)).eval(), calibrate=[x])
    program = exported(model, x)
    with torch.no_grad():
        assert_same_bits(torch.compile(program.module(), fullgraph=True)(x), model(x))
        strict = torch.export.export(model, (x,), strict=True)
        assert not laws(strict)
        assert_same_bits(strict.module()(x), model(x))
