"""Float layers with quantized weights; activations are quantized by their own range at each call."""

from qcore.lazy import public_names
from qtorch.nn.quantized.dynamic.product import Linear
from qtorch.nn.quantized.dynamic.rnn import GRU, LSTM, GRUCell, LSTMCell, RNNCell

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell", "Linear", "RNNCell"]
__dir__ = public_names(__name__)
