"""Layers converted in PyTorch, or dynamic, have the same integers in JAX; files go there and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from carrying_support import calibrated, same_at_every_layer, tensors_of
from flax import nnx
from flax_support import layer_of, module_of
from safetensors.numpy import load_file, save_file
from support import assert_same_bits, assert_same_trees
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import AffineInteger
from qjax.quantization import functional
from qtorch.nn.quantized import FloatFunctional


class TorchLayers(nn.Module):
    """Norms, activations, pools and a FloatFunctional."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.conv, self.bn, self.act1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ELU(0.7)
        self.group, self.act2, self.instance = nn.GroupNorm(2, 8), nn.Hardswish(), nn.InstanceNorm2d(8, affine=True)
        self.act3, self.act4, self.clip = nn.LeakyReLU(0.1), nn.Sigmoid(), nn.ReLU6()
        self.mix, self.layer, self.fc = FloatFunctional(), nn.LayerNorm(8), nn.Linear(8, 5)
        self.act5, self.act6 = nn.PReLU(8), nn.PReLU()

    def forward(self, x):
        x = self.act1(self.bn(self.conv(self.quant(x))))
        x = nn.functional.max_pool2d(self.act2(self.group(x)), 2)
        x = self.clip(self.act3(self.instance(x)))
        x = self.mix.mul_relu(x, self.act4(x))
        x = self.layer(nn.functional.avg_pool2d(x, 2).mean((2, 3)))
        return self.dequant(self.act6(self.fc(self.act5(x))))


class JaxLayers(nnx.Module):
    """The same with channels last."""

    def __init__(self, rngs):
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        self.conv, self.bn, self.act1 = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs), qnn.ELU(0.7)
        self.group, self.act2 = nnx.GroupNorm(8, 2, epsilon=1e-5, rngs=rngs), qnn.Hardswish()
        self.instance = nnx.InstanceNorm(8, epsilon=1e-5, rngs=rngs)
        self.act3, self.act4, self.clip = qnn.LeakyReLU(0.1), qnn.Sigmoid(), qnn.ReLU6()
        self.mix, self.layer = qnn.FloatFunctional(), nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.fc, self.act5, self.act6 = nnx.Linear(8, 5, rngs=rngs), qnn.PReLU(8), qnn.PReLU()

    def __call__(self, x):
        x = self.act1(self.bn(self.conv(self.quant(x))))
        x = qnn.max_pool(self.act2(self.group(x)), (2, 2), (2, 2))
        x = self.clip(self.act3(self.instance(x)))
        x = self.mix.mul_relu(x, self.act4(x))
        x = self.layer(qnn.avg_pool(x, (2, 2), (2, 2)).mean((1, 2)))
        return self.dequant(self.act6(self.fc(self.act5(x))))


def images(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3, 12, 12)).astype(np.float32)


def trained(model):
    """With parameters and statistics that are not the first ones."""
    torch.manual_seed(0)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.ndim == 1 and tensor.is_floating_point():
            tensor.data = torch.rand_like(tensor) + (0.5 if "weight" in name or "var" in name else -0.5)
    return model


SETTINGS = {
    "uint8": (tq.get_default_qconfig("qnnpack"), jq.get_default_qconfig("qnnpack")),
    "uint4": tuple(
        package.QConfig(
            package.MinMaxObserver.with_args(dtype=AffineInteger.of_width(4, False)),
            package.MinMaxObserver.with_args(dtype=AffineInteger.of_width(4), qscheme=scheme),
        )
        for package, scheme in ((tq, torch.per_tensor_symmetric), (jq, "per_tensor_symmetric"))
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", SETTINGS)
def test_layers(case, tmp_path):
    of_torch, of_jax = SETTINGS[case]
    observed = calibrated(trained(TorchLayers()), of_torch, images(16))
    converted = tq.convert(observed)
    save_file(tensors_of(converted), tmp_path / "model.safetensors")
    model = module_of(lambda: JaxLayers(nnx.Rngs(0)))
    model.eval()
    served = qnn.from_torch(model, load_file(tmp_path / "model.safetensors"), of_jax)
    same_at_every_layer(converted, served, images(4, 1))
    prepared = qnn.from_torch(qnn.prepare(model, of_jax), tensors_of(observed))
    own = qnn.convert(prepared)
    for left, right in zip(jax.tree.leaves(nnx.state(own)), jax.tree.leaves(nnx.state(served)), strict=True):
        assert_same_bits(np.asarray(left), np.asarray(right))
    same_state(qnn.to_torch(served), tensors_of(converted))
    same_state(qnn.to_torch(prepared), {k: v for k, v in tensors_of(observed).items() if not k.endswith(".eps")})
    converted.load_state_dict({name: torch.tensor(array) for name, array in qnn.to_torch(served).items()})


def same_state(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        assert array.dtype == expected[name].dtype, name
        assert array.reshape(-1).tobytes() == expected[name].tobytes(), name


# Dynamic layers


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


class TorchAttention(nn.Module):
    """Attention in integers: products by FloatFunctional, and a softmax between them."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant, self.qkv = tq.QuantStub(), tq.DeQuantStub(), nn.Linear(8, 24)
        self.scores, self.mixed = FloatFunctional(), FloatFunctional()

    def forward(self, x):
        q, k, v = self.qkv(self.quant(x)).chunk(3, -1)
        weights = torch.softmax(self.scores.einsum("bik,bjk->bij", q, k), -1)
        return self.dequant(self.mixed.matmul(weights, v))


class JaxAttention(nnx.Module):
    def __init__(self):
        self.quant, self.dequant, self.qkv = qnn.QuantStub(), qnn.DeQuantStub(), nnx.Linear(8, 24, rngs=nnx.Rngs(0))
        self.scores, self.mixed = qnn.FloatFunctional(), qnn.FloatFunctional()

    def __call__(self, x):
        q, k, v = functional.chunk(self.qkv(self.quant(x)), 3, -1)
        weights = qnn.softmax(self.scores.einsum("bik,bjk->bij", q, k))
        return self.dequant(self.mixed.matmul(weights, v))


def test_attention():
    torch.manual_seed(5)
    floats, settings = TorchAttention(), tq.get_default_qconfig("fbgemm")
    x = np.random.default_rng(3).normal(size=(4, 6, 8)).astype(np.float32)
    converted = tq.convert(calibrated(floats, settings, x))
    served = qnn.from_torch(module_of(JaxAttention), tensors_of(converted), jq.get_default_qconfig("fbgemm"))
    expected = converted(torch.from_numpy(x))
    assert_same_bits(np.asarray(run(served, x)), expected.numpy())
    assert (expected - floats(torch.from_numpy(x))).abs().max() < 0.1
