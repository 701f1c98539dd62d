"""Compiled programs round to 16 bits where a product, or a law, begins and ends.

Inductor leaves chains of operations of 16-bit numbers unrounded, in programs without qtorch too. So each program here
has one multiplication in front of a layer and one behind it: whatever the layer reads or returns unrounded shows in the
results, or in the gradients.
"""

import copy

import pytest
import torch
from covering import usually
from support import assert_all_same_bits
from torch import nn

import qtorch
from qcore import RECIPES
from qtorch.quantization import (
    FakeQuantize,
    MovingAverageMinMaxObserver,
    QConfig,
    QuantWrapper,
    convert,
    default_qconfig,
    default_weight_only_qconfig,
    fake_quantize_per_tensor_affine,
    prepare,
    quantize_dynamic,
    quantize_model,
)
from qtorch.recipes import lower

DTYPES = [torch.bfloat16, torch.float16]


class Between(nn.Module):
    """Layers, each between two multiplications, and each with an input of its own, as a sum of gradients is a chain."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs):
        results = [layer(x * 1.7) for layer, x in zip(self.layers, inputs, strict=True)]
        return [(y[0] if isinstance(y, tuple) else y) * 1.3 for y in results]


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Rows(nn.Module):
    """Rows of a table, whatever the input."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, x):
        return self.table(torch.arange(len(x)))


def results_of(model, x):
    """The results and, for random gradients of them, the gradients of inputs and parameters."""
    inputs = [x.clone().requires_grad_(torch.is_grad_enabled()) for _ in model.layers]
    results = model(inputs)
    if not torch.is_grad_enabled():
        return results
    torch.autograd.backward(results, [numbers(*y.shape).to(y.dtype) for y in results])
    parameters = [one for one in model.parameters() if one.requires_grad]
    return [*results, *(one.grad for one in (*inputs, *parameters))]


def check(model, x):
    torch.compiler.reset()
    twin = copy.deepcopy(model)  # a layer may observe
    assert_all_same_bits(results_of(torch.compile(twin, fullgraph=True, backend="aot_eager"), x), results_of(model, x))


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def made(layer, qconfig, dtype, inputs=None):
    """A layer, quantized; inputs for its observers, if it has some."""
    layer = nn.Sequential(layer).to(dtype).eval()
    layer.qconfig = qconfig
    prepared = prepare(layer)
    if inputs is not None:
        prepared(inputs)
    return convert(prepared)[0]


def dynamic(layer, dtype, weight=torch.qint8):
    return quantize_dynamic(nn.Sequential(layer).to(dtype).eval(), {type(layer)}, dtype=weight)[0]


def of_formats(dtype):
    """A layer of a recipe, a product, and weights alone."""
    linear = lower(nn.Sequential(nn.Linear(64, 32)).to(dtype), RECIPES["mxfp8"])[0]
    other = numbers(64, 32).to(dtype)
    product = Function(lambda x: qtorch.linalg.matmul(x, other, operands=("e4m3fn", "e4m3fn")))
    weights = [made(nn.Linear(64, 32), QConfig(None, name), dtype) for name in ("mxfp8_e4m3", "nvfp4")]
    return Between(linear, product, *weights, dynamic(nn.Linear(64, 32), dtype, torch.float16))


def of_integers(dtype):
    """Integers between stubs, rows of a table, and fake quantization."""
    static = made(QuantWrapper(nn.Linear(64, 32)), default_qconfig, dtype, numbers(64, 64).to(dtype))
    table = made(nn.Embedding(64, 32), default_weight_only_qconfig, dtype)
    observed = FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)()
    fake = Function(lambda x: fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127))
    return Between(static, Rows(table), observed, fake)


def of_cells(dtype):
    """Layers with dynamic scales."""
    kinds = nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell, nn.Linear
    return Between(*(dynamic(kind(64, 16), dtype) for kind in kinds))


def of_convolutions(dtype):
    """A layer of a recipe, and weights alone."""
    conv = lower(nn.Sequential(nn.Conv1d(64, 8, 3)).to(dtype), RECIPES["fp8_chunked"])[0]
    return Between(conv, made(nn.Conv1d(64, 8, 3), QConfig(None, "e4m3fn"), dtype))


# Gradients of fake quantization are one choice in a chain of operations of 16 bits, and integers have none.
FORWARD = of_integers, of_cells


@pytest.mark.parametrize("dtype", usually([torch.bfloat16], DTYPES))
@pytest.mark.parametrize("layers", usually([of_formats], [of_formats, of_convolutions, *FORWARD]))
def test_what_a_layer_reads_and_returns_is_rounded(layers, dtype):
    torch.manual_seed(0)
    with torch.set_grad_enabled(layers not in FORWARD):
        check(layers(dtype), numbers(64, 64).to(dtype))


@pytest.mark.parametrize("dtype", usually([torch.bfloat16], DTYPES))
def test_results_under_autocast_are_rounded(dtype):
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype):
        check(lower(Between(nn.Linear(64, 32)), RECIPES["mxfp8"]), numbers(64, 64))


@pytest.mark.parametrize("strict", [pytest.param(True, marks=pytest.mark.heavy), False])
def test_exported_programs_hold_conversions_beside_products_only(strict):
    """Weights alone leave as programs that run without qtorch."""
    x, counts = torch.ones(2, 4, dtype=torch.bfloat16), []
    layer = nn.Linear(4, 3, dtype=torch.bfloat16)
    for model in (made(layer, QConfig(None, "e4m3fn"), x.dtype), lower(nn.Sequential(layer), RECIPES["mxfp8"])[0]):
        program = torch.export.export(model.eval(), (x,), strict=strict)
        counts.append(program.graph_module.code.count("qtorch.convert"))
    assert counts == [0, 4]


@pytest.mark.heavy
def test_exported_programs_that_inductor_compiles(tmp_path):
    """AOTInductor rounds at products; it fuses the conversions of weights alone, as docs/platforms.md says."""
    torch.manual_seed(0)
    x, counts = numbers(64, 64).to(torch.bfloat16), []
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(x.dtype).eval()
    weights = copy.deepcopy(model)
    weights.qconfig = QConfig(None, "mxfp8_e4m3")
    with torch.no_grad():
        for number, one in enumerate((lower(model, RECIPES["mxfp8"]), convert(prepare(weights)))):
            program = torch.export.export(one, (x,))
            path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / f"{number}.pt2"))
            counts.append(torch._inductor.aoti_load_package(path)(x).ne(one(x)).sum().item())
    assert counts == [0, 0]


@pytest.mark.heavy
@pytest.mark.parametrize("qconfig", [None, default_weight_only_qconfig], ids=["static", "weights"])
def test_packages_of_inductor_have_the_bits_of_quantized_models(qconfig, tmp_path):
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 4),
    )
    x = numbers(4, 3, 8, 8)
    model = quantize_model(nn.Sequential(*layers).eval(), qconfig, None if qconfig else [x])
    program = torch.export.export(model, (x,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    assert torch.equal(torch._inductor.aoti_load_package(path)(x), model(x))


def test_exported_programs_of_weights_alone_keep_gradients():
    """Their numbers lie in memory as integers, which have no gradients, unless these are recorded."""
    layer = made(nn.Linear(4, 3, dtype=torch.bfloat16), QConfig(None, "e4m3fn"), torch.bfloat16).eval()
    x, codes = torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True), []
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded):
            program = torch.export.export(layer, (x,))
            codes.append(program.graph_module.code.count("torch.int16"))
            y = program.module()(x)
        assert y.requires_grad == recorded
    assert codes == [0, 2]


def test_float32_programs_hold_no_conversion():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    layer = lower(nn.Sequential(nn.Linear(4, 3)), RECIPES["mxfp8"])
    torch.compiler.reset()
    for dtype in (torch.float32, torch.bfloat16):
        torch.compile(layer.to(dtype), backend=backend)(torch.ones(2, 4, dtype=dtype))
    assert [graph.code.count("qtorch.convert") for graph in graphs] == [0, 4]
