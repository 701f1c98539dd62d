"""Models of flax as users write them, through each way of quantization: compiled, split and merged, and as ONNX."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import qjax.nnx as qnn
import qjax.quantization as jq
from qjax.export import to_onnx

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore:these layers stay in floats")]
IDS = np.random.default_rng(0).integers(0, 11, (2, 8)).astype(np.int32)
IMAGES = np.random.default_rng(0).normal(size=(4, 12, 12, 1)).astype(np.float32)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.before, self.after = nnx.LayerNorm(16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 16, dropout_rate=0.1, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.drop(self.attention(self.before(x), mask=mask))
        return x + self.down(nnx.gelu(self.up(self.after(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 16, rngs=rngs)
        self.positions = nnx.Param(nnx.initializers.normal()(rngs.params(), (8, 16)))
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.norm, self.head = nnx.RMSNorm(16, rngs=rngs), nnx.Linear(16, 11, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x, mask = self.embed(ids) + self.positions[: ids.shape[1]], nnx.make_causal_mask(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class Cnn(nnx.Module):
    def __init__(self, rngs):
        self.conv1, self.bn1 = nnx.Conv(1, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.conv2, self.bn2 = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
        self.drop, self.linear = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.bn1(self.conv1(x))), (2, 2), (2, 2))
        return self.linear(self.drop(nnx.relu(self.bn2(self.conv2(x))).mean((1, 2))))


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.embed, self.head = nnx.Embed(11, 8, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)
        self.rnn = nnx.Bidirectional(*(nnx.RNN(nnx.GRUCell(8, 8, rngs=rngs)) for _ in range(2)))

    def __call__(self, ids):
        return self.head(self.rnn(self.embed(ids))[:, -1])


MODELS = {"transformer": (Transformer, IDS), "cnn": (Cnn, IMAGES), "recurrent": (Recurrent, IDS)}
WAYS = {  # and decibels that rounding alone reaches; `quantize_model` warns of larger errors
    "int8": (lambda x: {"calibrate": [x]}, 25),
    "formats": (lambda x: {"qconfig": jq.QConfig("e4m3fn", "e4m3fn"), "calibrate": [x]}, 14),
    "weights": (lambda x: {"qconfig": jq.QConfig(None, "mxfp8_e4m3")}, 14),
    "dynamic": (lambda x: {"qconfig": jq.default_dynamic_qconfig}, 25),
    "trained": (lambda x: {"train": lambda model: train(model, x)}, None),
}


def train(model, x):
    model.train()
    optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda model: (model(x) ** 2).mean())(model))

    step(model, optimizer)


def run(model, x):
    return np.asarray(nnx.jit(lambda model, x: model(x))(model, x))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_models(name, way, tmp_path):
    make, x = MODELS[name]
    settings, least = WAYS[way]
    model = make(nnx.Rngs(0))
    model.eval()
    small = qnn.quantize_model(model, **settings(x))
    found, wanted = run(small, x), run(model, x)
    assert least is None or 10 * np.log10((wanted**2).sum() / ((wanted - found) ** 2).sum()) > least
    graph, state = nnx.split(small)
    assert np.array_equal(run(nnx.merge(graph, state), x), found)
    if (name, way) == ("recurrent", "formats"):  # formats whose scales are computed have no form in ONNX
        with pytest.raises(ValueError, match=r"^layer 'rnn\.backward_rnn'.*cannot be said in ONNX"):
            to_onnx(small, (x,), tmp_path / "model.onnx")
        return
    onnxruntime = pytest.importorskip("onnxruntime")
    to_onnx(small, (x,), str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (runtime,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(runtime, found, atol=1e-5)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(4)(x)


def test_modules_of_linen_name_what_quantizes_them():
    model = nnx.bridge.ToNNX(Linen(), rngs=nnx.Rngs(0))
    model.lazy_init(jnp.ones((2, 8)))
    with pytest.raises(ValueError, match=r"there are ToNNX; .*prepare_fn of qjax\.quantization"):
        qnn.quantize_model(model, calibrate=[jnp.ones((2, 8))])
