"""Layers of floats with quantized weights, whose activations are quantized when they are there."""

from qtorch.nn.quantized.dynamic.cells import GRUCell, LSTMCell, RNNCell
from qtorch.nn.quantized.dynamic.linear import Linear
from qtorch.nn.quantized.dynamic.rnn import GRU, LSTM

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell", "Linear", "RNNCell"]
