"""Layers of floats with quantized weights, whose activations are quantized at run time.

Names, shapes and bytes of their variables are as in `qtorch.nn.quantized.dynamic`; the law is
`qcore.affine.functional.recurrent`.
"""

from qcore.lazy import public_names
from qjax.nnx.quantized.dynamic.product import Linear
from qjax.nnx.quantized.dynamic.rnn import GRU, LSTM, RNN, Cell, GRUCell, LSTMCell, Recurrent, SimpleCell

__all__ = ["GRU", "LSTM", "RNN", "Cell", "GRUCell", "LSTMCell", "Linear", "Recurrent", "SimpleCell"]
__dir__ = public_names(__name__)
