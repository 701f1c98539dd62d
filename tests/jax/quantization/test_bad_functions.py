"""What recurrent functions with quantized weights refuse, and pools of floats and of quantized arrays."""

import jax.numpy as jnp
import pytest

from qjax import nnx as qnnx
from qjax import quantization
from qjax.nnx.quantized.dynamic import RNN, Linear, LSTMCell
from qjax.quantization import FakeQuantize, enable_fake_quant, enable_observer, quantize_per_tensor
from qjax.quantization.functional import CellWeights, dynamic_linear, gru, gru_cell, lstm, lstm_cell, rnn_cell

X, H, STEPS = jnp.ones((4, 3)), jnp.ones((4, 2)), jnp.ones((5, 4, 3))
WEIGHT = jnp.ones((2, 3), jnp.float16)


def of(gates, size=2, features=3, **biases):
    weights = (quantize_per_tensor(jnp.ones((gates * size, width)), 0.5, 0, "qint8") for width in (features, size))
    return CellWeights(*weights, **biases)


CELL = LSTMCell(Linear(jnp.ones((8, 3)), None), Linear(jnp.ones((8, 2)), None))

BAD = [
    (lambda: lstm_cell(X, (H, H), of(3)), ValueError, r"weights.ih has shape \(6, 3\) and .*\(4 \* size, features\)"),
    (lambda: gru_cell(X, H, of(4)), ValueError, r"weights.hh \(8, 2\); allowed are .* and \(3 \* size, size\)"),
    (lambda: rnn_cell(X, H, of(2)), ValueError, r"weights.ih has shape \(4, 3\) and .*\(1 \* size, features\)"),
    (lambda: gru_cell(X, H, of(3)._replace(ih=None)), ValueError, r"weights.ih has shape \(\)"),
    (lambda: gru_cell(X, H, None), TypeError, "weights is a NoneType; allowed is a CellWeights"),
    (lambda: rnn_cell(X, X, of(1)), ValueError, r"hidden state has shape \(4, 3\); allowed is \(4, 2\)"),
    (lambda: gru_cell(X, H[:3], of(3)), ValueError, r"hidden state has shape \(3, 2\); allowed is \(4, 2\)"),
    (lambda: lstm_cell(X, (H, H[:, :1]), of(4)), ValueError, r"cell state has shape \(4, 1\); allowed is \(4, 2\)"),
    (lambda: lstm_cell(X, H, of(4)), TypeError, "state is a .*; allowed is a tuple of arrays, .hidden, cell"),
    (lambda: lstm_cell(X, (H,) * 3, of(4)), TypeError, "state is a tuple; allowed is a tuple of arrays, .hidden, cell"),
    (lambda: lstm(STEPS, [[of(3)]]), ValueError, r"weights.ih has shape \(6, 3\)"),
    (lambda: gru(STEPS, [[of(3)], [of(4, features=2)]]), ValueError, r"weights.ih has shape \(8, 2\)"),
    (lambda: gru(STEPS, [[of(3)], [of(3, 4, 2)]]), ValueError, r"layers have states of \[2, 4\]; allowed is one size"),
    (lambda: lstm(STEPS, [[of(4)]], jnp.ones((1, 4, 2))), TypeError, "state is a .*; allowed is a tuple of arrays"),
    (lambda: gru(STEPS, [[of(3)]], jnp.ones((1, 4, 3))), ValueError, r"hidden state has shape \(1, 4, 3\)"),
    (lambda: dynamic_linear(X, WEIGHT, jnp.ones(1)), ValueError, r"bias has shape \(1,\); allowed is \(2,\)"),
    (lambda: dynamic_linear(X, WEIGHT, jnp.ones(2, int)), TypeError, "bias is int32; allowed is an array of float32"),
    (lambda: dynamic_linear(X, WEIGHT, [0.0, 1.0]), TypeError, "bias is list; allowed is an array of float32"),
    (lambda: gru_cell(X, H, of(3, bias_hh=H)), ValueError, r"weights.bias_hh has shape \(4, 2\); allowed is \(6,\)"),
    (lambda: CELL(H, X), TypeError, "LSTMCell: state is a .*; allowed is a tuple of arrays, .cell, hidden"),
    (lambda: CELL((X, H), X), ValueError, r"LSTMCell: cell state has shape \(4, 3\); allowed is \(4, 2\)"),
    (lambda: CELL((H.astype(int), H), X), TypeError, "LSTMCell: cell state has dtype int32; allowed are float32"),
    (lambda: RNN(CELL)(X[0]), ValueError, r"RNN: inputs has shape \(3,\); allowed is \(\.\.\., steps, features\)"),
    (lambda: lstm(STEPS, [[of(4, bias_ih=H)]]), ValueError, r"bias has shape \(4, 2\); allowed is \(8,\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


POOLS = [
    (((2, 2, 2),), ValueError, r"inputs has shape \(1, 6, 2\); allowed is \(batch, \*sizes, features\), 3 sizes"),
    ((2,), TypeError, "window_shape is a int; allowed is a tuple of ints"),
    (((0,),), ValueError, "window_shape=0; allowed is an int >= 1"),
    (((2.5,),), TypeError, "window_shape=2.5 is a float; allowed is an int >= 1"),
    (((2,), (1, 1)), ValueError, r"strides=\(1, 1\); allowed are one number or one"),
    (((2,), (0,)), ValueError, "strides=0; allowed is an int >= 1"),
    (((2,), (1,), "SAMES"), ValueError, "padding='SAMES'; allowed are VALID, SAME, SAME_LOWER"),
    (((2,), (1,), ((1, 1), (1, 1))), ValueError, "padding=.*; allowed are VALID, SAME, SAME_LOWER and 1 pairs of ints"),
]


@pytest.mark.parametrize("pool", [qnnx.max_pool, qnnx.avg_pool])
@pytest.mark.parametrize(("arguments", "error", "message"), POOLS)
def test_pools_of_arrays_and_of_quantized_ones(pool, arguments, error, message):
    x = jnp.ones((1, 6, 2))
    for inputs in (x, quantize_per_tensor(x, 0.5, 0, "quint8")):
        with pytest.raises(error, match=message):
            pool(inputs, *arguments)


METHODS = ["dequantize", "int_repr", "q_scale", "q_zero_point"]
METHODS += ["q_per_channel_axis", "q_per_channel_scales", "q_per_channel_zero_points"]


@pytest.mark.parametrize("name", METHODS)
def test_methods_as_functions(name):
    with pytest.raises(TypeError, match="q is a int; allowed is a QTensor"):
        getattr(quantization, name)(3)


@pytest.mark.parametrize("switch", [enable_observer, enable_fake_quant])
@pytest.mark.parametrize("enabled", [2.5, 1, None, "no", jnp.float32(1)])
def test_switches(switch, enabled):
    with pytest.raises(TypeError, match=r"enabled=.*; allowed are True and False"):
        switch([FakeQuantize().init()], enabled)
