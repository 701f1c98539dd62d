"""Recurrent and transposed layers, PReLUs and tables in formats, recurrent ones in halves: PyTorch's bits in JAX."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from carrying_support import same_state, tensors_of
from flax import nnx
from flax_support import layer_of, module_of
from support import assert_same_bits
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import AffineInteger

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
WORDS = np.random.default_rng(0).integers(0, 24, size=(3, 5))


def few_bits(model):
    """A model whose biases have few bits, so that sums of rounded numbers are exact, and no order of them matters."""
    for name, parameter in model.named_parameters():
        if "bias" in name:
            parameter.data = (parameter * 2**6).round() / 2**6
    return model.eval()


class TorchNet(nn.Module):
    """Words, and every layer with a weight that is neither linear nor a convolution."""

    def __init__(self):
        super().__init__()
        self.embed, self.act = nn.Embedding(24, 8), nn.PReLU(8)
        self.up = nn.ConvTranspose1d(8, 8, 3, stride=2)
        self.lstm = nn.LSTM(8, 6, batch_first=True, proj_size=4, bidirectional=True)
        self.gru, self.cell = nn.GRU(8, 8, batch_first=True, bias=False), nn.LSTMCell(8, 6)
        self.head = nn.Linear(6, 24)

    def forward(self, words):
        x = self.act(self.embed(words).transpose(1, 2))
        x, _ = self.lstm(self.up(x).transpose(1, 2))
        x, _ = self.gru(x)
        hidden, _ = self.cell(x[:, -1])
        return self.head(hidden)


class JaxNet(nnx.Module):
    """The same with channels last."""

    def __init__(self):
        zero = nnx.initializers.zeros_init()  # fast; the weights come from PyTorch
        more = {"kernel_init": zero, "rngs": nnx.Rngs(0)}
        self.embed, self.act = nnx.Embed(24, 8, embedding_init=zero, rngs=nnx.Rngs(0)), qnn.PReLU(8)
        self.up = nnx.ConvTranspose(8, 8, (3,), strides=2, padding="VALID", **more)
        self.lstm = qnn.LSTM(8, 6, proj_size=4, bidirectional=True, rngs=nnx.Rngs(0))
        self.gru = qnn.GRU(8, 8, use_bias=False, rngs=nnx.Rngs(0))
        self.cell = nnx.OptimizedLSTMCell(8, 6, recurrent_kernel_init=zero, **more)
        self.head = nnx.Linear(6, 24, **more)

    def __call__(self, words):
        x = self.lstm(self.up(self.act(self.embed(words))))
        x = self.gru(x)[:, -1]
        zeros = jnp.zeros((len(x), 6), x.dtype)
        return self.head(self.cell((zeros, zeros), x)[1])


@pytest.fixture(scope="module")
def floats():
    torch.manual_seed(0)
    model = few_bits(TorchNet())
    model.cell.bias_ih.data.zero_()  # flax has one bias, of the hidden side
    return model


@nnx.jit
def run(model, *arguments):
    return model(*arguments)


CASES = {
    "blocks": ("mxfp8_e4m3", "mxfp4"),
    "no scales": ("fixed(8,5)", "fixed(8,6)"),
    "blocks along other axes": ("scaled(e3m2fn,{0:2})", "scaled(e2m1fn,{0:3})"),
    "integers as weights": ("mxfp8_e4m3", "power"),
    "no codes": ("block(6)", "block(5)"),
}


def both(activation, weight):
    """Settings in PyTorch and in JAX; "power" are integers whose scale is a power of two, so that sums are exact."""
    form = AffineInteger.of_width(4)
    made = []
    for package, scheme in ((tq, torch.per_tensor_symmetric), (jq, "per_tensor_symmetric")):
        power = package.MinMaxObserver.with_args(dtype=form, qscheme=scheme, eps=0.25)
        made.append(package.QConfig(*(power if part == "power" else part for part in (activation, weight))))
    return made


@pytest.mark.parametrize("case", ["blocks", *(pytest.param(c, marks=pytest.mark.heavy) for c in list(CASES)[1:])])
def test_every_layer(case, floats):
    of_torch, of_jax = both(*CASES[case])
    floats.qconfig = of_torch
    observed = tq.prepare(floats)
    with torch.no_grad():
        observed(torch.from_numpy(WORDS))
        converted = tq.convert(observed)
        expected = converted(torch.from_numpy(WORDS)).numpy()
    tensors = tensors_of(converted)
    served = qnn.from_torch(module_of(JaxNet), tensors, of_jax)
    own = qnn.convert(qnn.prepare(qnn.from_torch(module_of(JaxNet), tensors_of(floats)), of_jax))
    same_state(qnn.to_torch(served), tensors)
    same_state(qnn.to_torch(own) | {"cell.ih.bias": np.zeros(24, np.float32)}, tensors)
    assert_same_bits(np.asarray(run(own, WORDS)), expected)
    theirs = {row.path: (row.state, row.weight) for row in tq.report(converted)}
    assert {row.path: (row.state, row.weight) for row in qnn.report(own)} == theirs


@pytest.mark.parametrize("weight", ["mxfp4", "default_per_channel_weight_observer"])
def test_tables(weight):
    """Words in, and words out by the same table; a word that is not there is a NaN, as in flax."""
    torch.manual_seed(1)
    table = nn.Sequential(nn.Embedding(24, 8))
    of_torch, of_jax = (package.QConfigDynamic(weight=getattr(package, weight, weight)) for package in (tq, jq))
    quantized = tq.quantize_dynamic(table, {"0": of_torch})
    floats = qnn.from_torch(nnx.Sequential(layer_of(nnx.Embed, 24, 8)), tensors_of(table))
    own = qnn.quantize_dynamic(floats, {"0": of_jax})
    served = qnn.from_torch(floats, tensors_of(quantized), of_jax)
    expected = quantized(torch.from_numpy(WORDS)).numpy()
    for model in (own, served):
        same_state(qnn.to_torch(model), tensors_of(quantized))
        assert_same_bits(np.asarray(model(WORDS)), expected)
    rows = np.asarray(own(np.arange(24)))
    query = np.eye(8, dtype=np.float32)
    assert_same_bits(np.asarray(own.layers[0].attend(query)), np.ascontiguousarray(rows.T) + 0)
    assert np.isnan(own(np.array([24]))).all()
    assert qnn.report(own)["0"] == replace(tq.report(quantized)["0"], layer="Embed")
    others = qnn.quantize_dynamic(nnx.Sequential(*floats.layers, layer_of(nnx.Linear, 8, 2)))
    assert [type(layer) for layer in others.layers] == [nnx.Embed, qnn.quantized.dynamic.Linear]
    with pytest.raises(TypeError, match="0: inputs has dtype float32; allowed are integers"):
        own(np.ones(2, np.float32))


# Halves


def recurrent_layers():
    """Layers of PyTorch with biases of one side, their twins in flax, and the shapes of inputs and states."""
    zero = {"kernel_init": nnx.initializers.zeros_init(), "recurrent_kernel_init": nnx.initializers.zeros_init()}
    zero |= {"param_dtype": jnp.bfloat16, "rngs": nnx.Rngs(0)}
    return {
        "lstm": (nn.LSTM(8, 6, batch_first=True), nnx.RNN(nnx.OptimizedLSTMCell(8, 6, **zero))),
        "gru": (
            nn.GRU(8, 6, bidirectional=True, batch_first=True),
            layer_of(qnn.GRU, 8, 6, bidirectional=True),
        ),
        "lstm cell": (nn.LSTMCell(8, 6), nnx.OptimizedLSTMCell(8, 6, **zero)),
        "gru cell": (nn.GRUCell(8, 6), nnx.GRUCell(8, 6, **zero)),
        "simple cell": (nn.RNNCell(8, 6), nnx.SimpleCell(8, 6, **zero)),
        "linear": (nn.Linear(8, 6), layer_of(nnx.Linear, 8, 6, param_dtype=jnp.bfloat16)),
    }


HALVES = {"bfloat16": (torch.bfloat16, jnp.bfloat16), "float16": (torch.float16, jnp.float16)}


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("settings", ["integers", "formats"])
@pytest.mark.parametrize(
    "names",
    [("gru", "lstm cell", "linear"), ("lstm", "gru cell", "simple cell")],
    ids=["one of a kind", "others"],
)
def test_results_have_the_dtype_of_inputs(settings, dtype, names):
    of_torch, of_jax = HALVES[dtype]
    torch.manual_seed(2)
    x = torch.randn(3, 5, 8).to(of_torch)
    spec = [package.default_dynamic_qconfig for package in (tq, jq)]
    if settings == "formats":
        spec = [tq.QConfig("mxfp8_e4m3", "mxfp4"), jq.QConfigDynamic("mxfp4", "mxfp8_e4m3")]
    for name, (layer, twin) in recurrent_layers().items():
        if name not in names:
            continue
        one = name.endswith("cell")
        layer = tq.quantize_dynamic(few_bits(layer).to(of_torch), {"": spec[0]})
        tensors = {key: value.numpy() for key, value in layer.state_dict().items()}
        twin = qnn.from_torch(twin, tensors, None if settings == "integers" else spec[1])
        rows = jnp.asarray(x.view(torch.int16).numpy()).view(of_jax)
        with torch.no_grad():
            y = layer(x[:, 0] if one else x)
        if one:
            states = 2 if isinstance(y, tuple) else 1
            zeros = jnp.zeros((3, 6), of_jax)
            carry, found = run(twin, (zeros, zeros)[:states] if states > 1 else zeros, rows[:, 0])
            expected = {"carry": y[::-1] if states > 1 else (y,), "y": (y[0] if states > 1 else y,)}
            found = {"carry": carry if states > 1 else (carry,), "y": (found,)}
        else:
            expected, found = {"y": (y[0] if isinstance(y, tuple) else y,)}, {"y": (run(twin, rows),)}
        for part, arrays in expected.items():
            for array, other in zip(arrays, found[part], strict=True):
                assert other.dtype == of_jax, (name, part)
                assert_same_bits(np.asarray(other).view(np.int16), array.view(torch.int16).numpy())
