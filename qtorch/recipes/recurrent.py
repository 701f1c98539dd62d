"""torch's recurrent layers and cells, written by linear layers: loops over the steps of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

Linear = Callable[..., torch.Tensor]  # of an input, a weight, and a bias or None
State = tuple[torch.Tensor, ...]  # the result of a step, and the cell of an LSTM
# (the input's part of the gates, the weight's linear layer of the result before, the state before) -> the state after
Step = Callable[[torch.Tensor, torch.Tensor, State], State]


def _lstm_step(of_input: torch.Tensor, of_result: torch.Tensor, state: State) -> State:
    enter, forget, new, leave = (of_input + of_result).chunk(4, -1)
    cell = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru_step(of_input: torch.Tensor, of_result: torch.Tensor, state: State) -> State:
    (reset, update, new), (of_reset, of_update, of_new) = of_input.chunk(3, -1), of_result.chunk(3, -1)
    candidate = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    kept = (update + of_update).sigmoid()
    return ((state[0] - candidate) * kept + candidate,)


def _tanh_step(of_input: torch.Tensor, of_result: torch.Tensor, state: State) -> State:
    return ((of_input + of_result).tanh(),)


def _relu_step(of_input: torch.Tensor, of_result: torch.Tensor, state: State) -> State:
    return ((of_input + of_result).relu(),)


def _cell(step: Step, linear: Linear, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None):
    """`torch.lstm_cell` and the like: one step."""
    state: Any = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    found: Any = step(linear(input, w_ih, b_ih), linear(state[0], w_hh, b_hh), state)
    return found if len(found) > 1 else found[0]


def _layer(step: Step, linear: Linear, *arguments: Any) -> tuple[torch.Tensor, ...]:
    """`torch.lstm` and the like: of tensors (steps, batch, features), of batches first, or of packed sequences.

    The first product of a layer is that of all steps' inputs. Each step then multiplies the result before.
    """
    is_packed = isinstance(arguments[3], tuple | list)
    if is_packed:
        x, batch_sizes, hx, weights, has_biases, layers, dropout, training, both_ways = arguments
        counts, is_batch_first = batch_sizes.tolist(), False
    else:
        x, hx, weights, has_biases, layers, dropout, training, both_ways, is_batch_first = arguments
        x = x.transpose(0, 1) if is_batch_first else x
        counts = [x.shape[1]] * x.shape[0]
    first = hx if isinstance(hx, tuple | list) else (hx,)
    ways = 2 if both_ways else 1
    size = len(weights) // (layers * ways)
    shape, rows = x.shape[:-1], x.flatten(0, -2)
    last: list[State] = []
    for layer in range(layers):
        if layer > 0 and dropout > 0:
            rows = F.dropout(rows, dropout, training)
        results = []
        for way in range(ways):
            number = layer * ways + way
            own = weights[number * size : (number + 1) * size]
            given = tuple(part[number] for part in first)
            found, state = _run(step, linear, rows, counts, given, own, has_biases, way == 1)
            results.append(found)
            last.append(state)
        rows = torch.cat(results, -1)
    y = rows if is_packed else rows.reshape(*shape, -1)
    y = y.transpose(0, 1) if is_batch_first else y
    return y, *(torch.stack(parts) for parts in zip(*last, strict=True))


def _run(
    step: Step,
    linear: Linear,
    rows: torch.Tensor,
    counts: Sequence[int],
    state: State,
    weights: Sequence[Any],
    has_biases: bool,
    is_reversed: bool,
) -> tuple[torch.Tensor, State]:
    """One layer in one direction: the results of all steps, and the last state of each sequence.

    Args:
        step, linear: the layer.
        rows: the inputs of all steps, one after the other.
        counts: how many sequences have each step; longer sequences come first.
        state: before the first step of each sequence.
        weights: of the input and of the result, their biases, and what projects the result of an LSTM, if anything.
        has_biases: False if there are none.
        is_reversed: True if the last step comes first.
    """
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if has_biases else (None, None)
    projection = weights[-1] if len(weights) == (5 if has_biases else 3) else None
    gates = linear(rows, w_ih, b_ih).split(list(counts))
    results: list[Any] = [None] * len(counts)
    for place in reversed(range(len(counts))) if is_reversed else range(len(counts)):
        count = counts[place]
        now = tuple(part[:count] for part in state)
        found = step(gates[place], linear(now[0], w_hh, b_hh), now)
        if projection is not None:
            found = linear(found[0], projection, None), *found[1:]
        results[place] = found[0]
        # Sequences that have no such step keep their state: they have ended, or, in reverse, not begun.
        rest = tuple(part[count:] for part in state)
        state = tuple(torch.cat(pair) if len(pair[1]) else pair[0] for pair in zip(found, rest, strict=True))
    return torch.cat(results), state


RECURRENT: dict[str, tuple[Callable[..., Any], Step]] = {
    "lstm": (_layer, _lstm_step),
    "gru": (_layer, _gru_step),
    "rnn_tanh": (_layer, _tanh_step),
    "rnn_relu": (_layer, _relu_step),
    "lstm_cell": (_cell, _lstm_step),
    "gru_cell": (_cell, _gru_step),
    "rnn_tanh_cell": (_cell, _tanh_step),
    "rnn_relu_cell": (_cell, _relu_step),
}
