"""Recurrent layers of floats, with quantized weights."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.nn.utils.rnn import PackedSequence

from qcore.arguments import check_flag, check_int, check_size
from qcore.law.carrier import check_dtype
from qtorch._affine.namespace import Names
from qtorch.nn.quantized.common.base import checked, place_of
from qtorch.nn.quantized.dynamic.product import DynamicProduct, check_pair, check_state, dtype_of
from qtorch.nn.quantized.dynamic.steps import run_steps


class _Recurrent(torch.nn.Module):
    """Layers of recurrent cells, in one or two directions.

    The input of each layer and direction is quantized once, by the range of all its steps; hidden states at each step.
    """

    gates: ClassVar[int]
    law: ClassVar[str]
    layer_name = ""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = torch.qint8,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        for name, flag in (("bias", bias), ("batch_first", batch_first), ("bidirectional", bidirectional)):
            check_flag(name, flag)
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.num_layers = check_int("num_layers", num_layers, 1, 2**16)
        self.proj_size = check_int("proj_size", proj_size, 0, hidden_size - 1 if self.law == "lstm" else 0)
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        directions = 1 + bidirectional
        state_size = proj_size or hidden_size
        widths = [input_size] + [directions * state_size] * (num_layers - 1)
        rows = self.gates * hidden_size
        self.ih = torch.nn.ModuleList(
            DynamicProduct((rows, width), bias, dtype) for width in widths for _ in range(directions)
        )
        self.hh = torch.nn.ModuleList(DynamicProduct((rows, state_size), bias, dtype) for _ in self.ih)
        if proj_size:
            self.hr = torch.nn.ModuleList(DynamicProduct((proj_size, hidden_size), False, dtype) for _ in self.ih)

    def _run(
        self, x: torch.Tensor, sizes: list[int], states: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The results of all steps, and the last states.

        Args:
            x: the sequences' rows, those of one step after those of another.
            sizes: how many sequences, the first ones, have each step.
            states: tensors of shape (layers * directions, batch, hidden_size), or proj_size for hidden ones.
        """
        directions, last = 1 + self.bidirectional, []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = torch.nn.functional.dropout(x, self.dropout)
            results = []
            for direction in range(directions):
                number = layer * directions + direction
                state = tuple(one[number] for one in states)
                products = self.ih[number], self.hh[number]
                projection = self.hr[number] if self.proj_size else None
                result, state = run_steps(self.law, products, x, sizes, state, direction == 1, projection)
                results.append(result)
                last.append(state)
            x = torch.cat(results, -1) if directions > 1 else results[0]
        return x, [torch.stack(one) for one in zip(*last, strict=True)]

    def _forward(self, input: Any, states: tuple[torch.Tensor, ...] | None, count: int) -> Any:
        packed = isinstance(input, PackedSequence)
        x, ranks = (input.data, (2,)) if packed else (input, (2, 3))
        if not isinstance(x, torch.Tensor) or x.ndim not in ranks or x.shape[-1] != self.input_size:
            shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            allowed = f"a tensor of shape (steps, batch, {self.input_size}), or a PackedSequence of such rows"
            raise ValueError(f"{place_of(self)}: input is {shape}; allowed is {allowed}")
        checked(self, check_dtype, Names.dtype(x), "input")
        if packed:
            return self._packed(input, states, count)
        batched = x.ndim == 3
        x = (x.transpose(0, 1) if self.batch_first else x) if batched else x.unsqueeze(1)
        if states is not None and not batched:
            states = tuple(one.unsqueeze(1) for one in states)
        steps, batch = x.shape[:2]
        y, last = self._run(x.float().flatten(0, 1), [batch] * steps, self._states(x, batch, states, count))
        y, last = y.to(x.dtype).unflatten(0, (steps, batch)), [one.to(x.dtype) for one in last]
        if not batched:
            return y.squeeze(1), [one.squeeze(1) for one in last]
        return (y.transpose(0, 1) if self.batch_first else y), last

    def _packed(self, input: PackedSequence, states: tuple[torch.Tensor, ...] | None, count: int) -> Any:
        """Of sequences of several lengths, as `torch.nn.utils.rnn.pack_padded_sequence` makes them."""
        sizes = input.batch_sizes.tolist()
        made = self._states(input.data, sizes[0], states, count)
        if input.sorted_indices is not None:
            made = [one.index_select(1, input.sorted_indices) for one in made]
        y, last = self._run(input.data.float(), sizes, made)
        y, last = y.to(input.data.dtype), [one.to(input.data.dtype) for one in last]
        if input.unsorted_indices is not None:
            last = [one.index_select(1, input.unsorted_indices) for one in last]
        return PackedSequence(y, input.batch_sizes, input.sorted_indices, input.unsorted_indices), last

    def _states(
        self, x: torch.Tensor, batch: int, states: tuple[torch.Tensor, ...] | None, count: int
    ) -> list[torch.Tensor]:
        """The first states in float32; zeros where there are none."""
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[:count]
        shapes = [(len(self.ih), batch, size) for size in sizes]
        if states is None:
            return [x.new_zeros(shape, dtype=torch.float32) for shape in shapes]
        for one, shape in zip(states, shapes, strict=True):
            check_state(self, "state", one, shape)
        return [one.float() for one in states]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, {self.bidirectional=}"

    @classmethod
    def from_float(cls, mod: Any) -> _Recurrent:
        """The dynamic layer of torch's, which has a `qconfig`.

        Raises:
            TypeError: if it has none.
        """
        dtype = dtype_of(mod)
        settings = mod.num_layers, mod.bias, mod.batch_first, mod.dropout, mod.bidirectional
        made = cls(mod.input_size, mod.hidden_size, *settings, dtype, mod.proj_size)
        for number, weights in enumerate(mod.all_weights):
            biases = weights[2:4] if mod.bias else (None, None)
            if mod.proj_size:
                made.hr[number].take(mod, weights[-1], None, dtype)  # type: ignore[operator]
            products: Any = made.ih[number], made.hh[number]
            for product, weight, bias in zip(products, weights[:2], biases, strict=True):
                product.take(mod, weight, bias, dtype)
        return made.train(mod.training)


class LSTM(_Recurrent):
    """`torch.nn.LSTM` with quantized weights (`qcore.affine.arithmetic.recurrent.lstm_cell`).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional: as for `torch.nn.LSTM`.
        dtype: of the weights: torch.qint8, an `AffineInteger`, or torch.float16.
        proj_size: as for `torch.nn.LSTM`: hidden states are projected to this size, by a third product; 0 for none.

    Example:
        >>> y, (hidden, cell) = LSTM(2, 3, num_layers=2)(torch.ones(5, 1, 2))
        >>> y.shape, hidden.shape
        (torch.Size([5, 1, 3]), torch.Size([2, 1, 3]))
    """

    gates, law = 4, "lstm"

    def forward(
        self, input: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The results of all steps, and the hidden and the cell states after the last."""
        check_pair(self, state)
        y, (hidden, cell) = self._forward(input, state, 2)
        return y, (hidden, cell)


class GRU(_Recurrent):
    """`torch.nn.GRU` with quantized weights (`qcore.affine.arithmetic.recurrent.gru_cell`).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype: as for `LSTM`.
        proj_size: 0.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> y, hidden = GRU(2, 3, bidirectional=True)(torch.ones(5, 1, 2))
        >>> y.shape, hidden.shape
        (torch.Size([5, 1, 6]), torch.Size([2, 1, 3]))
    """

    gates, law = 3, "gru"

    def forward(self, input: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The results of all steps, and the hidden states after the last."""
        y, (hidden,) = self._forward(input, None if state is None else (state,), 1)
        return y, hidden
