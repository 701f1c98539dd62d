"""Recurrent cells of floats, with quantized weights; states are float32 inside, and results have the input's dtype."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from qcore.affine.arithmetic import recurrent
from qcore.arguments import check_choice, check_flag, check_int
from qtorch._affine.namespace import Names
from qtorch.nn.quantized.dynamic.product import DynamicProduct, check_pair, check_state, dtype_of


class _Cell(torch.nn.Module):
    """Products with the input and with the hidden state, each quantized by its own range, and what follows in float32.

    Args:
        input_size, hidden_size: of input and state.
        bias: whether there are biases.
        dtype: of the weights: torch.qint8, an `AffineInteger`, or torch.float16.
    """

    gates: ClassVar[int]
    layer_name = ""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, dtype: Any = torch.qint8) -> None:
        super().__init__()
        check_flag("bias", bias)
        self.input_size = check_int("input_size", input_size, 1)
        self.hidden_size = check_int("hidden_size", hidden_size, 1)
        rows = self.gates * hidden_size
        self.ih = DynamicProduct((rows, input_size), bias, dtype)
        self.hh = DynamicProduct((rows, hidden_size), bias, dtype)

    def _state(self, input: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        if state is None:
            return torch.zeros((*input.shape[:-1], self.hidden_size), dtype=torch.float32, device=input.device)
        check_state(self, "hidden state", state, (*input.shape[:-1], self.hidden_size))
        return state.to(torch.float32)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    @classmethod
    def from_float(cls, mod: Any) -> _Cell:
        """The dynamic cell of torch's, which has a `qconfig`.

        Raises:
            TypeError: if it has none.
        """
        dtype = dtype_of(mod)
        cell = cls(mod.input_size, mod.hidden_size, mod.bias, dtype, **cls._more(mod))
        cell.ih.take(mod, mod.weight_ih, mod.bias_ih, dtype)
        cell.hh.take(mod, mod.weight_hh, mod.bias_hh, dtype)
        return cell

    @classmethod
    def _more(cls, mod: Any) -> dict[str, Any]:
        return {}


class LSTMCell(_Cell):
    """`torch.nn.LSTMCell` with quantized weights (`qcore.affine.arithmetic.recurrent.lstm_cell`).

    Args:
        input_size, hidden_size: of input and state.
        bias: whether there are biases.
        dtype: of the weights: torch.qint8, an `AffineInteger`, or torch.float16.

    Example:
        >>> hidden, cell = LSTMCell(2, 3)(torch.ones(1, 2))
        >>> hidden
        tensor([[0., 0., 0.]])
    """

    gates = 4

    def forward(
        self, input: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The hidden and the cell state after a step, from those before it, or from zeros."""
        check_pair(self, state)
        of_input = self.ih.product(input)
        hidden, cell = (self._state(input, one) for one in (state or (None, None)))
        hidden, cell = recurrent.lstm_cell(Names, of_input + self.hh.product(hidden), cell)
        return hidden.to(input.dtype), cell.to(input.dtype)


class GRUCell(_Cell):
    """`torch.nn.GRUCell` with quantized weights (`qcore.affine.arithmetic.recurrent.gru_cell`).

    Args:
        input_size, hidden_size, bias, dtype: as for `LSTMCell`.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> GRUCell(2, 3)(torch.ones(1, 2))
        tensor([[0., 0., 0.]])
    """

    gates = 3

    def forward(self, input: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        """The hidden state after a step, from that before it, or from zeros."""
        of_input = self.ih.product(input)
        hidden = self._state(input, state)
        return recurrent.gru_cell(Names, of_input, self.hh.product(hidden), hidden).to(input.dtype)


class RNNCell(_Cell):
    """`torch.nn.RNNCell` with quantized weights (`qcore.affine.arithmetic.recurrent.rnn_cell`).

    Args:
        input_size, hidden_size, bias, dtype: as for `LSTMCell`.
        nonlinearity: "tanh" or "relu".

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> RNNCell(2, 3, nonlinearity="relu")(torch.ones(1, 2))
        tensor([[0., 0., 0.]])
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        dtype: Any = torch.qint8,
        nonlinearity: str = "tanh",
    ) -> None:
        check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, bias, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        """The hidden state after a step, from that before it, or from zeros."""
        sums = self.ih.product(input) + self.hh.product(self._state(input, state))
        return recurrent.rnn_cell(Names, sums, self.nonlinearity).to(input.dtype)

    @classmethod
    def _more(cls, mod: Any) -> dict[str, Any]:
        return {"nonlinearity": mod.nonlinearity}
