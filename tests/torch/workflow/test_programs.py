"""Converted models as one graph: torch.compile(fullgraph=True) and torch.export, with the same bits."""

import pytest
import torch
from front_models import Conv1D, Transformer, decibels
from support import assert_same_bits
from torch import nn
from workflow_support import with_qconfig

from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    QConfig,
    QuantStub,
    convert,
    default_dynamic_qconfig,
    float16_dynamic_qconfig,
    get_default_qat_qconfig,
    get_default_qconfig,
    prepare,
    prepare_qat,
    quantize_dynamic,
    quantize_model,
    report,
)


class Mixed(nn.Module):
    """Static convolutions, a sum and a linear layer, and a dynamic one behind them."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant, self.add = QuantStub(), DeQuantStub(), FloatFunctional()
        self.conv, self.side, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(1, 4, 1), nn.Linear(64, 8)
        self.head = nn.Linear(8, 3)
        self.head.qconfig = None

    def forward(self, x):
        x = self.quant(x)
        x = self.add.add_relu(self.conv(x), self.side(x))
        return self.head(self.dequant(self.fc(torch.flatten(x, 1))))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    prepared = prepare(with_qconfig(Mixed().eval(), get_default_qconfig("fbgemm")))
    prepared(torch.randn(64, 1, 4, 4))
    return quantize_dynamic(convert(prepared), {"head"})


X = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_one_graph(model, backend):
    with torch.no_grad():
        assert_same_bits(torch.compile(model, fullgraph=True, backend=backend)(X), model(X))


def test_exported(model):
    program = torch.export.export(model, (X,))
    with torch.no_grad():
        assert_same_bits(program.module()(X), model(X))
        assert_same_bits(program.module()(3 * X), model(3 * X))
    assert {"conv.weight.int_repr", "head.weight.int_repr"} <= program.state_dict.keys()
    # The time of an export is that of its nodes: each law is one, and none converts to the type that is there.
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert len([node for node in calls if node.target == torch.ops.qtorch.affine_law.default]) == 7
    assert len(calls) < 15
    with torch.no_grad():
        apart = torch.export.export(model, (X,), strict=True)  # Dynamo traces the code of layers
    casts = [node for node in apart.graph.nodes if node.target == torch.ops.aten.to.dtype]
    assert casts
    assert not [node for node in casts if node.args[0].meta["val"].dtype is node.args[1]]


SETTINGS = {
    "8 bits": default_dynamic_qconfig,
    "float16": float16_dynamic_qconfig,
    "formats": QConfig("e4m3fn", "mxfp4"),
    "blocks": QConfig("mxfp8_e4m3", "mxfp4"),
    "weights": QConfig(None, "e4m3fn"),
}


RECURRENT = {
    "LSTM": nn.LSTM(5, 4, proj_size=3),
    "GRU": nn.GRU(5, 4, bias=False),
    "layers": nn.LSTM(5, 4, 2, bidirectional=True),
}
CASES = [
    pytest.param(kind, name, marks=[] if (kind, name) == ("LSTM", "formats") else pytest.mark.heavy)
    for kind in RECURRENT
    for name in SETTINGS
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_recurrent_layers_are_one_node(kind, name):
    """Exported and compiled, a program does not grow with the steps; the bits are those of the eager layer."""
    torch._dynamo.reset()  # torch keeps at most eight programs of one forward
    torch.manual_seed(0)
    layer, x = RECURRENT[kind], torch.randn(12, 3, 5)
    made = quantize_model(layer.eval(), SETTINGS[name])
    program = torch.export.export(made, (x,))
    nodes = [node for node in program.graph.nodes if "qtorch.recurrent" in str(node.target)]
    assert len(nodes) == len(made.ih)
    steps = [node for node in program.graph.nodes if "tanh" in str(node.target)]
    assert not steps
    with torch.no_grad():
        compiled = torch.compile(made, fullgraph=True, backend="eager")
        for one in (program.module(), *([compiled] if (kind, name) != ("LSTM", "formats") else [])):
            for found, expected in zip(one(x)[1], made(x)[1], strict=True):
                assert_same_bits(found, expected)
            assert_same_bits(one(-x)[0], made(-x)[0])


@pytest.mark.heavy
def test_gradients_go_through_the_steps():
    """A layer of formats is trained operation by operation, also where its program is compiled."""
    torch.manual_seed(0)
    made = quantize_model(nn.LSTM(5, 4).eval(), QConfig("e4m3fn", "mxfp4"))
    x = torch.randn(2, 2, 5, requires_grad=True)
    gradients = []
    for run in (made, torch.compile(made, backend="aot_eager")):
        (gradient,) = torch.autograd.grad(run(x)[0].square().sum(), x)
        gradients.append(gradient)
    assert gradients[0].abs().sum() > 0
    assert_same_bits(*gradients)


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for seed in range(2):
        optimizer.zero_grad()
        model(words(seed)).square().mean().backward()
        optimizer.step()


def words(seed):
    return torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(seed))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("qconfig", "data"),
    [
        (None, {"train": train}),
        (QConfig("e4m3fn", "mxfp8_e4m3"), {"train": train}),
        (None, {"calibrate": [words(5)]}),
        (default_dynamic_qconfig, {}),
    ],
    ids=["trained", "trained with formats", "calibrated", "dynamic"],
)
def test_blocks_of_gpt2(qconfig, data):
    """transformers' Conv1D in a block with attention, trained, converted and exported with equal bits."""
    model = Transformer().eval()
    made = quantize_model(model, qconfig, **data)
    rows = report(made)
    assert not [row.path for row in rows if row.layer == "Conv1D"]
    assert all(rows[path].state != "float" for path in rows_of(rows, ("attn", "proj", "fc", "out")))
    x = words(9)
    with torch.no_grad():
        program = torch.export.export(made, (x,))
        for seed in (9, 10):
            assert_same_bits(program.module()(words(seed)), made(words(seed)))
    assert data.get("train") or decibels(model(x), made(x)) > 20


def rows_of(rows, names):
    return [row.path for row in rows if row.path.split(".")[0] in names and row.state != "passing"]


def test_conv1d_alone_is_listed_with_the_remedy():
    model = with_qconfig(nn.Sequential(Conv1D(4, 3), nn.Linear(4, 2)).train(), get_default_qat_qconfig())
    made = convert(prepare_qat(model).eval(), allow_uncalibrated=True)
    assert "quantize_model makes it a Linear" in report(made)["0"].reason
