"""Dynamic layers have the same integers in JAX as in PyTorch; files go there and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from carrying_support import same_state, tensors_of
from flax import nnx
from flax_support import layer_of, module_of
from support import assert_same_bits, assert_same_trees
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import AffineInteger
from qjax.quantization import functional


class TorchText(nn.Module):
    """Recurrent layers and cells behind each other."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTM(5, 6, batch_first=True), nn.GRU(6, 7, batch_first=True), None
        self.cells = nn.ModuleList([nn.LSTMCell(7, 4), nn.GRUCell(4, 4), nn.RNNCell(4, 3, nonlinearity="relu")])
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        found = [self.lstm(x)[0]]
        found.append(self.gru(found[-1])[0])
        hidden, cell = self.cells[0](found[-1][:, -1])
        found += [hidden, cell]
        for one in self.cells[1:]:
            found.append(one(found[-2] if one is self.cells[1] else found[-1]))
        return [*found, self.fc(found[-1])]


class JaxText(nnx.Module):
    """The same; `kind` is of LSTM cells."""

    def __init__(self, rngs, kind=nnx.OptimizedLSTMCell):
        self.lstm, self.gru = nnx.RNN(kind(5, 6, rngs=rngs)), nnx.RNN(nnx.GRUCell(6, 7, rngs=rngs))
        simple = nnx.SimpleCell(4, 3, activation_fn=nnx.relu, rngs=rngs)
        self.cells = nnx.List([kind(7, 4, rngs=rngs), nnx.GRUCell(4, 4, rngs=rngs), simple])
        self.fc = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        found = [self.lstm(x)]
        found.append(self.gru(found[-1]))
        last = found[-1][:, -1]
        zeros = [jnp.zeros((len(last), size)) for size in (4, 4, 3)]
        (cell, hidden), _ = self.cells[0]((zeros[0], zeros[0]), last)
        found += [hidden, cell]
        found.append(self.cells[1](zeros[1], hidden)[1])
        found.append(self.cells[2](zeros[2], found[-1])[1])
        return [*found, self.fc(found[-1])]


def sequences(seed):
    return np.random.default_rng(seed).normal(size=(3, 9, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def floats():
    torch.manual_seed(3)
    model = TorchText().eval()
    for name, parameter in model.named_parameters():
        if "bias_" in name:  # flax has one bias: of the hidden side in an LSTM, else of the input's
            absent = "bias_ih" if parameter.numel() in (24, 16) else "bias_hh"
            parameter.data *= absent not in name
    return model


def dynamic_settings(dtype):
    if not isinstance(dtype, AffineInteger):
        return None
    observer = tq.MinMaxObserver.with_args(dtype=dtype, qscheme=torch.per_tensor_symmetric)
    return {"": tq.QConfigDynamic(weight=observer)}


@nnx.jit
def run(model, x):
    return model(x)


INT12 = AffineInteger.of_width(12)


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["qint8", AffineInteger.of_width(4), INT12])
def test_dynamic_models(dtype, floats):
    quantized = tq.quantize_dynamic(floats, dynamic_settings(dtype))
    tensors = tensors_of(quantized)
    served = qnn.from_torch(module_of(lambda: JaxText(nnx.Rngs(0))), tensors)
    same_state(qnn.to_torch(served), tensors)
    own = qnn.quantize_dynamic(qnn.from_torch(module_of(lambda: JaxText(nnx.Rngs(0))), tensors_of(floats)), dtype=dtype)
    same_state(arrays := qnn.to_torch(own), {name: tensors[name] for name in arrays})
    assert not any(array.any() for name, array in tensors.items() if name not in arrays)
    x = sequences(1)
    with torch.no_grad():
        expected = quantized(torch.from_numpy(x))
    for model in [served, own][: 1 + (dtype != "qint8")]:  # their states are equal: heavy runs compile both
        for result, one in zip(run(model, x), expected, strict=True):
            assert_same_bits(np.asarray(result), one.numpy())


@pytest.mark.heavy
def test_eager(floats):
    x = np.random.default_rng(4).normal(size=(3, 7)).astype(np.float32)
    layer = tq.quantize_dynamic(floats).cells[0]
    served = qnn.from_torch(layer_of(nnx.OptimizedLSTMCell, 7, 4), tensors_of(layer))
    state = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    with torch.no_grad():
        hidden, cell = layer(*map(torch.from_numpy, (x,)), tuple(map(torch.from_numpy, state[::-1])))
    for result, one in zip(served(state, x)[0], (cell, hidden), strict=True):
        assert_same_bits(np.asarray(result), one.numpy())


def test_separate_gates_are_the_same_cell(floats):
    one, other = (
        qnn.from_torch(module_of(lambda kind=kind: JaxText(nnx.Rngs(0), kind)), tensors_of(floats))
        for kind in (nnx.OptimizedLSTMCell, nnx.LSTMCell)
    )
    made = [qnn.quantize_dynamic(model) for model in (one, other)]
    assert type(made[0].cells[0]) is type(made[1].cells[0])
    assert_same_trees(*map(nnx.state, made))
    same_state(qnn.to_torch(other), qnn.to_torch(one))
    floats.load_state_dict({name: torch.tensor(array) for name, array in qnn.to_torch(other).items()})


@pytest.mark.heavy
def test_halves(floats):
    quantized = tq.quantize_dynamic(floats, dtype=torch.float16)
    served = qnn.from_torch(module_of(lambda: JaxText(nnx.Rngs(0))), tensors_of(quantized))
    with torch.no_grad():
        expected = quantized(torch.from_numpy(sequences(1)))
    for result, one in zip(run(served, sequences(1)), expected, strict=True):
        np.testing.assert_allclose(result, one, rtol=1e-5, atol=1e-6)
    same_state(qnn.to_torch(served), tensors_of(quantized))


@pytest.mark.parametrize("kind", ["lstm", pytest.param("gru", marks=pytest.mark.heavy)])
def test_functions_over_layers_and_directions(kind):
    torch.manual_seed(1)
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](4, 3, num_layers=2, bidirectional=True)
    quantized = tq.quantize_dynamic(layer)
    weights = [
        functional.CellWeights(*(jax_weight(part) for part in pair), *(jnp.asarray(part.bias) for part in pair))
        for pair in zip(quantized.ih, quantized.hh, strict=True)
    ]
    layers = [weights[:2], weights[2:]]
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6, 2, 4)).astype(np.float32)
    state = [rng.normal(size=(4, 2, 3)).astype(np.float32) for _ in range(1 + (kind == "lstm"))]
    of_torch, of_jax = ([make(one) for one in state] for make in (torch.from_numpy, jnp.asarray))
    pack = tuple if kind == "lstm" else lambda states: states[0]
    with torch.no_grad():
        expected = quantized(torch.from_numpy(x), pack(of_torch))
    function = getattr(functional, kind)
    actual = jax.jit(function)(x, layers, pack(of_jax))
    for result, one in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert_same_bits(np.asarray(result), one.numpy())


def jax_weight(product):
    q = product.weight()
    qparams = jq.QParams(jnp.asarray(q.qparams.scale), jnp.asarray(q.qparams.zero_point))
    return jq.QTensor(jnp.asarray(q.values), qparams, q.form)
