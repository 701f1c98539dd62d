"""torch's functions that multiply, written by products of two matrices and by convolutions.

A `TorchFunctionMode` finds the functions by their names. Each law here takes a `Multiplier`, which computes the
products, or only lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F

from qcore.recipes.recipe import CONV, LINEAR, MATMUL, OUTPUT, SCORES
from qtorch._conversion import HALVES
from qtorch._torch_internals import ADDMM_ACTIVATION, CONVOLUTION, GROUPED_MM, SCALED_MM, opened
from qtorch.linalg.attention import attention

Linear = Callable[..., torch.Tensor]  # of an input, a weight, and a bias or None
State = tuple[torch.Tensor, ...]  # the result of a step, and the cell of an LSTM
# (the input's part of the gates, the weight's linear layer of the result before, the state before) -> the state after
Step = Callable[[torch.Tensor, torch.Tensor, State], State]


class Multiplier(Protocol):
    """An object that computes the products of a function, or lists them."""

    def is_weight(self, x: torch.Tensor) -> bool:
        """True if a tensor is a parameter, or was computed from parameters only."""
        ...

    def rows(self, kind: str, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """a @ b.mT + bias, where b has two dimensions, or a's leading dimensions."""
        ...

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any, zeros: int = 1
    ) -> torch.Tensor:
        """A convolution with stride, padding, dilation and groups, as torch's functions take them.

        Of `zeros` numbers of x all but one are zeros that do not count as work.
        """
        ...


class UnknownCallError(Exception):
    """Raised by laws for calls that they do not cover; its text is the reason."""


def _product(m: Multiplier, kind: str, a: torch.Tensor, b: torch.Tensor, bias: Any = None) -> torch.Tensor:
    """`Multiplier.rows` of vectors too, and of leading dimensions that broadcast."""
    if a.dim() == b.dim() == 1:
        return m.rows(kind, a[None], b[None], bias if bias is None else bias.reshape(1))[0, 0]
    if a.dim() == 1:
        return _product(m, kind, a[None], b, bias).squeeze(-2)
    if b.dim() == 1:
        return _product(m, kind, a, b[None], bias).squeeze(-1)
    if b.dim() > 2 and a.shape[:-2] != b.shape[:-2]:
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = a.expand(*lead, *a.shape[-2:]), b.expand(*lead, *b.shape[-2:])
    return m.rows(kind, a, b, bias)


def _linear(m: Multiplier, input: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    return _product(m, LINEAR, input, weight, bias)


def _matmul(m: Multiplier, input: Any, other: Any, bias: Any = None, kind: str = "") -> torch.Tensor:
    """input @ other. A weight becomes the second operand of the computed product, as in linear layers."""
    first, second = m.is_weight(input), m.is_weight(other)
    kind = kind or (LINEAR if first != second else MATMUL)
    if first and not second and bias is None and input.dim() > 1:
        if other.dim() == 1:
            return _product(m, kind, other, input)
        return _product(m, kind, other.mT, input).mT
    return _product(m, kind, input, other if other.dim() == 1 else other.mT, bias)


def _reflected_matmul(m: Multiplier, other: Any, input: Any) -> torch.Tensor:
    return _matmul(m, input, other)


def _addmm(m: Multiplier, input: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1, kind: str = "") -> Any:
    is_bias = (
        isinstance(input, torch.Tensor) and input.dim() == 1 and second.dim() == 2 and input.shape == second.shape[1:]
    )
    if is_bias and beta == 1 and alpha == 1:
        return _matmul(m, first, second, input, kind)
    y = _matmul(m, first, second, None, kind)
    y = y if alpha == 1 else y * alpha
    return y + (input if beta == 1 else input * beta)


def _sparse(m: Multiplier, mat1: Any, mat2: Any, reduce: str = "sum") -> torch.Tensor:
    """`torch.sparse.mm`, whose sums may be averages or maxima instead."""
    return _matmul(m, mat1, mat2)


def _inner(m: Multiplier, input: Any, other: Any) -> torch.Tensor:
    if other.dim() > 2:
        raise UnknownCallError("inner of more than two dimensions")
    return _matmul(m, input, other if other.dim() == 1 else other.mT)


def _einsum(m: Multiplier, equation: Any, *operands: Any) -> torch.Tensor:
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    if not isinstance(equation, str):
        raise UnknownCallError("einsum with lists of numbers in the place of a text")
    inputs, output = _indices(equation, [x.dim() for x in tensors])
    if len(tensors) < 2:
        raise UnknownCallError("einsum of one operand")
    y, of_y = tensors[0], inputs[0]
    # From the left, two operands at a time: torch's own order depends on opt_einsum, whether it is installed or not.
    for number in range(1, len(tensors)):
        later = {index for each in inputs[number + 1 :] for index in each}
        last = number == len(tensors) - 1
        both = dict.fromkeys((*of_y, *inputs[number]))
        wanted = output if last else [index for index in both if index in output or index in later]
        y, of_y = _contract(m, y, tensors[number], of_y, inputs[number], wanted), wanted
    return y


def _indices(equation: str, dims: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The indices of each operand and of the result, with a name for each dimension that "..." stands for."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    most = max([dim - len(term.replace("...", "")) for term, dim in zip(terms, dims, strict=True)])
    names = [f"...{place}" for place in range(most)]

    def of(term: str, count: int) -> list[str]:
        before, dots, after = term.partition("...")
        return [*before, *(names[most - count :] if dots else ()), *after]

    inputs = [of(term, dim - len(term.replace("...", ""))) for term, dim in zip(terms, dims, strict=True)]
    if arrow:
        return inputs, of(right, most)
    letters = [index for term in inputs for index in term]
    once = [index for index in sorted(set(letters)) if letters.count(index) == 1 and index not in names]
    return inputs, [*names, *once]


def _contract(m: Multiplier, a: Any, b: Any, of_a: list[str], of_b: list[str], of_y: list[str]) -> torch.Tensor:
    """The sum over all indices that the result has not."""
    if len(set(of_a)) < len(of_a) or len(set(of_b)) < len(of_b):
        raise UnknownCallError("einsum with a diagonal")
    a, of_a = _summed(a, of_a, (*of_b, *of_y))
    b, of_b = _summed(b, of_b, (*of_a, *of_y))
    first, second = m.is_weight(a), m.is_weight(b)
    if first and not second:  # the weight is the second operand
        a, b, of_a, of_b = b, a, of_b, of_a
    size: dict[str, int] = {}
    for index, length in zip((*of_a, *of_b), (*a.shape, *b.shape), strict=True):
        size[index] = length if size.get(index, 1) == 1 else size[index]
    a = a.expand([size[index] for index in of_a])  # dimensions of "..." broadcast
    b = b.expand([size[index] for index in of_b])
    batch = [index for index in of_a if index in of_b and index in of_y]
    summed = [index for index in of_a if index in of_b and index not in of_y]
    rows = [index for index in of_a if index not in of_b]
    columns = [index for index in of_b if index not in of_a]
    sizes = {
        name: [size[index] for index in part]
        for name, part in {"batch": batch, "summed": summed, "rows": rows, "columns": columns}.items()
    }
    a = a.permute([of_a.index(index) for index in (*batch, *rows, *summed)])
    b = b.permute([of_b.index(index) for index in (*batch, *columns, *summed)])
    terms = prod(sizes["summed"])
    if batch:
        a = a.reshape(prod(sizes["batch"]), prod(sizes["rows"]), terms)
        b = b.reshape(prod(sizes["batch"]), prod(sizes["columns"]), terms)
    else:  # rows keep their dimensions, as a linear layer's do
        a, b = a.reshape(*sizes["rows"], terms), b.reshape(prod(sizes["columns"]), terms)
    y = _product(m, LINEAR if first != second else MATMUL, a, b)
    y = y.reshape(sizes["batch"] + sizes["rows"] + sizes["columns"])
    order = batch + rows + columns
    return y.permute([order.index(index) for index in of_y])


def _summed(x: Any, of_x: list[str], kept: Sequence[str]) -> tuple[Any, list[str]]:
    """An operand and its indices, summed over the indices that are only in this operand."""
    alone = [axis for axis, index in enumerate(of_x) if index not in kept]
    return (x.sum(alone), [index for index in of_x if index in kept]) if alone else (x, of_x)


def _tensordot(m: Multiplier, a: Any, b: Any, dims: Any = 2, out: Any = None) -> torch.Tensor:
    if isinstance(dims, int):
        dims = [list(range(a.dim() - dims, a.dim())), list(range(dims))]
    if out is not None or isinstance(dims, torch.Tensor):
        raise UnknownCallError("tensordot with out, or dims in a tensor")
    of_a = [f"a{axis}" for axis in range(a.dim())]
    of_b = [f"b{axis}" for axis in range(b.dim())]
    for one, other in zip(*dims, strict=True):
        of_b[other] = of_a[one]
    of_y = [index for index in of_a if index not in of_b] + [index for index in of_b if index not in of_a]
    return _contract(m, a, b, of_a, of_b, of_y)


def _convolution(
    m: Multiplier,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    return m.convolve(input, weight, bias, stride, padding, dilation, groups)


def _transposed_convolution(
    m: Multiplier,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> torch.Tensor:
    """The convolution of the input with zeros between its numbers and a mirrored weight."""
    dims = weight.dim() - 2
    if input.dim() == dims + 1:  # an example without a batch
        args = bias, stride, padding, output_padding, groups, dilation
        return _transposed_convolution(m, input[None], weight, *args)[0]
    steps, pads, ends, gaps = (_sizes(x, dims) for x in (stride, padding, output_padding, dilation))
    zeros, edges = 1, []
    for axis in range(dims):
        step, reach = steps[axis], gaps[axis] * (weight.shape[axis + 2] - 1)
        if step > 1:
            zeros *= step
            apart = F.pad(input.unsqueeze(axis + 3), (0, 0) * (dims - 1 - axis) + (0, step - 1))
            input = apart.flatten(axis + 2, axis + 3)
        # Behind the last number there are step - 1 zeros already.
        edges = [reach - pads[axis], reach - pads[axis] + ends[axis] - (step - 1), *edges]
    input = F.pad(input, edges)  # which takes away where a size is negative
    inputs, outputs, *taps = weight.shape
    mirrored = weight.flip(list(range(2, dims + 2))).reshape(groups, inputs // groups, outputs, *taps)
    mirrored = mirrored.transpose(1, 2).reshape(groups * outputs, inputs // groups, *taps)
    return m.convolve(input, mirrored, bias, 1, 0, gaps, groups, zeros=zeros)


def _sizes(value: Any, dims: int) -> tuple[int, ...]:
    """One size for each spatial dimension."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _bilinear(m: Multiplier, input1: Any, input2: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    """A linear layer of all products of a number of one input with a number of the other input."""
    pairs = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
    return _product(m, LINEAR, pairs, weight.flatten(1), bias)


def _chain(m: Multiplier, *matrices: Any) -> torch.Tensor:
    """A product of many matrices, in the order with the fewest multiply-adds."""
    given = matrices[0] if len(matrices) == 1 and isinstance(matrices[0], list | tuple) else matrices
    parts = list(given)
    parts[0] = parts[0][None] if (is_row := parts[0].dim() == 1) else parts[0]
    parts[-1] = parts[-1][:, None] if (is_column := parts[-1].dim() == 1) else parts[-1]
    sizes = [len(parts[0]), *(part.shape[1] for part in parts)]
    # The least work, the tree of products, for each run of matrices.
    best: dict[tuple[int, int], tuple[int, Any]] = {(i, i + 1): (0, i) for i in range(len(parts))}
    for length in range(2, len(parts) + 1):
        for first in range(len(parts) - length + 1):
            last = first + length
            ways = []
            for middle in range(first + 1, last):
                left, right = best[first, middle], best[middle, last]
                work = left[0] + right[0] + sizes[first] * sizes[middle] * sizes[last]
                ways.append((work, middle, (left[1], right[1])))
            best[first, last] = min(ways)[::2]

    def multiply(tree: Any) -> Any:
        return parts[tree] if isinstance(tree, int) else _matmul(m, multiply(tree[0]), multiply(tree[1]))

    y = multiply(best[0, len(parts)][1])
    y = y.squeeze(-1) if is_column else y
    return y.squeeze(0) if is_row else y


def _addbmm(m: Multiplier, input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """One product, whose sums run over the batch as well."""
    first, second = batch1.transpose(0, 1).flatten(1), batch2.flatten(0, 1)
    return _addmm(m, input, first, second, beta=beta, alpha=alpha)


def _grouped(m: Multiplier, mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """A product with a weight for each group of rows: each weight multiplies all rows, other groups' being zeros."""
    if mat_a.dim() != 2 or mat_b.dim() != 3 or offs is None or bias is not None or out_dtype is not None:
        raise UnknownCallError("a grouped product of other than groups of rows and a weight for each, or with a bias")
    place = torch.arange(len(mat_a), device=mat_a.device)
    group = torch.searchsorted(offs.to(torch.int64), place, right=True)
    others = group != torch.arange(len(mat_b), device=mat_a.device)[:, None]
    parts = mat_a.expand(len(mat_b), -1, -1).masked_fill(others[..., None], 0)
    y = _product(m, LINEAR, parts, mat_b.mT)
    return y[group.clamp_max(len(mat_b) - 1), place]


def _vecdot(m: Multiplier, x: Any, y: Any, *, dim: int = -1) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    x, y = x.movedim(dim, -1), y.movedim(dim, -1)
    return _product(m, MATMUL, x.unsqueeze(-2), y.unsqueeze(-2)).squeeze(-1).squeeze(-1)


def _attention(
    m: Multiplier,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (x.expand(*lead, *x.shape[-2:]) for x in (query, key, value))

    def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return _product(m, SCORES, query, key)

    def output(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return _product(m, OUTPUT, weights, value.mT)

    return attention(query, key, value, attn_mask, is_causal, scale, scores, output, dropout_p)


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
    """`torch.lstm_cell`, and the functions of the other cells: one step."""
    state: Any = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    found: Any = step(linear(input, w_ih, b_ih), linear(state[0], w_hh, b_hh), state)
    return found if len(found) > 1 else found[0]


def _layer(step: Step, linear: Linear, *arguments: Any) -> tuple[torch.Tensor, ...]:
    """`torch.lstm`, and the functions of other layers: (steps, batch, features), batches first, or packed sequences.

    The first product of a layer multiplies the inputs of all steps. Each step then multiplies the result before it.
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
            found, state = _run_layer(step, linear, rows, counts, given, own, has_biases, way == 1)
            results.append(found)
            last.append(state)
        rows = torch.cat(results, -1)
    y = rows if is_packed else rows.reshape(*shape, -1)
    y = y.transpose(0, 1) if is_batch_first else y
    return y, *(torch.stack(parts) for parts in zip(*last, strict=True))


def _run_layer(
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

    `rows` are the inputs of all steps, one after the other; `counts` are the numbers of sequences with each step;
    longer sequences come first. `weights` are the weights of the input and of the result, their biases, and an LSTM's
    projection.
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


def _recurrent(law: Any, step: Any, m: Multiplier, *args: Any) -> Any:
    return law(step, partial(m.rows, LINEAR), *args)


class Function(NamedTuple):
    """A function of torch that multiplies.

    Attributes:
        law: computes it by a `Multiplier`; None if `qtorch.linalg` has no such product.
        kinds: of its products, by which entries of recipes match it; none if one of the operands may be a weight, whose
            product is a layer's.
        first: the place of the first of its two operands among the arguments.
        weight: the place of the argument that is multiplied by, where that is a layer's weight.
        right: 0 or 1, the operand that is a matrix of (inputs, outputs); None where both are (rows, terms).
        is_transposed: True of transposed convolutions.
        several: True if each of its products has operands of its own.
        instead: the function that is lowered in the place of one that changes a tensor in place.
    """

    law: Callable[..., Any] | None
    kinds: tuple[str, ...] = ()
    first: int = 0
    weight: int | None = None
    right: int | None = None
    is_transposed: bool = False
    several: bool = False
    instead: str = ""


def _rows(names: str, *facts: Any, **more: Any) -> dict[str, Function]:
    return dict.fromkeys(names.split(), Function(*facts, **more))


# Functions of torch whose statements multiply by other functions: run as they are, a mode would get them as a whole.
_WHOLE = {one.__name__: opened(one) for one in (F.multi_head_attention_forward,)}
OPENED: dict[str, Any] = {name: one for name, one in _WHOLE.items() if one is not None}
SPARSE_SUMS = (torch.sparse.addmm.__name__, "sspaddmm")  # of a dense matrix and a product

PRODUCTS: dict[str, Function] = {
    "linear": Function(_linear, (LINEAR,), weight=1),
    **_rows("conv1d conv2d conv3d", _convolution, (CONV,), weight=1),
    **{
        f"conv_transpose{dims}d": Function(_transposed_convolution, (CONV,), weight=1, is_transposed=True)
        for dims in (1, 2, 3)
    },
    "bilinear": Function(_bilinear, (LINEAR,), weight=2),
    "scaled_dot_product_attention": Function(_attention, (SCORES, OUTPUT)),
    **_rows("matmul __matmul__ mm bmm linalg_matmul", _matmul, right=1),
    "__rmatmul__": Function(_reflected_matmul, right=0),
    **_rows("mv dot vdot", _matmul),
    **_rows(f"{torch.sparse.mm.__name__} smm hspmm", _sparse),
    **_rows(f"grouped_mm {GROUPED_MM} grouped_mm_fallback", _grouped, right=1),
    **_rows("addmm baddbmm", _addmm, first=1, right=1),
    **_rows("addmv sparse_sampled_addmm", _addmm, first=1),
    **dict.fromkeys(SPARSE_SUMS, Function(_addmm, first=1)),
    "addbmm": Function(_addbmm, first=1, right=1),
    **{f"{name}_": Function(_addmm, first=1, instead=name) for name in ("addmm", "addmv", "baddbmm")},
    "addbmm_": Function(_addbmm, first=1, instead="addbmm"),
    "tensordot": Function(_tensordot),
    "inner": Function(_inner),
    "linalg_vecdot": Function(_vecdot),
    "einsum": Function(_einsum, first=1),
    **_rows("linalg_multi_dot chain_matmul", _chain, (LINEAR, MATMUL), several=True),
    **{
        name: Function(partial(_recurrent, of, step), (LINEAR,), several=True)
        for kind, step in (("lstm", _lstm_step), ("gru", _gru_step), ("rnn_tanh", _tanh_step), ("rnn_relu", _relu_step))
        for name, of in ((kind, _layer), (f"{kind}_cell", _cell))
    },
    # Functions without a law here.
    **_rows(f"cdist {SCALED_MM} mm.default bmm.default", None, (MATMUL,)),
    "baddbmm.default": Function(None, (MATMUL,), first=1),
    **_rows("linear_cross_entropy linear.default", None, (LINEAR,)),
    **_rows(f"addmm.default {ADDMM_ACTIVATION}", None, (LINEAR,), first=1),
    **_rows(f"convolution.default convolution {CONVOLUTION} conv_tbc", None, (CONV,)),
    "flex_attention": Function(None, (SCORES, OUTPUT)),
    **{name: Function(None, (LINEAR,)) for name in _WHOLE if name not in OPENED},
}


def why_left(name: str, kwargs: Mapping[str, Any]) -> str:
    """Why a call stays in high precision whatever its tensors are; "" if there is no such reason."""
    if kwargs.get("out") is not None:
        return "it writes its result into out; without out it is lowered"
    function = PRODUCTS[name]
    if function.instead:
        return f"it changes a tensor in place; {function.instead} is lowered"
    return "qtorch.linalg has no such product" if function.law is None else ""


def why_refused(tensors: Sequence[torch.Tensor]) -> str:
    """Why a product of these tensors stays in high precision; "" if it can be lowered."""
    for x in tensors:
        if x.is_complex():
            return f"its numbers are complex ({x.dtype}); products of their real and imaginary parts are lowered"
        if (layout := _layout(x)) is not torch.strided:
            return f"it has a tensor of layout {layout}; products of dense tensors, as of x.to_dense(), are lowered"
    dtype = tensors[0].dtype
    if dtype is torch.float32 or dtype in HALVES:
        return ""
    return f"its numbers are of {dtype}; those of float32, bfloat16 and float16 are lowered"


def _layout(x: torch.Tensor) -> torch.layout:
    """The layout of a tensor; Dynamo does not tell it in backward passes, and has no layouts but these two."""
    if torch.compiler.is_dynamo_compiling():
        return torch.sparse_coo if x.is_sparse else torch.strided
    return x.layout


def stored_part(tensors: Sequence[torch.Tensor]) -> float:
    """The multiply-adds of real numbers for one of a dense product: fewer of sparse tensors, more of complex ones."""
    part = 4.0 if tensors[0].is_complex() else 1.0
    for x in tensors:
        if x.layout is not torch.strided and x.layout is not torch.jagged and x.numel():
            values = x.coalesce().values() if x.layout is torch.sparse_coo else x.values()
            part *= values.numel() / x.numel()
    return part


def left_work(name: str, shapes: Sequence[Any], y: Any) -> int | None:
    """The multiply-adds of a function without a law, from the shapes of its tensors; None if they are not known."""
    if not isinstance(y, torch.Tensor) or len(shapes) < 2:
        return None
    if name == "linear_cross_entropy":
        return prod(shapes[0]) * shapes[1][0]
    if name == "conv_tbc":
        return y.numel() * prod(shapes[1][:-1])
    if name.removeprefix("_").startswith("convolution"):
        return y.numel() * prod(shapes[1][1:])
    return y.numel() * shapes[PRODUCTS[name].first][-1]


# Operators that run functions of a program, which torch.compile traces without the modes that are on. Those of loops
# must be as torch made them, so they cannot be wrapped.
BODIES = ("tag_activation_checkpoint", "wrap_activation_checkpoint", "cond", "map_impl")
LOOPS = ("scan", "associative_scan", "while_loop")
