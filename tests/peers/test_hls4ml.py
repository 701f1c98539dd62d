"""Fixed point networks as QONNX, from PyTorch and JAX: QONNX's executor and hls4ml's C++ have their bits."""

import jax
import numpy as np
import onnx
import pytest
import torch
from flax import nnx
from torch import nn

import qjax
import qtorch
from qcore.exchange import run_onnx
from qjax.export import to_qonnx as jax_to_qonnx
from qjax.nnx import quantize_model as quantize_jax_model
from qjax.quantization import QConfig as JaxQConfig
from qtorch.export import to_qonnx
from qtorch.quant import Quantizer
from qtorch.quantization import QConfig, quantize_model

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("qonnx")

INPUT, WEIGHT, BIAS = "fixed(8,4)", "fixed(6,4)", "fixed(8,6)"


def inputs(shape):
    """Batches of one, as the hardware's inputs have them: fixed point of 10 places, with ties of the first rounding."""
    x = torch.randn(40, 1, *shape, generator=torch.Generator().manual_seed(1)) * 3
    return torch.round(x * 2**10) / 2**10


def dense_in_torch():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (6,)


def convolutional_in_torch():
    layers = nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)
    return nn.Sequential(*layers), (2, 6, 6)


def from_torch(make, path):
    torch.manual_seed(0)
    layers, shape = make()
    with torch.no_grad():
        for layer in layers:
            if getattr(layer, "bias", None) is not None:
                layer.bias.copy_(qtorch.quantize(layer.bias, BIAS))
    x = inputs(shape)
    quantized = quantize_model(layers.eval(), QConfig(INPUT, WEIGHT), calibrate=[x[0]])
    model = nn.Sequential(Quantizer(INPUT, forward_rounding="nearest"), quantized).eval()
    to_qonnx(model, (x[0],), path)
    return x.numpy(), np.concatenate([model(one).detach().numpy() for one in x])


class Dense(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(6, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


class Convolutional(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Conv(2, 3, (3, 3), rngs=rngs), nnx.Linear(27, 3, rngs=rngs)

    def __call__(self, x):
        y = nnx.relu(self.first(x))
        return self.second(nnx.max_pool(y, (2, 2), (2, 2)).reshape(1, -1))


def from_jax(make, path):
    layers, shape = make
    layers = layers(nnx.Rngs(0))
    for layer in (layers.first, layers.second):
        bias = jax.random.normal(jax.random.key(1), layer.bias.shape) / 3
        layer.bias = nnx.Param(qjax.quantize(bias, BIAS))
    x = inputs(shape).numpy()
    quantized = quantize_jax_model(layers, JaxQConfig(INPUT, WEIGHT), calibrate=[x[0]])
    model = nnx.Sequential(lambda x: qjax.quantize(x, INPUT), quantized)
    jax_to_qonnx(model, (x[0],), path)
    return x, np.concatenate([np.asarray(model(one)) for one in x])


NETWORKS = {
    "dense, torch": (from_torch, dense_in_torch),
    "convolutional, torch": (from_torch, convolutional_in_torch),
    "dense, jax": (from_jax, (Dense, (6,))),
    "convolutional, jax": (from_jax, (Convolutional, (6, 6, 2))),
}


def prepared(path, images):
    """The model as hls4ml's documentation prepares it."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.channels_last import ConvertToChannelsLastAndClean
    from qonnx.transformation.gemm_to_matmul import GemmToMatMul
    from qonnx.util.cleanup import cleanup_model

    model = cleanup_model(ModelWrapper(str(path)))
    model = model.transform(ConvertToChannelsLastAndClean()) if images else model
    return cleanup_model(model.transform(GemmToMatMul()))


def executed(path, x):
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.util.cleanup import cleanup_model

    model = cleanup_model(ModelWrapper(str(path)))
    (given,), (wanted,) = model.graph.input, model.graph.output
    return np.concatenate([execute_onnx(model, {given.name: one})[wanted.name] for one in x])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_fixed_point(name, tmp_path):
    hls4ml = pytest.importorskip("hls4ml")
    make, network = NETWORKS[name]
    path = tmp_path / "model.onnx"
    x, wanted = make(network, path)
    assert len(np.unique(wanted)) > 20
    (given,) = (info.name for info in onnx.load(path).graph.input)
    assert np.array_equal(np.concatenate([*run_onnx(path, {given: x[0]}).values()]), wanted[:1])
    assert np.array_equal(executed(path, x), wanted)
    model = prepared(path, x.ndim > 3)
    settings = {"backend": "Vitis", "default_precision": "fixed<32,16>", "granularity": "name"}
    config = hls4ml.utils.config_from_onnx_model(model, **settings)
    hardware = hls4ml.converters.convert_from_onnx_model(
        model, output_dir=str(tmp_path / "hls"), io_type="io_parallel", backend="Vitis", hls_config=config
    )
    hardware.compile()
    found = hardware.predict(np.ascontiguousarray(x[:, 0]))
    assert np.array_equal(found.reshape(wanted.shape), wanted)
