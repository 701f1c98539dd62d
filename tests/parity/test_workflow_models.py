"""Whole models on digits, and recurrent ones: qtorch, and qjax eagerly, compiled, mapped, scanned and sharded."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from carrying_support import calibrated, channels_last, jax_results, same_at_every_layer, tensors_of
from flax import nnx
from flax_support import layer_of, module_of
from jax.sharding import NamedSharding, PartitionSpec
from support import assert_same_bits
from torch import nn
from workflow_support import ROWS, Residual, digits, trained

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import UINT8, AffineInteger

SETTINGS = tq.get_default_qconfig("fbgemm"), jq.get_default_qconfig("fbgemm")
INT4 = AffineInteger.of_width(4)


def test_images():
    return digits()[0][1397:].numpy()


test_images.__test__ = False


class TorchMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.dequant(self.layers(self.quant(x.flatten(1))))


class JaxMLP(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        parts = nnx.Linear(64, 32, rngs=rngs), nnx.Linear(32, 32, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)
        self.layers = nnx.Sequential(parts[0], qnn.ReLU(), parts[1], qnn.ReLU(), parts[2])

    def __call__(self, x):
        return self.dequant(self.layers(self.quant(x.reshape(len(x), -1))))


@pytest.fixture(scope="module")
def mlp():
    """An MLP, converted in PyTorch and carried to JAX."""
    torch.manual_seed(0)
    observed = calibrated(trained(TorchMLP(), 60), SETTINGS[0], digits()[0][:256].numpy())
    converted = tq.convert(observed)
    return converted, qnn.from_torch(module_of(JaxMLP), tensors_of(converted), SETTINGS[1])


def test_mlp(mlp):
    same_at_every_layer(*mlp, test_images(), jnp.asarray)


def test_mapped_and_sharded(mlp):
    """With the bits of one call for all images: one by one, and in shards on four devices."""
    images = test_images()[:64]
    graph, state = nnx.split(mlp[1])
    expected = nnx.jit(jax_results)(mlp[1], images)[1]
    mapped = jax.jit(jax.vmap(lambda state, x: nnx.merge(graph, state)(x[None])[0], (None, 0)))
    assert_same_bits(np.asarray(mapped(state, images)), np.asarray(expected))
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    run = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
    shards = jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    result = run(state, shards)
    assert len(result.sharding.device_set) == 4
    assert_same_bits(np.asarray(result), np.asarray(expected))


def test_scan_over_converted_layers(mlp):
    """Layers of one shape as one scan, whose carry is a QTensor."""
    rng = np.random.default_rng(1)
    layers = []
    for scale in (0.11, 0.07, 0.2):
        weight = jq.quantize_per_tensor(rng.normal(size=(8, 8)).astype(np.float32), 0.25, 0, INT4)
        bias = jnp.asarray(rng.normal(size=8), jnp.float32)
        output = jq.QParams(jnp.float32(scale), jnp.int32(100))
        layers.append(qnn.quantized.Linear(weight, bias, output, UINT8))
    graph, _ = nnx.split(layers[0])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(nnx.split(layer)[1] for layer in layers))
    first = jq.quantize_affine(
        jnp.asarray(rng.normal(size=(5, 8)), jnp.float32), jq.QParams(jnp.float32(0.02), jnp.int32(128)), "quint8"
    )
    y, _ = jax.jit(lambda x, layers: jax.lax.scan(lambda x, one: (nnx.merge(graph, one)(x), None), x, layers))(
        first, stacked
    )
    expected = first
    for layer in layers:
        expected = layer(expected)
    assert_same_bits(np.asarray(y.values), np.asarray(expected.values))
    assert_same_bits(y.qparams.scale, expected.qparams.scale)
    assert len(np.unique(y.values)) > 10


class JaxResidual(nnx.Module):
    """`workflow_support.Residual` with channels last."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        self.conv1 = nnx.Conv(1, 8, (3, 3), padding=1, use_bias=False, rngs=rngs)
        self.conv2 = nnx.Conv(8, 8, (3, 3), padding=1, rngs=rngs)
        self.bn1, self.bn2 = (nnx.BatchNorm(8, epsilon=1e-5, rngs=rngs) for _ in range(2))
        self.relu1, self.add = qnn.ReLU(), qnn.FloatFunctional()
        self.fc = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        x = self.add.add_relu(self.bn2(self.conv2(x)), x)
        x = qnn.max_pool(x, (2, 2), (2, 2)).swapaxes(-1, -2).swapaxes(-2, -3)
        return self.dequant(self.fc(x.reshape(len(x), -1)))


@pytest.mark.heavy
@pytest.mark.parametrize("eager", [False, True])
def test_residual_network(eager):
    """Trained and converted in PyTorch, fused there and in JAX to the same floats."""
    model = trained(Residual(), 60).eval()
    floats = tensors_of(model)
    observed = calibrated(tq.fuse_modules(copy.deepcopy(model), ROWS), SETTINGS[0], digits()[0][:256].numpy())
    converted = tq.convert(observed)
    own = qnn.from_torch(module_of(JaxResidual), floats)
    own.eval()
    fused = qnn.fuse_modules(own, ROWS)
    served = qnn.from_torch(fused, tensors_of(converted), SETTINGS[1])
    same_at_every_layer(converted, served, test_images()[: 8 if eager else 128], channels_last, eager)
    of_floats = qnn.to_torch(fused)
    expected = tensors_of(tq.fuse_modules(copy.deepcopy(model), ROWS))
    for name in ("conv1.0.weight", "conv1.0.bias", "conv2.weight", "conv2.bias"):
        assert_same_bits(of_floats[name], expected[name])


def states_and_results(model, x, carry):
    return model(x, carry, return_carry=True)


run = nnx.jit(states_and_results)
KINDS = {"lstm": (nn.LSTM, qnn.LSTM), "gru": (nn.GRU, qnn.GRU)}


@pytest.mark.parametrize(
    "kind", ["lstm", pytest.param("gru", marks=pytest.mark.heavy)]
)  # functions of both: test_workflow_layers
@pytest.mark.parametrize("dtype", ["qint8", pytest.param(INT4, marks=pytest.mark.heavy)], ids=str)
def test_layers_of_recurrent_cells(kind, dtype):
    """Two layers and directions: floats, integers quantized here or there, and carried both ways."""
    torch.manual_seed(5)
    of_torch, of_jax = KINDS[kind]
    floats = of_torch(5, 6, num_layers=2, bidirectional=True, batch_first=True)
    made = of_jax(5, 6, num_layers=2, bidirectional=True, rngs=nnx.Rngs(0))
    own = qnn.from_torch(made, tensors_of(floats))
    observer = tq.MinMaxObserver.with_args(dtype=dtype, qscheme=torch.per_tensor_symmetric)
    spec = None if dtype == "qint8" else {"": tq.QConfigDynamic(weight=observer)}
    quantized = tq.quantize_dynamic(floats, spec)
    x = np.random.default_rng(6).normal(size=(3, 7, 5)).astype(np.float32)
    shape = (4, 3, 6)
    state = [np.random.default_rng(7).normal(size=shape).astype(np.float32) for _ in range(1 + (kind == "lstm"))]
    given = tuple(map(torch.from_numpy, state)) if kind == "lstm" else torch.from_numpy(state[0])
    with torch.no_grad():
        expected, in_floats = quantized(torch.from_numpy(x), given), floats(torch.from_numpy(x), given)
    carry = tuple(state) if kind == "lstm" else state[0]
    for one, other in zip(jax.tree.leaves(run(own, x, carry)), jax.tree.leaves(in_floats), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    dynamic = qnn.quantize_dynamic(own, dtype=dtype)
    served = qnn.from_torch(made, tensors_of(quantized))
    arrays = tensors_of(quantized)
    for model in (dynamic, served):
        assert type(model) is getattr(qnn.quantized.dynamic, of_jax.__name__)
        carried = qnn.to_torch(model)
        assert carried.keys() == arrays.keys()
        assert all(carried[name].tobytes() == arrays[name].tobytes() for name in arrays)
    for call in (run, states_and_results)[: 1 + (dtype == INT4)]:
        for one, other in zip(jax.tree.leaves(call(served, x, carry)), jax.tree.leaves(expected), strict=True):
            assert_same_bits(np.asarray(one), other.numpy())
    assert qnn.to_torch(own).keys() == tensors_of(floats).keys()
    assert qnn.report(served)[""].state == "quantized"


def test_recurrent_halves_and_no_biases():
    layer = layer_of(qnn.LSTM, 4, 3, num_layers=2, use_bias=False, time_major=True)
    halves = qnn.quantize_dynamic(layer, dtype="float16")
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 2, 4), np.float32))
    np.testing.assert_allclose(halves(x), layer(x), atol=1e-3)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(halves))} == {"float16"}


BAD = {
    r"inputs has shape \(2, 3\); allowed is \(batch, steps, 3\)": lambda layer: layer(jnp.ones((2, 3))),
    r"state has shape \(1, 2, 4\); allowed is \(1, 1, 4\)": lambda layer: layer(
        jnp.ones((1, 5, 3)), jnp.ones((1, 2, 4))
    ),
    "num_layers=0": lambda layer: qnn.GRU(3, 4, 0, rngs=nnx.Rngs(0)),
    "bidirectional=1": lambda layer: qnn.GRU(3, 4, bidirectional=1, rngs=nnx.Rngs(0)),
    "allowed are 4 gates of 1": lambda layer: qnn.quantized.dynamic.LSTM(
        [qnn.quantized.dynamic.Linear(jnp.ones((3, 1)), None)] * 2,
        [qnn.quantized.dynamic.Linear(jnp.ones((4, 1)), None)],
    ),
    "GRU: inputs has shape": lambda layer: qnn.quantize_dynamic(layer)(jnp.ones((2, 5, 4))),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message](qnn.GRU(3, 4, rngs=nnx.Rngs(0)))
