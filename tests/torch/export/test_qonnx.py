"""Models of fixed point as QONNX: `run_onnx` has their bits; tests/peers has QONNX's executor and hls4ml."""

import onnx
import pytest
import torch
from covering import usually
from torch import nn

import qtorch
from qcore.exchange import run_onnx
from qtorch.export import to_qonnx
from qtorch.quant import Quantizer
from qtorch.quantization import QConfig, quantize_model


def network(config):
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 2, 6, 6)
    with torch.no_grad():
        for layer in (model[0], model[4]):
            layer.bias.copy_(qtorch.quantize(layer.bias, "fixed(8,6)"))
    return quantize_model(model, config, calibrate=[x]), x


def test_a_network_of_fixed_point(tmp_path):
    rounded, x = network(QConfig("fixed(8,4)", "fixed(6,4)"))
    model = nn.Sequential(Quantizer("fixed(8,4)", forward_rounding="nearest"), rounded).eval()
    path = tmp_path / "model.onnx"
    to_qonnx(model, (x,), path)
    made = onnx.load(path)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("Quant") == 5
    assert "Identity" not in kinds
    assert len(made.graph.quantization_annotation) == 2
    for scale in (1, 9):
        (found,) = run_onnx(path, {made.graph.input[0].name: x.numpy() * scale}).values()
        assert torch.equal(torch.from_numpy(found), model(x * scale))


def test_layers_of_integers_are_refused_by_name(tmp_path):
    model, x = network(None)
    with pytest.raises(ValueError, match=r"^(?!the model).*QONNX has no integers"):
        to_qonnx(model, (x,), tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


def narrow(activation, weight):
    """A model of narrow floats with scales, and its input."""
    rounded, x = network(QConfig(activation, weight))
    return nn.Sequential(Quantizer("e4m3fn", forward_rounding="nearest"), rounded).eval(), x


@pytest.mark.parametrize("weight", usually(("int4",), ("e4m3fn", "mxfp8_e4m3", "mxfp4", "nvfp4", "int4")))
def test_narrow_floats_are_float_quant_and_products(tmp_path, weight):
    """QONNX's executor has no arrays of float8 or of 4 bits; tests/peers runs it."""
    model, x = narrow("e4m3fn", weight)
    path = tmp_path / "model.onnx"
    to_qonnx(model, (x,), path)
    made = onnx.load(path)
    assert {one.data_type for one in made.graph.initializer} <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
    assert not {"Cast", "DequantizeLinear"} & {node.op_type for node in made.graph.node}
    for scale in (1, 9):
        (found,) = run_onnx(path, {made.graph.input[0].name: x.numpy() * scale}).values()
        assert torch.equal(torch.from_numpy(found), model(x * scale))
