"""Models of flax as ONNX: onnxruntime has the library's integers at every layer, with and without optimizations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_support import layer_of, module_of, run
from front_pairs import IMAGES, FlaxConvs, FlaxGPT2
from jax_export_support import check, check_layers

import qjax.nnx as qnn
import qjax.quantization as jq
from qcore import BlockScaled
from qcore.affine import AffineInteger
from qjax.export import to_onnx

NOISE = np.random.default_rng(0)
ROWS = NOISE.normal(size=(2, 5, 8)).astype(np.float32)


def operators(model):
    return {node.op_type for node in model.graph.node}


class Residual(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Conv(3, 4, (3, 3), rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.second, self.fc = nnx.Conv(4, 4, (3, 3), strides=1, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.first(x)))
        return self.fc(nnx.relu(x + self.second(x)).mean((1, 2)))


@pytest.mark.heavy
def test_a_residual_network(tmp_path):
    images = np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1))
    model = qnn.quantize_model(module_of(lambda: Residual(nnx.Rngs(0))), calibrate=[images])
    made, compared = check_layers(model, (images,), tmp_path)
    assert compared >= 5
    assert {"ConvInteger", "MatMulInteger"} <= operators(made)
    assert {node.domain for node in made.graph.node} == {""}
    assert [one.version for one in made.opset_import] == [19]
    assert [one.name for one in made.graph.input] == ["x"]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*seen nothing")
def test_blocks_of_many_networks(tmp_path):
    """MobileNetV2, GoogLeNet, ShuffleNet and U-Net, one after the other."""
    images = np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1))
    model = module_of(FlaxConvs)
    model.eval()
    _, compared = check_layers(qnn.quantize_model(model, calibrate=[images]), (images,), tmp_path)
    assert compared > 30


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.before, self.after = nnx.LayerNorm(8, rngs=rngs), nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, 8, decode=False, rngs=rngs)
        self.wide, self.narrow = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.before(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.wide(self.after(x))))


@pytest.mark.filterwarnings("ignore:these layers stay in floats")
@pytest.mark.heavy
def test_a_transformer(tmp_path):
    """Attention and norms are in floats, whose sums have another order in each runtime; integers are the same."""
    model = module_of(lambda: Transformer(nnx.Rngs(0)))
    model.eval()
    _, compared = check_layers(qnn.quantize_model(model, calibrate=[ROWS]), (ROWS,), tmp_path, near=1e-5)
    assert compared >= 4


class Gpt(nnx.Module):
    """Tables of tokens and positions, a block, and the table of tokens once more."""

    def __init__(self, rngs):
        self.tokens, self.positions = nnx.Embed(11, 8, rngs=rngs), nnx.Embed(5, 8, rngs=rngs)
        self.block, self.norm = FlaxGPT2(), nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, tokens):
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        return self.tokens.attend(self.norm(self.block(x)))


GPT_WAYS = {
    "dynamic": jq.default_dynamic_qconfig,
    "int4": jq.QConfigDynamic(jq.MinMaxObserver(dtype=AffineInteger(-8, 7), qscheme="per_tensor_symmetric")),
    "weights": jq.default_weight_only_qconfig,
    "e4m3fn": jq.QConfig(None, "e4m3fn"),
    "int4 in blocks": jq.QConfig(None, BlockScaled("int4", {-1: 4}, scale="float32")),
    "formats": jq.QConfig("e5m2", "e4m3fn"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("way", GPT_WAYS)
def test_a_small_gpt(way, tmp_path):
    """With tables in integers; norms and the last product are floats, whose sums have another order in each runtime."""
    tokens = np.int32([[1, 0, 10, 3, 3], [4, 5, 6, 7, 2]])
    settings = {nnx.Embed: jq.default_dynamic_qconfig, nnx.Linear: GPT_WAYS[way]}
    model = qnn.quantize_model(module_of(lambda: Gpt(nnx.Rngs(0))), settings, [tokens] if way == "formats" else None)
    check(model, (tokens,), tmp_path, near=1e-5)


@pytest.mark.heavy
def test_a_small_gpt_in_integers(tmp_path):
    """Each layer's integers, calibrated."""
    tokens = np.int32([[1, 0, 10, 3, 3], [4, 5, 6, 7, 2]])
    model = qnn.quantize_model(module_of(lambda: Gpt(nnx.Rngs(0))), calibrate=[tokens])
    _, compared = check_layers(model, (tokens,), tmp_path, near=1e-5)
    assert compared >= 4


class Words(nnx.Module):
    def __init__(self, cell, rngs):
        self.table, self.rnn = nnx.Embed(11, 8, rngs=rngs), nnx.RNN(cell(8, 6, rngs=rngs))
        self.fc = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, tokens):
        return self.fc(self.rnn(self.table(tokens)))


CELLS = nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell


@pytest.mark.heavy
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_models(cell, tmp_path):
    """Dynamic layers have the same floats: a loop over the steps is a Scan. Floats draw keys for a start of zeros."""
    words, tokens = module_of(lambda: Words(cell, nnx.Rngs(0))), np.int32([[1, 0, 10, 3], [4, 5, 6, 7]])
    made = check(qnn.quantize_dynamic(words), (tokens,), tmp_path)
    assert {"Scan", "MatMulInteger"} <= operators(made)
    assert len(check(words, (tokens,), tmp_path, near=1e-5).graph.input) == 1


@pytest.mark.heavy
def test_training_with_fake_quantization(tmp_path):
    """In evaluation; weights leave as integers. In training the model changes its state, which a file cannot."""
    layers = layer_of(nnx.Linear, 8, 6), qnn.ReLU(), layer_of(nnx.Linear, 6, 3)
    model = qnn.prepare_qat(nnx.Sequential(*layers), jq.get_default_qat_qconfig())
    run(model, ROWS)
    with pytest.raises(ValueError, match=r"fn changes .*; allowed are models in evaluation: model.eval\(\)"):
        to_onnx(model, (ROWS,), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    model.eval()
    made = check(model, (ROWS,), tmp_path, near=1e-5)
    assert [node.op_type for node in made.graph.node].count("DequantizeLinear") == 2


def test_one_file_for_kept_names(tmp_path):
    """Inputs have the names of parameters, and arrays in a tree those of its paths."""

    def both(x, pair):
        return {"sum": x + pair["a"], "rest": [pair["b"]]}

    small = jnp.ones((2, 3))
    made = check(both, (small, {"a": jax.ShapeDtypeStruct((2, 3), "float32"), "b": small}), tmp_path, run=False)
    assert [one.name for one in made.graph.input] == ["x", "pair.a", "pair.b"]
    assert [one.name for one in made.graph.output] == ["output_rest.0", "output_sum"]


class Steps(nnx.Linear):
    """A layer that may count its calls."""

    def __init__(self, counts, rngs):
        super().__init__(8, 8, rngs=rngs)
        self.calls, self.counts = nnx.Variable(jnp.zeros(())), counts

    def __call__(self, x):
        if self.counts:
            self.calls.set_value(self.calls.get_value() + 1)
        return super().__call__(x)


class Control(nnx.Module):
    """A scan over a stack of layers, a branch and a loop: flax returns the layers' state from each."""

    def __init__(self, counts):
        make = nnx.vmap(lambda rngs: nnx.Linear(8, 8, rngs=rngs), in_axes=0, out_axes=0)
        self.stack, self.one = nnx.split_rngs(splits=3)(make)(nnx.Rngs(0)), Steps(counts, nnx.Rngs(1))

    def __call__(self, x):
        layers = nnx.scan(nnx.remat(lambda x, layer: layer(x)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        x = layers(x, self.stack)
        x = nnx.cond(x.sum() > 0, lambda layer, x: layer(x), lambda layer, x: layer(-x), self.one, x)
        return nnx.fori_loop(0, 2, lambda _, pair: (pair[0], jnp.tanh(pair[0](pair[1]))), (self.one, x))[1]


def test_layers_in_loops_and_branches_keep_their_state(tmp_path):
    check(Control(False), (ROWS,), tmp_path, near=1e-5)
    with pytest.raises(ValueError, match=r"fn changes one\.calls when it runs"):
        to_onnx(Control(True), (ROWS,), tmp_path / "model.onnx")
