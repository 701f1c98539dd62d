"""to_onnx(exact=False): onnxruntime fuses the nodes, and no integer is further from the model's than one."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from covering import usually
from export_support import operators
from front_models import decibels
from torch import nn

from qcore import BlockScaled
from qcore.exchange import run_onnx
from qtorch.export import to_onnx
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QuantStub,
    convert,
    default_per_channel_weight_observer,
    default_qconfig,
    prepare,
    quantize_dynamic,
    quantize_model,
    report,
)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ran(model, x, folder):
    """The operators of the file, those that onnxruntime makes of them, and its result."""
    file, optimized = folder / "model.onnx", folder / "optimized.onnx"
    to_onnx(model, (x,), file, exact=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.optimized_model_filepath = str(optimized)
    session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return operators(onnx.load(file)), operators(onnx.load(optimized)), torch.from_numpy(found)


def assert_near(model, x, found, scale):
    """Integers differ by one at most, and few do."""
    with torch.no_grad():
        steps = ((model(x) - found) / scale).abs()
    assert steps.max() < 1.01
    assert (steps > 0.5).float().mean() < 0.05


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=2)
    )


LAYERS = {
    "images": (convolutions, (2, 3, 8, 8), {"QLinearConv"}),
    "signals": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, dilation=2), nn.ReLU()), (2, 3, 9), {"QLinearConv"}),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(3, 4, 2)), (2, 3, 4, 3, 5), {"QLinearConv"}),
    "rows": (lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), (5, 16), {"QGemm"}),
    "sequences": (lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), (2, 3, 16), {"QGemm"}),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2, 1, 1)), (2, 3, 5, 4), {"ConvTranspose"}),
    "norms": (
        lambda: nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Hardswish()),
        (5, 16),
        {"LayerNormalization"},
    ),
}
_LAWS = {"MatMulInteger", "ConvInteger", "Round", "ScatterND"}


@pytest.mark.parametrize("name", usually(("images",), LAYERS))
def test_layers_are_fused(name, tmp_path):
    torch.manual_seed(0)
    make, shape, kernels = LAYERS[name]
    x = normal(*shape)
    model = quantize_model(make().eval(), calibrate=[x])
    written, fused, found = ran(model, x, tmp_path)
    assert {"QuantizeLinear", "DequantizeLinear"} <= written
    assert not written & _LAWS
    assert kernels <= fused
    if kernels & {"QLinearConv", "QGemm"}:
        assert not fused & {"Conv", "Gemm", "MatMul", "FusedConv", "Max", "Relu"}
    scale = [layer.scale for layer in report(model) if layer.scale][-1]
    assert_near(model, x, found, scale)
    (own,) = run_onnx(tmp_path / "model.onnx", {"input": x.numpy()}).values()
    assert_near(model, x, torch.from_numpy(own), scale)


class Functions(nn.Module):
    """What `FloatFunctional` and torch do with quantized tensors."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.add, self.mul, self.cat, self.matmul = (FloatFunctional() for _ in range(4))

    def forward(self, x):
        x = self.quant(x)
        y = self.cat.cat([self.add.add_relu(x, x.flip(-1)), self.mul.mul(x, x)], 1)
        y = nn.functional.avg_pool2d(nn.functional.max_pool2d(y, 2), 3, 1, 1)
        y = self.matmul.matmul(y, y.transpose(-1, -2))
        return self.dequant(torch.sigmoid(nn.functional.adaptive_avg_pool2d(y, 2)).mean((2, 3)))


def test_functions_are_those_of_numbers(tmp_path):
    x = normal(2, 3, 8, 8)
    model = Functions().eval()
    model.qconfig = default_qconfig
    prepared = prepare(model)
    prepared(x)
    small = convert(prepared)
    written, _, found = ran(small, x, tmp_path)
    assert {"AveragePool", "MaxPool", "MatMul", "Concat", "Sigmoid"} <= written
    assert "Round" not in written
    assert_near(small, x, found, 1 / 256)


def test_dynamic_layers(tmp_path):
    torch.manual_seed(0)
    floats, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), normal(5, 64)
    model = quantize_dynamic(floats)
    written, fused, found = ran(model, x, tmp_path)
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= written
    assert "DynamicQuantizeMatMul" in fused
    assert not fused & {"MatMulInteger", "Gemm", "MatMul"}
    # It has 256 values for activations, where the layers have 128 for processors without VNNI.
    assert decibels(floats(x), found) > decibels(floats(x), model(x)) - 1


WEIGHTS = {
    "int8": default_per_channel_weight_observer,
    "groups of int4": BlockScaled("int4", {-1: 32}, scale="float32"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 64)])
def test_weights_alone_are_products_of_few_bits(name, shape, tmp_path):
    """Exact files keep a node between: these products round activations to 8 bits."""
    torch.manual_seed(0)
    model, x = quantize_model(nn.Sequential(nn.Linear(64, 32)).eval(), QConfig(None, WEIGHTS[name])), normal(*shape)
    written, fused, found = ran(model, x, tmp_path)
    assert written == {"DequantizeLinear", "MatMul", "Add"}
    assert "MatMulNBits" in fused
    assert decibels(model(x), found) > 35
    (own,) = run_onnx(tmp_path / "model.onnx", {"input": x.numpy()}).values()
    assert decibels(model(x), torch.from_numpy(own)) > 120
    to_onnx(model, (x,), tmp_path / "exact.onnx")
    assert "Clip" in operators(onnx.load(tmp_path / "exact.onnx"))


@pytest.mark.parametrize("number", usually(("e4m3fn",), ("e4m3fn", "e5m2")))
def test_formats_of_8_bits(number, tmp_path):
    """onnxruntime leaves a ReLU out before a zero point that is 0, also of floats."""
    torch.manual_seed(0)
    floats, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), normal(5, 64)
    model = quantize_model(floats, QConfig(number, "e4m3fn"), [x])
    written, _, found = ran(model, x, tmp_path)
    assert "QuantizeLinear" in written
    assert decibels(model(x), found) > 40
    (kind,) = {
        one.i
        for node in onnx.load(tmp_path / "model.onnx").graph.node
        for one in node.attribute
        if one.name == "output_dtype"
    }
    assert kind == {"e4m3fn": onnx.TensorProto.FLOAT8E4M3FN, "e5m2": onnx.TensorProto.FLOAT8E5M2}[number]


def test_what_has_no_fused_kernel_keeps_the_law(tmp_path):
    """Weights whose outputs have zero points of their own: a kernel of a runtime has one for all."""
    weight = PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_affine, ch_axis=0)
    x = normal(5, 16)
    torch.manual_seed(0)
    settings = QConfig(MinMaxObserver.with_args(dtype=torch.quint8), weight)
    model = quantize_model(nn.Sequential(nn.Linear(16, 8)).eval(), settings, [x])
    written, _, found = ran(model, x, tmp_path)
    assert "MatMulInteger" in written
    assert np.array_equal(found.numpy(), model(x).detach().numpy())


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"exact=1 is a int; allowed are True and False"):
        to_onnx(nn.Linear(2, 2).eval(), (normal(1, 2),), tmp_path / "model.onnx", exact=1)
