"""Models of fixed point as QONNX: `run_onnx` has their bits; tests/peers has QONNX's executor and hls4ml."""

import jax
import numpy as np
import onnx
import pytest
from flax import nnx
from flax_support import module_of, run

import qjax
from qcore.exchange import run_onnx
from qjax.export import to_qonnx
from qjax.nnx import quantize_model
from qjax.quantization import QConfig


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Conv(2, 3, (3, 3), rngs=rngs), nnx.Linear(108, 3, rngs=rngs)
        self.first.bias = nnx.Param(qjax.quantize(jax.random.normal(rngs(), (3,)), "fixed(8,6)"))

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)).reshape(1, -1))


def network(config):
    x = np.random.default_rng(0).standard_normal((1, 6, 6, 2)).astype(np.float32)
    return quantize_model(module_of(lambda: Network(nnx.Rngs(0))), config, calibrate=[x]), x


def test_a_network_of_fixed_point(tmp_path):
    rounded, x = network(QConfig("fixed(8,4)", "fixed(6,4)"))
    model = nnx.Sequential(lambda x: qjax.quantize(x, "fixed(8,4)"), rounded)
    path = tmp_path / "model.onnx"
    to_qonnx(model, (x,), path)
    made = onnx.load(path)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("Quant") == 5
    assert not {"Identity", "Max"} & set(kinds)
    # The bias is an input of the convolution, whose sums are exact.
    assert [len(node.input) for node in made.graph.node if node.op_type == "Conv"] == [3]
    assert len(made.graph.quantization_annotation) >= 2
    for scale in (1, 9):
        (found,) = run_onnx(path, {made.graph.input[0].name: x * np.float32(scale)}).values()
        assert np.array_equal(found, run(model, x * np.float32(scale)))


@pytest.mark.heavy
def test_layers_of_integers_are_refused_by_name(tmp_path):
    model, x = network(None)
    with pytest.raises(
        ValueError, match=r"(first|second)(.|\n)*QONNX has no integers|QONNX has no integers(.|\n)*first"
    ):
        to_qonnx(model, (x,), tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.heavy
@pytest.mark.parametrize("weight", ["mxfp4", "e4m3fn"])
def test_narrow_floats_are_float_quant_and_products(tmp_path, weight):
    """QONNX's executor has no arrays of float8 or of 4 bits."""
    rounded, x = network(QConfig("e4m3fn", weight))
    model = nnx.Sequential(lambda x: qjax.quantize(x, "e4m3fn"), rounded)
    path = tmp_path / "model.onnx"
    to_qonnx(model, (x,), path)
    made = onnx.load(path)
    assert onnx.TensorProto.FLOAT8E4M3FN not in {one.data_type for one in made.graph.initializer}
    assert not {"Cast", "DequantizeLinear"} & {node.op_type for node in made.graph.node}
    for scale in (np.float32(1), np.float32(9)):
        (found,) = run_onnx(path, {made.graph.input[0].name: x * scale}).values()
        np.testing.assert_array_equal(found, run(model, x * scale))
