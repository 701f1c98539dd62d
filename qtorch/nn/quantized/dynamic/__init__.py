"""Layers of floats with quantized weights, whose activations are quantized when they are there."""

from qtorch.nn.quantized.dynamic.product import Linear
from qtorch.nn.quantized.dynamic.rnn import GRU, LSTM, GRUCell, LSTMCell, RNNCell

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell", "Linear", "RNNCell"]
