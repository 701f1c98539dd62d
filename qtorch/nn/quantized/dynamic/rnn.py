"""Recurrent float layers and cells with quantized weights.

The steps of one layer and direction run in one call of C, as one operator in compiled programs, or one by one by the
law. States are float32 inside, and results have the input's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch.nn.utils.rnn import PackedSequence

from qcore.affine import AffineInteger, QParams
from qcore.affine.functional import recurrent
from qcore.arguments import check_choice, check_flag, check_int, check_size
from qcore.law.carrier import check_dtype
from qcore.law.rounding import RoundingName
from qtorch._affine import exported
from qtorch._affine.namespace import Names
from qtorch._affine.products import DynamicKernel, kernel_of
from qtorch._affine.tensor import QTensor
from qtorch._conversion import converted
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import Unscripted
from qtorch.nn.quantized.base import checked, layer_name
from qtorch.nn.quantized.dynamic.product import DynamicProduct, check_pair, check_state, dtype_of, multiplied
from qtorch.nn.quantized.weights import QuantizedWeight

State = Sequence[torch.Tensor]  # the hidden state, and of an LSTM the cell state
Product = Callable[[torch.Tensor], torch.Tensor]


def _lstm(of_input: torch.Tensor, of_hidden: torch.Tensor, state: State) -> State:
    if exported.is_wanted():
        return exported.cell("lstm", of_input, of_hidden, state[1])
    return recurrent.lstm_cell(Names, of_input + of_hidden, state[1])


def _gru(of_input: torch.Tensor, of_hidden: torch.Tensor, state: State) -> State:
    if exported.is_wanted():
        return exported.cell("gru", of_input, of_hidden, state[0])
    return (recurrent.gru_cell(Names, of_input, of_hidden, state[0]),)


LAWS = {"lstm": _lstm, "gru": _gru}


def run_steps(
    law: str,
    products: tuple[Any, Any],
    x: torch.Tensor,
    sizes: Sequence[int],
    state: State,
    reverse: bool,
    projection: Any = None,
) -> tuple[torch.Tensor, State]:
    """The results of all steps, and the states after the last one.

    Args:
        law: a key of `LAWS`.
        products: the `DynamicProduct` with the input and the one with the hidden states.
        x: the rows of all sequences, ordered by step.
        sizes: for each step the number of sequences that have it; they are the first ones.
        state: tensors of shape (batch, size).
        reverse: whether the steps are taken from the last to the first.
        projection: the `DynamicProduct` of an LSTM's hidden states, or None.
    """
    of_input, of_hidden = products
    every = [*products, *([] if projection is None else [projection])]
    roundings = [one.rounding_text for one in every]
    in_one = _is_traced(x) and not exported.is_wanted()
    if in_one and None not in roundings and not _is_differentiated(x, state, roundings):
        tensors = [*(_tensors(one) for one in every), *([[]] if projection is None else [])]
        forms = [number for one in every for number in _forms(one)]
        arguments = x.detach(), list(sizes), list(state), *tensors, forms, roundings, law, reverse
        made = torch.ops.qtorch.recurrent(*arguments)
        return made[0], made[1:]
    return _run(law, of_input, of_hidden, of_hidden.kernel(), x, sizes, state, reverse, projection)


def _is_traced(x: torch.Tensor) -> bool:
    """True under `torch.compile`, and for tensors that `torch.export` traces without it."""
    return torch.compiler.is_dynamo_compiling() or (torch.compiler.is_exporting() and not is_plain_tensor(x))


def _is_differentiated(x: torch.Tensor, state: State, roundings: list[Any]) -> bool:
    """True if gradients are needed; products of integers have none for x."""
    sources = [*state, *([x] if any(roundings) else [])]
    return torch.is_grad_enabled() and any(one.requires_grad for one in sources)


def _run(
    law: str,
    of_input: Product,
    of_hidden: Product,
    kernel: DynamicKernel | None,
    x: torch.Tensor,
    sizes: Sequence[int],
    state: State,
    reverse: bool,
    projection: Product | None,
) -> tuple[torch.Tensor, State]:
    """All steps in one call of the kernel, which has no projections, or one by one by the law."""
    # The input's products need no states: one product for all steps.
    of_all = of_input(x)
    made = None if kernel is None or projection is not None else kernel.steps(law, of_all, sizes, state, reverse)
    if made is not None:
        return made
    outputs, rows = [], of_all.split(list(sizes))
    for step in range(len(sizes))[:: -1 if reverse else 1]:
        count = sizes[step]
        first = [one[:count] for one in state]
        new = LAWS[law](rows[step], of_hidden(first[0]), first)
        if projection is not None:
            new = (projection(new[0]), *new[1:])
        # The states of sequences that have ended, or have not begun, stay.
        state = new if count == len(state[0]) else [torch.cat((a, b[count:])) for a, b in zip(new, state, strict=True)]
        outputs.append(new[0])
    return torch.cat(outputs[:: -1 if reverse else 1]), state


def _tensors(product: Any) -> list[torch.Tensor]:
    """The weight's integers, scale and zero point, or its numbers, and the bias where there is one."""
    weight: Any = product.weight if isinstance(product.weight, torch.Tensor) else product.weight()
    integers = isinstance(weight, QTensor)
    parts = [weight.values, weight.qparams.scale, weight.qparams.zero_point] if integers else [weight.float()]
    return [*parts, *([] if product.bias is None else [product.bias])]


def _forms(product: Any) -> tuple[int, ...]:
    """The integer ranges of weight and input as numbers for an operator; zeros where there are none."""
    if not isinstance(product.weight, QuantizedWeight):
        return (0,) * 8
    both: Any = product.weight.form, product.activations
    return tuple(number for form in both for number in (form.qmin, form.qmax, int(form.signed), form.middle))


def _product_of(
    tensors: list[torch.Tensor], forms: Sequence[int], rounding: str
) -> tuple[Product, DynamicKernel | None]:
    """A product and its kernel, made of the results of `_tensors` and `_forms`, and of `rounding_text`."""
    if rounding:
        return _product_of_floats(*tensors, rounding=rounding), None
    form, activations = (AffineInteger(forms[at], forms[at + 1], bool(forms[at + 2]), forms[at + 3]) for at in (0, 4))
    values, scale, zero_point, *bias = tensors
    weight = QTensor._made(values, QParams(scale, zero_point, 0 if scale.dim() else None), form)
    own = bias[0] if bias else None
    kernel = kernel_of(weight, own, activations)

    def product(x: torch.Tensor) -> torch.Tensor:
        result = None if kernel is None else kernel(x)
        return multiplied(x, weight, own, activations) if result is None else result

    return product, kernel


def _product_of_floats(weight: torch.Tensor, bias: torch.Tensor | None = None, *, rounding: str) -> Product:
    """The product of floats with a weight in float32, after a rounding."""
    name, _, text = rounding.partition(" ")
    mode = cast("RoundingName", name)

    def product(x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.float32)
        return torch.nn.functional.linear(quantize(x, text, mode) if text else x, weight, bias)

    return product


def run_recurrent(
    x: torch.Tensor,
    sizes: Sequence[int],
    state: list[torch.Tensor],
    of_input: list[torch.Tensor],
    of_hidden: list[torch.Tensor],
    of_state: list[torch.Tensor],
    forms: Sequence[int],
    roundings: Sequence[str],
    law: str,
    reverse: bool,
) -> list[torch.Tensor]:
    input_product, _ = _product_of(of_input, forms[:8], roundings[0])
    hidden_product, kernel = _product_of(of_hidden, forms[8:16], roundings[1])
    projection = _product_of(of_state, forms[16:], roundings[2])[0] if of_state else None
    result, last = _run(law, input_product, hidden_product, kernel, x, sizes, state, reverse, projection)
    return [result, *(one.clone() if one is old else one for one, old in zip(last, state, strict=True))]


def recurrent_shapes(x: torch.Tensor, sizes: Any, state: list[torch.Tensor], *_: Any) -> list[torch.Tensor]:
    """Tensors of the shapes and dtypes of the results and the last states."""
    result = x.new_empty((x.shape[0], state[0].shape[1]), dtype=torch.float32)
    return [result, *(one.new_empty(one.shape, dtype=torch.float32) for one in state)]


class _Cell(Unscripted, torch.nn.Module):
    """Products with the input and with the hidden state, each quantized by its own range; the rest is float32."""

    gates: ClassVar[int]
    layer_name = ""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, dtype: torch.dtype = torch.qint8) -> None:
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
        return converted(state, torch.float32)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    @classmethod
    def from_float(cls, mod: Any) -> _Cell:
        """The dynamic cell of a cell of torch with a `qconfig`; raises TypeError if it has none."""
        dtype = dtype_of(mod)
        cell = cls(mod.input_size, mod.hidden_size, mod.bias, dtype, **cls._more(mod))
        cell.ih.store(mod, mod.weight_ih, mod.bias_ih, dtype)
        cell.hh.store(mod, mod.weight_hh, mod.bias_hh, dtype)
        return cell

    @classmethod
    def _more(cls, mod: Any) -> dict[str, Any]:
        return {}


class LSTMCell(_Cell):
    """`torch.nn.LSTMCell` with quantized weights (`qcore.affine.functional.recurrent.lstm_cell`).

    Args:
        input_size, hidden_size: the sizes of input and state.
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
        """The hidden and the cell state after one step; `state` has the states before it, None is zeros."""
        check_pair(self, state)
        of_input = self.ih.product(input)
        hidden, cell = (self._state(input, one) for one in (state or (None, None)))
        hidden, cell = recurrent.lstm_cell(Names, of_input + self.hh.product(hidden), cell)
        return converted(hidden, input.dtype), converted(cell, input.dtype)


class GRUCell(_Cell):
    """`torch.nn.GRUCell` with quantized weights (`qcore.affine.functional.recurrent.gru_cell`), as `LSTMCell`.

    Example:
        >>> GRUCell(2, 3)(torch.ones(1, 2))
        tensor([[0., 0., 0.]])
    """

    gates = 3

    def forward(self, input: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        """The hidden state after one step; `state` is the hidden state before it, None is zeros."""
        of_input = self.ih.product(input)
        hidden = self._state(input, state)
        return converted(recurrent.gru_cell(Names, of_input, self.hh.product(hidden), hidden), input.dtype)


class RNNCell(_Cell):
    """`torch.nn.RNNCell` with quantized weights (`qcore.affine.functional.recurrent.rnn_cell`), as `LSTMCell`.

    Args:
        nonlinearity: "tanh" or "relu".

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
        dtype: torch.dtype = torch.qint8,
        nonlinearity: str = "tanh",
    ) -> None:
        check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(input_size, hidden_size, bias, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        """The hidden state after one step; `state` is the hidden state before it, None is zeros."""
        sums = self.ih.product(input) + self.hh.product(self._state(input, state))
        return converted(recurrent.rnn_cell(Names, sums, self.nonlinearity), input.dtype)

    @classmethod
    def _more(cls, mod: Any) -> dict[str, Any]:
        return {"nonlinearity": mod.nonlinearity}


class _Recurrent(Unscripted, torch.nn.Module):
    """Layers of recurrent cells, in one or two directions.

    The input of each layer and direction is quantized once, by the range of all its steps; hidden states are quantized
    at each step.
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
        dtype: torch.dtype = torch.qint8,
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
            x: the rows of all sequences, ordered by step.
            sizes: for each step the number of sequences that have it; they are the first ones.
            states: tensors of shape (layers * directions, batch, hidden_size), or proj_size for hidden states.
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

    def flatten_parameters(self) -> None:
        """Does nothing; models call it for torch's layers, whose weights it puts together for cuDNN."""

    def _forward(self, input: Any, states: tuple[torch.Tensor, ...] | None, count: int) -> Any:
        packed = isinstance(input, PackedSequence)
        x, ranks = (input.data, (2,)) if packed else (input, (2, 3))
        if not isinstance(x, torch.Tensor) or x.ndim not in ranks or x.shape[-1] != self.input_size:
            shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            allowed = f"a tensor of shape (steps, batch, {self.input_size}), or a PackedSequence of such rows"
            raise ValueError(f"{layer_name(self)}: input is {shape}; allowed is {allowed}")
        checked(self, check_dtype, Names.dtype(x), "input")
        if packed:
            return self._packed(input, states, count)
        batched = x.ndim == 3
        x = (x.transpose(0, 1) if self.batch_first else x) if batched else x.unsqueeze(1)
        if states is not None and not batched:
            states = tuple(one.unsqueeze(1) for one in states)
        steps, batch = x.shape[:2]
        rows = converted(x, torch.float32).flatten(0, 1)
        y, last = self._run(rows, [batch] * steps, self._states(x, batch, states, count))
        y, last = converted(y, x.dtype).unflatten(0, (steps, batch)), [converted(one, x.dtype) for one in last]
        if not batched:
            return y.squeeze(1), [one.squeeze(1) for one in last]
        return (y.transpose(0, 1) if self.batch_first else y), last

    def _packed(self, input: PackedSequence, states: tuple[torch.Tensor, ...] | None, count: int) -> Any:
        """The layer's result for sequences of several lengths (`torch.nn.utils.rnn.pack_padded_sequence`)."""
        sizes = input.batch_sizes.tolist()
        made = self._states(input.data, sizes[0], states, count)
        if input.sorted_indices is not None:
            made = [one.index_select(1, input.sorted_indices) for one in made]
        y, last = self._run(converted(input.data, torch.float32), sizes, made)
        y, last = converted(y, input.data.dtype), [converted(one, input.data.dtype) for one in last]
        if input.unsorted_indices is not None:
            last = [one.index_select(1, input.unsorted_indices) for one in last]
        return PackedSequence(y, input.batch_sizes, input.sorted_indices, input.unsorted_indices), last

    def _states(
        self, x: torch.Tensor, batch: int, states: tuple[torch.Tensor, ...] | None, count: int
    ) -> list[torch.Tensor]:
        """The initial states in float32; zeros where none are given."""
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[:count]
        shapes = [(len(self.ih), batch, size) for size in sizes]
        if states is None:
            return [x.new_zeros(shape, dtype=torch.float32) for shape in shapes]
        for one, shape in zip(states, shapes, strict=True):
            check_state(self, "state", one, shape)
        return [converted(one, torch.float32) for one in states]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, {self.bidirectional=}"

    @classmethod
    def from_float(cls, mod: Any) -> _Recurrent:
        """The dynamic layer of a layer of torch with a `qconfig`; raises TypeError if it has none."""
        dtype = dtype_of(mod)
        settings = mod.num_layers, mod.bias, mod.batch_first, mod.dropout, mod.bidirectional
        made = cls(mod.input_size, mod.hidden_size, *settings, dtype, mod.proj_size)
        for number, weights in enumerate(mod.all_weights):
            biases = weights[2:4] if mod.bias else (None, None)
            if mod.proj_size:
                made.hr[number].store(mod, weights[-1], None, dtype)  # type: ignore[operator]
            products: Any = made.ih[number], made.hh[number]
            for product, weight, bias in zip(products, weights[:2], biases, strict=True):
                product.store(mod, weight, bias, dtype)
        return made.train(mod.training)


class LSTM(_Recurrent):
    """`torch.nn.LSTM` with quantized weights (`qcore.affine.functional.recurrent.lstm_cell`).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional: as for torch's.
        dtype: of the weights: torch.qint8, an `AffineInteger`, or torch.float16.
        proj_size: hidden states are projected to this size, by a third product; 0 for none.

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
    """`torch.nn.GRU` with quantized weights (`qcore.affine.functional.recurrent.gru_cell`), as `LSTM`.

    Args:
        proj_size: 0.

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
