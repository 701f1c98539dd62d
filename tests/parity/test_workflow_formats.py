"""Settings with formats that are no integers; test_workflow.py has the bits of each layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import layer_of
from networks import NETWORKS
from support import assert_same_bits

import qjax
import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qjax.quantization.rounding import CodedArray


def test_bytes_of_weights():
    served = qnn.convert(qnn.prepare(layer_of(nnx.Linear, 64, 32), jq.QConfig("mxfp8_e4m3", "mxfp8_e4m3")))
    codes = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(served.weight)))
    assert codes == 32 * 64 + 32 * 2
    assert not jax.tree.leaves(nnx.state(served, nnx.Param))


def test_training_rounds_what_is_served():
    settings = jq.QConfig("e4m3fn", qjax.quantizer("mxfp4", "e5m2", "nearest", "nearest"))
    rngs = nnx.Rngs(1)
    model = nnx.Sequential(layer_of(nnx.Conv, 3, 4, (3, 3)), nnx.BatchNorm(4, rngs=rngs), qnn.ReLU())
    model = qnn.prepare_qat(qnn.fuse_modules(model, ["0", "1", "2"]), settings)
    x = jnp.asarray(np.moveaxis(NETWORKS["residual"].inputs(4), 1, -1))
    gradients = nnx.jit(nnx.grad(lambda model: jnp.square(model(x)).sum()))(model)
    assert any(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))
    model.eval()
    converted = qnn.convert(model)
    assert_same_bits(converted(x), nnx.jit(lambda model, x: model(x))(model, x))
    assert qnn.report(model)["0"].weight == qnn.report(converted)["0"].weight == "mxfp4"


def test_dynamic_weights():
    layer = layer_of(nnx.Linear, 32, 8)
    made = qnn.quantize_dynamic(layer, {nnx.Linear: jq.QConfigDynamic("mxfp4")})
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 32), np.float32))
    weight = qjax.quantize(layer.kernel[...].T, "mxfp4")
    assert_same_bits(made.weight(), weight)
    np.testing.assert_allclose(made(x), x @ weight.T, rtol=1e-6, atol=1e-6)
    assert made.weight.codes.nbytes == 32 * 8 // 2
    assert qnn.report(made)[""].weight == "mxfp4"


@pytest.mark.heavy  # jax/export and torch/export have such layers
def test_fused_dynamic_layers():
    """Made there or loaded; by the name, the fused type and that of the layer inside. Halves have sums of any order."""
    floats = nnx.Sequential(layer_of(nnx.Linear, 8, 5), qnn.ReLU(), layer_of(nnx.Linear, 5, 3))
    fused = qnn.fuse_modules(floats, ["0", "1"])
    peer = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()
    peer.load_state_dict({name: torch.tensor(array) for name, array in qnn.to_torch(floats).items()})
    peer = tq.fuse_modules(peer, ["0", "1"])
    x = np.random.default_rng(5).normal(size=(4, 8)).astype(np.float32)
    run = nnx.jit(lambda model, x: model(x))
    for dtype, own in ((torch.qint8, "qint8"), (torch.float16, "float16")):
        quantized = tq.quantize_dynamic(peer, dtype=dtype)
        made = qnn.quantize_dynamic(fused, dtype=own)
        tensors = {name: value.numpy() for name, value in quantized.state_dict().items()}
        loaded = qnn.from_torch(fused, tensors)
        for model in (made, loaded):
            assert (model.layers[0].relu, model.layers[2].relu) == (True, False)
        for model in (loaded if own == "qint8" else made,):
            found = [np.asarray(run(one, x)) for one in (model, model.layers[0])]
            expected = [one(torch.from_numpy(x)).numpy() for one in (quantized, quantized[0])]
            for left, right in zip(found, expected, strict=True):
                if own == "qint8":
                    assert_same_bits(left, right)
                np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
            assert found[1].min() == 0
    default = jq.default_dynamic_qconfig
    for spec in ({"0": default}, {type(fused.layers[0]): default}, {nnx.Linear: default}, {"": default, "2": None}):
        layers = qnn.quantize_dynamic(fused, spec).layers
        assert type(layers[0]) is qnn.quantized.dynamic.Linear
        assert (type(layers[2]) is nnx.Linear) == (nnx.Linear not in spec)
    settings = [package.QConfigDynamic(activation="mxfp8_e4m3", weight="mxfp4") for package in (tq, jq)]
    quantized, made_of_formats = (
        tq.quantize_dynamic(peer, {"": settings[0]}),
        qnn.quantize_dynamic(fused, {"": settings[1]}),
    )
    for part in (quantized[0], quantized[2]):  # of few bits, so that sums are exact
        part.bias.data = (part.bias * 2**6).round() / 2**6
    tensors = {name: value.numpy() for name, value in quantized.state_dict().items()}
    served = qnn.from_torch(fused, tensors, settings[1])
    assert [type(layer) for layer in served.layers] == [type(layer) for layer in made_of_formats.layers]
    assert_same_bits(np.asarray(run(served, x)), quantized(torch.from_numpy(x)).detach().numpy())
    rounded = qnn.quantize_dynamic(fused, {"0": jq.QConfigDynamic("e5m2")})
    assert float(rounded.layers[0](x).min()) == 0
    assert qnn.report(rounded)["0"].weight == "scaled(e5m2,{...:None},scale=float32)"
    assert qnn.report(made)["0"].state == "quantized"


def test_settings():
    settings = jq.QConfig(None, "int4")
    scaled = "scaled(int4,{...:None},scale=float32)"
    assert (settings.activation.number, settings.weight.number.text) == (None, scaled)
    assert jq.default_weight_only_qconfig.activation.number is jq.default_activation_only_qconfig.weight.number is None
    assert jq.QConfig("e5m2", "e5m2").activation == jq.FakeQuantize(jq.MinMaxObserver, number=qjax.parse("e5m2"))
    assert isinstance(settings.weight.coded(jnp.ones((1, 2))), CodedArray)


BAD = {
    "activation=3; allowed are observers": lambda: jq.QConfig(3, "e5m2"),
    "weight='e9'": lambda: jq.QConfig("e5m2", "e9"),
    "a quantizer with stochastic rounding needs a key": lambda: jq.QConfig(qjax.quantizer("e5m2"), "e5m2"),
    "weight has codes of a format; allowed is a qconfig": lambda: qnn.from_torch(
        nnx.Linear(2, 2, rngs=nnx.Rngs(0)), {"weight.codes": np.ones((2, 2), np.uint8)}
    ),
    "activation=.*history=2.* has a delayed scale; allowed are formats without history": lambda: jq.QConfig(
        "scaled(e4m3fn,{...:None},scale=float32,history=2)", "e5m2"
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()
