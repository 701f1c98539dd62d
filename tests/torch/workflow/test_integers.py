"""Whole converted models, eager and as one graph, have at every layer the integers of plain NumPy."""

import numpy as np
import pytest
import torch
from oracle_integers import Layers, max_pool2d
from support import assert_same_bits
from torch import nn
from workflow_support import digits, with_qconfig

from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    QTensor,
    QuantStub,
    convert,
    fuse_modules,
    get_default_qconfig,
    prepare,
    quantize_dynamic,
)

IMAGES = digits()[0]


def integers(*results):
    return tuple(one.values if isinstance(one, QTensor) else one for one in results)


class Perceptron(nn.Module):
    rows = (["first", "relu"],)

    def __init__(self):
        super().__init__()
        self.quant, self.first, self.relu, self.second = QuantStub(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)

    def forward(self, x):
        x = self.quant(torch.flatten(x, 1))
        hidden = self.relu(self.first(x))
        return integers(x, hidden, self.second(hidden))

    @staticmethod
    def expected(layers, x):
        x = layers.quantize("quant", x.reshape(len(x), -1))
        hidden = layers.linear("first", x, "quant", relu=True)
        return x, hidden, layers.linear("second", hidden, "first")


class Residual(nn.Module):
    """Convolutions with all kinds of margins, two of which end in a sum."""

    rows = (["conv1", "bn1", "relu1"], ["conv2", "bn2"], ["conv3", "relu3"])

    def __init__(self):
        super().__init__()
        self.quant, self.add, self.pool = QuantStub(), FloatFunctional(), nn.MaxPool2d(2)
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8)
        self.conv3, self.relu3 = nn.Conv2d(8, 8, 3, padding=2, padding_mode="circular", groups=8), nn.ReLU()
        self.conv4, self.fc = nn.Conv2d(8, 4, 1), nn.Linear(100, 10)

    def forward(self, x):
        x = self.quant(x)
        one = self.relu1(self.bn1(self.conv1(x)))
        two = self.bn2(self.conv2(one))
        both = self.add.add_relu(two, one)
        three = self.relu3(self.conv3(both))
        four = self.conv4(three)
        pooled = self.pool(four)
        return integers(x, one, two, both, three, four, pooled, self.fc(torch.flatten(pooled, 1)))

    @staticmethod
    def expected(layers, x):
        x = layers.quantize("quant", x)
        one = layers.conv2d("conv1", x, "quant", relu=True, padding=1)
        two = layers.conv2d("conv2", one, "conv1", padding=1, mode="reflect")
        both = layers.add("add", two, one, ("conv2", "conv1"), relu=True)
        three = layers.conv2d("conv3", both, "add", relu=True, padding=2, mode="wrap", groups=8)
        four = layers.conv2d("conv4", three, "conv3")
        pooled = max_pool2d(four, 2)
        return x, one, two, both, three, four, pooled, layers.linear("fc", pooled.reshape(len(x), -1), "conv4")


class Functionals(nn.Module):
    """Sums, products and concatenations of two linear layers."""

    rows = ()

    def __init__(self):
        super().__init__()
        self.quant, self.left, self.right = QuantStub(), nn.Linear(64, 16), nn.Linear(64, 16)
        self.sum, self.product, self.both = (FloatFunctional() for _ in range(3))
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        x = self.quant(torch.flatten(x, 1))
        left, right = self.left(x), self.right(x)
        total, product = self.sum.add(left, right), self.product.mul(left, right)
        both = self.both.cat([total, product], 1)
        return integers(x, left, right, total, product, both, self.last(both))

    @staticmethod
    def expected(layers, x):
        x = layers.quantize("quant", x.reshape(len(x), -1))
        left, right = (layers.linear(name, x, "quant") for name in ("left", "right"))
        total = layers.add("sum", left, right, ("left", "right"))
        product = layers.mul("product", left, right, ("left", "right"))
        both = layers.cat("both", (total, product), ("sum", "product"))
        return x, left, right, total, product, both, layers.linear("last", both, "both")


class Sequence(nn.Module):
    """An image's rows, one after another; layers are dynamic, and results floats."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 12), nn.Linear(12, 10)

    def forward(self, x):
        hidden = self.lstm(x[:, 0].transpose(0, 1))[0]
        return hidden, self.fc(hidden[-1])

    @staticmethod
    def expected(layers, x):
        hidden = layers.lstm("lstm", x[:, 0].swapaxes(0, 1))
        return hidden, layers.dynamic("fc", hidden[-1])


def converted(kind, backend):
    torch.manual_seed(0)
    model = kind()
    for _ in range(2 if kind is Residual else 0):  # statistics of batch norms
        model.train()(IMAGES[:64])
    if kind is Sequence:
        return quantize_dynamic(model)
    model = fuse_modules(model.eval(), kind.rows) if kind.rows else model.eval()
    prepared = prepare(with_qconfig(model, get_default_qconfig(backend)))
    prepared(IMAGES[:256])
    return convert(prepared)


KINDS = Perceptron, Residual, Functionals


@pytest.mark.parametrize(
    ("compiler", "kind", "backend"),
    [
        *((None, kind, backend) for kind in KINDS for backend in ("fbgemm", "qnnpack")),
        (None, Sequence, ""),
        pytest.param("aot_eager", Residual, "fbgemm", marks=pytest.mark.heavy),
        *(pytest.param("inductor", kind, "fbgemm", marks=pytest.mark.heavy) for kind in (*KINDS, Sequence)),
    ],
)
def test_every_layer(compiler, kind, backend):
    model, images = converted(kind, backend), IMAGES[1397:1461]
    layers = Layers({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    run = model if compiler is None else torch.compile(model, fullgraph=True, backend=compiler)
    with torch.no_grad():
        found = run(images)
    expected = kind.expected(layers, images.numpy())
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert len(np.unique(other)) > 8, number
        assert_same_bits(one.contiguous(), np.ascontiguousarray(other.astype(one.numpy().dtype)))
