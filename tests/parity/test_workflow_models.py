"""Converted models in JAX, mapped, scanned and sharded; recurrent layers in both packages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from carrying_support import calibrated, jax_results, tensors_of
from flax import nnx
from flax_support import layer_of, module_of
from jax.sharding import NamedSharding, PartitionSpec
from module_packages import Flax, Torch
from networks import NETWORKS
from support import assert_same_bits
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import UINT8, AffineInteger

INT4 = AffineInteger.of_width(4)


def test_mapped_and_sharded():
    """With the bits of one call for all rows: one by one, and in shards on four devices."""
    network = NETWORKS["perceptron"]
    images = network.inputs(64)
    converted = tq.convert(calibrated(network.make(Torch)(), tq.get_default_qconfig("fbgemm"), images))
    model = qnn.from_torch(module_of(network.make(Flax)), tensors_of(converted), jq.get_default_qconfig("fbgemm"))
    graph, state = nnx.split(model)
    expected = nnx.jit(jax_results)(model, images)[1]
    mapped = jax.jit(jax.vmap(lambda state, x: nnx.merge(graph, state)(x[None])[0], (None, 0)))
    assert_same_bits(np.asarray(mapped(state, images)), np.asarray(expected))
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    run = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
    shards = jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    result = run(state, shards)
    assert len(result.sharding.device_set) == 4
    assert_same_bits(np.asarray(result), np.asarray(expected))


def test_scan_over_converted_layers():
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
