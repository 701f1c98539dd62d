"""to_onnx(exact=False): onnxruntime fuses the nodes, and no integer is further from the model's than one."""

import io

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import nnx
from flax_support import layer_of

import qjax.nnx as qnn
from qcore import BlockScaled
from qjax.export import to_onnx, to_qonnx
from qjax.quantization import QConfig


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def ran(model, x, folder):
    """The operators of the file, those that onnxruntime makes of them, and its result."""
    file, optimized = folder / "model.onnx", folder / "optimized.onnx"
    to_onnx(model, (x,), file, exact=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.optimized_model_filepath = str(optimized)
    session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    return *({node.op_type for node in onnx.load(one).graph.node} for one in (file, optimized)), found


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv, self.norm = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.relu, self.other = qnn.ReLU(), nnx.Conv(8, 8, (3, 3), feature_group_count=2, rngs=rngs)
        self.fc = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.fc(self.other(self.relu(self.norm(self.conv(x)))))


@pytest.mark.heavy
def test_layers_are_fused(tmp_path):
    model, x = Net(), normal(2, 6, 6, 3)
    model.eval()
    small = qnn.quantize_model(model, calibrate=[x])
    written, fused, found = ran(small, x, tmp_path)
    assert not written & {"MatMulInteger", "ConvInteger", "Round", "Max"}
    assert {"QLinearConv", "QGemm"} <= fused
    assert not fused & {"Conv", "Gemm", "MatMul", "Relu"}
    scale = [layer.scale for layer in qnn.report(small) if layer.scale][-1]
    steps = abs(np.asarray(nnx.jit(lambda model, x: model(x))(small, x)) - found) / scale
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < 0.05


def test_dynamic_layers(tmp_path):
    x = normal(5, 64)
    floats = nnx.Sequential(layer_of(nnx.Linear, 64, 32), jax.nn.relu, layer_of(nnx.Linear, 32, 8))
    small = qnn.quantize_dynamic(floats)
    _, fused, found = ran(small, x, tmp_path)
    assert "DynamicQuantizeMatMul" in fused
    wanted = np.asarray(floats(x))
    assert np.linalg.norm(found - wanted) < 1.1 * np.linalg.norm(np.asarray(small(x)) - wanted)


def test_weights_alone_are_products_of_few_bits(tmp_path):
    floats, x = nnx.Sequential(layer_of(nnx.Linear, 64, 32)), normal(5, 64)
    number = BlockScaled("int4", {-1: 32}, scale="float32")
    small = qnn.quantize_model(floats, QConfig(None, number), calibrate=[x])
    _, fused, found = ran(small, x, tmp_path)
    assert "MatMulNBits" in fused
    assert np.linalg.norm(found - np.asarray(small(x))) < 0.02 * np.linalg.norm(found)


@pytest.mark.heavy
def test_formats_of_8_bits(tmp_path):
    x = normal(5, 64)
    floats = nnx.Sequential(layer_of(nnx.Linear, 64, 32), qnn.ReLU(), layer_of(nnx.Linear, 32, 8))
    small = qnn.quantize_model(floats, QConfig("e4m3fn", "e4m3fn"), calibrate=[x])
    written, _, found = ran(small, x, tmp_path)
    assert {"QuantizeLinear", "DequantizeLinear"} <= written
    wanted = np.asarray(nnx.jit(lambda model, x: model(x))(small, x))
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)


@pytest.mark.parametrize("write", [to_onnx, to_qonnx])
def test_a_file_in_memory(write, tmp_path):
    file = io.BytesIO()
    write(lambda x: x + 1, (normal(2),), file)
    write(lambda x: x + 1, (normal(2),), tmp_path / "model.onnx")
    assert file.getvalue() == (tmp_path / "model.onnx").read_bytes()


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"exact=0 is a int; allowed are True and False"):
        to_onnx(lambda x: x, (normal(2),), tmp_path / "model.onnx", exact=0)
