"""LSTMs whose hidden states are projected: a NumPy oracle of the steps, and the same bits in PyTorch and JAX."""

import jax
import numpy as np
import pytest
import torch
from carrying_support import tensors_of
from flax import nnx
from flax_support import layer_of
from support import assert_same_bits
from torch import nn

import qjax.nnx as qnn
import qtorch.quantization as tq
from qcore.affine import AffineInteger
from qjax.quantization import functional

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
X = np.random.default_rng(1).normal(size=(3, 7, 4)).astype(np.float32)
SETTINGS = {"num_layers": 2, "bidirectional": True, "batch_first": True, "proj_size": 3}


def floats(**more):
    torch.manual_seed(1)
    return nn.LSTM(4, 6, **SETTINGS | more).eval()


def in_jax(**more):
    return layer_of(qnn.LSTM, 4, 6, 2, bidirectional=True, proj_size=3, **more)


def product(x, part):
    """float32(sums) * (scale of x * scale of the weight) + bias, of 7-bit integers by the range of all of x."""
    low, high = min(np.float64(x.min()), 0.0), max(np.float64(x.max()), 0.0)
    scale = (high - low) / 127 or 0.1
    from_low, from_high = -low / scale, 127 - high / scale
    zero = np.rint(from_low if -abs(low / scale) < 127 - abs(high / scale) else from_high)
    scale = np.float32(scale)
    q = np.clip(np.rint(x * (np.float32(1) / scale)) + zero, 0, 127)
    weight = part.weight()
    w, own = weight.values.numpy().astype(np.int64), weight.qparams.scale.numpy()
    sums = ((q - zero).astype(np.int64) @ w.T).astype(np.float32)
    y = sums * (scale * own)
    return y if part.bias is None else y + part.bias.numpy()


def sigmoid(x):
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def tanh(x):
    return np.tanh(x.astype(np.float64)).astype(np.float32)


def unrolled(layer, x):
    """Both layers and directions step by step; x is (steps, batch, features)."""
    last_hidden, last_cell = [], []
    for number in range(0, 4, 2):
        results = []
        for direction in range(2):
            ih, hh, hr = (parts[number + direction] for parts in (layer.ih, layer.hh, layer.hr))
            of_input = product(x.reshape(-1, x.shape[-1]), ih).reshape(*x.shape[:2], -1)
            hidden, cell, outputs = np.zeros((x.shape[1], 3), np.float32), np.zeros((x.shape[1], 6), np.float32), []
            for step in range(len(x))[:: -1 if direction else 1]:
                i, f, g, o = np.split(of_input[step] + product(hidden, hh), 4, -1)
                cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
                hidden = product(sigmoid(o) * tanh(cell), hr)
                outputs.append(hidden)
            results.append(np.stack(outputs[:: -1 if direction else 1]))
            last_hidden.append(hidden)
            last_cell.append(cell)
        x = np.concatenate(results, -1)
    return x, np.stack(last_hidden), np.stack(last_cell)


def test_steps():
    layer = tq.quantize_dynamic(nn.Sequential(floats()))[0]
    y, (hidden, cell) = layer(torch.from_numpy(X))
    expected = unrolled(layer, X.swapaxes(0, 1))
    for actual, one in zip((y.transpose(0, 1), hidden, cell), expected, strict=True):
        assert_same_bits(actual.contiguous(), one)
    near = floats()(torch.from_numpy(X))[0]
    assert (y - near).abs().max() < 0.05
    again, _ = layer(torch.from_numpy(X), (torch.zeros(4, 3, 3), torch.zeros(4, 3, 6)))
    assert_same_bits(again, y)


@pytest.mark.heavy
def test_compiled():
    layer, x = tq.quantize_dynamic(nn.Sequential(floats()))[0], torch.from_numpy(X)
    torch.compiler.reset()
    assert_same_bits(torch.compile(layer, backend="eager", fullgraph=True)(x)[0], layer(x)[0])


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["qint8", pytest.param(AffineInteger.of_width(4), marks=pytest.mark.heavy)], ids=str)
def test_in_jax(dtype):
    """Quantized there and carried here, and quantized here; files go back."""
    model = floats()
    settings = None
    if isinstance(dtype, AffineInteger):
        observer = tq.MinMaxObserver.with_args(dtype=dtype, qscheme=torch.per_tensor_symmetric)
        settings = {"": tq.QConfigDynamic(weight=observer)}
    small = tq.quantize_dynamic(model, settings)
    with torch.no_grad():
        y, (hidden, cell) = small(torch.from_numpy(X))
    own = qnn.quantize_dynamic(qnn.from_torch(in_jax(), tensors_of(model)), dtype=dtype)
    same = {name: array.tobytes() for name, array in qnn.to_torch(own).items()}
    assert same == {name: tensors_of(small)[name].tobytes() for name in same}
    served = qnn.from_torch(in_jax(), tensors_of(small))
    for layer in (served, own)[: 1 + (dtype != "qint8")]:
        actual = nnx.jit(lambda layer, x: layer(x, return_carry=True))(layer, X)
        for one, other in zip(jax.tree.leaves(actual), (y, hidden, cell), strict=True):
            assert_same_bits(np.asarray(one), other.numpy())
    arrays = qnn.to_torch(served)
    assert arrays.keys() == tensors_of(small).keys()
    loaded = tq.load_converted(model, {name: torch.tensor(array) for name, array in arrays.items()})
    assert_same_bits(loaded(torch.from_numpy(X))[0], y)
    np.testing.assert_allclose(
        qnn.from_torch(in_jax(), tensors_of(model))(X), model(torch.from_numpy(X))[0].detach(), atol=1e-5
    )


def test_wrong_calls():
    layer = tq.quantize_dynamic(floats())
    with pytest.raises(ValueError, match=r"state has shape \(4, 3, 6\); allowed is \(4, 3, 3\)"):
        layer(torch.from_numpy(X), (torch.zeros(4, 3, 6), torch.zeros(4, 3, 6)))
    with pytest.raises(ValueError, match=r"state_dict has hr\.0\.weight, of an LSTM with proj_size"):
        tq.to_torch_ao(layer.state_dict())
    with pytest.raises(ValueError, match="proj_size=6; allowed is an int from 0 to 5"):
        qnn.LSTM(4, 6, proj_size=6, rngs=nnx.Rngs(0))
    ones = np.ones((3, 1), np.float16)
    with pytest.raises(ValueError, match=r"weights.hr has shape \(1, 1\); allowed is None but in an LSTM"):
        functional.gru(X[..., :1], [[functional.CellWeights(ones, ones, hr=ones[:1])]])
