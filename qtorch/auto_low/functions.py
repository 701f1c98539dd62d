"""torch's functions that multiply, written by products of two matrices and by convolutions.

A `TorchFunctionMode` finds the functions by their names. Each law here takes a `Multiplier`, which computes the
products, or only lists them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from qcore.recipes.recipe import CONV, LINEAR, MATMUL, OUTPUT, SCORES
from qtorch.linalg.attention import attention


class Multiplier(Protocol):
    """What computes the products of a function."""

    def is_weight(self, x: torch.Tensor) -> bool:
        """True if a tensor is a parameter, or was computed from parameters only."""
        ...

    def rows(self, kind: str, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """a @ b.mT + bias, where b has two dimensions or a's leading ones."""
        ...

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any
    ) -> torch.Tensor:
        """A convolution with stride, padding, dilation and groups, as torch's functions take them."""
        ...


class UnknownCallError(Exception):
    """Raised by laws for calls that they do not cover; its text says why."""


def _rows(m: Multiplier, kind: str, a: torch.Tensor, b: torch.Tensor, bias: Any = None) -> torch.Tensor:
    """`Multiplier.rows` of vectors too, and of leading dimensions that broadcast."""
    if a.dim() == 1:
        return _rows(m, kind, a[None], b, bias).squeeze(-2)
    if b.dim() == 1:
        return _rows(m, kind, a, b[None], bias).squeeze(-1)
    if b.dim() > 2 and a.shape[:-2] != b.shape[:-2]:
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = a.expand(*lead, *a.shape[-2:]), b.expand(*lead, *b.shape[-2:])
    return m.rows(kind, a, b, bias)


def _linear(m: Multiplier, input: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    return _rows(m, LINEAR, input, weight, bias)


def _matmul(m: Multiplier, input: Any, other: Any, bias: Any = None, kind: str = "") -> torch.Tensor:
    """input @ other. The weight is the second operand of the product that is computed, as it is in linear layers."""
    first, second = m.is_weight(input), m.is_weight(other)
    kind = kind or (LINEAR if first != second else MATMUL)
    if first and not second and bias is None and input.dim() > 1:
        if other.dim() == 1:
            return _rows(m, kind, other, input)
        return _rows(m, kind, other.mT, input).mT
    return _rows(m, kind, input, other if other.dim() == 1 else other.mT, bias)


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


def _inner(m: Multiplier, input: Any, other: Any) -> torch.Tensor:
    if other.dim() > 2:
        raise UnknownCallError("inner of more than two dimensions")
    return _matmul(m, input, other if other.dim() == 1 else other.mT)


def _einsum(m: Multiplier, equation: Any, *operands: Any) -> torch.Tensor:
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    if not isinstance(equation, str) or len(tensors) != 2 or "->" not in equation or "." in equation:
        raise UnknownCallError("einsum of other than two operands, without '->', or with '...'")
    inputs, output = equation.replace(" ", "").split("->")
    first, second = inputs.split(",")
    return _contract(m, tensors[0], tensors[1], list(first), list(second), list(output))


def _contract(m: Multiplier, a: Any, b: Any, of_a: list[str], of_b: list[str], of_y: list[str]) -> torch.Tensor:
    """The sum over all indices that the result has not."""
    if len(set(of_a)) < len(of_a) or len(set(of_b)) < len(of_b):
        raise UnknownCallError("einsum with a diagonal")
    if any(index not in of_y and not (index in of_a and index in of_b) for index in (*of_a, *of_b)):
        raise UnknownCallError("einsum with a sum over one operand")
    first, second = m.is_weight(a), m.is_weight(b)
    if first and not second:  # the weight is the second operand
        a, b, of_a, of_b = b, a, of_b, of_a
    size = dict(zip((*of_a, *of_b), (*a.shape, *b.shape), strict=True))
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
    y = _rows(m, LINEAR if first != second else MATMUL, a, b)
    y = y.reshape(sizes["batch"] + sizes["rows"] + sizes["columns"])
    order = batch + rows + columns
    return y.permute([order.index(index) for index in of_y])


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
        return _rows(m, SCORES, query, key)

    def output(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return _rows(m, OUTPUT, weights, value.mT)

    return attention(query, key, value, attn_mask, is_causal, scale, scores, output, dropout_p)


LAWS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": _linear,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "inner": _inner,
    "__rmatmul__": _reflected_matmul,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "mv", "dot", "vdot", "linalg_matmul"), _matmul),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _addmm),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
}

# torch's functions that multiply, and of which there is no law: whose weights, and what they do with an input.
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CELLS = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_WITHOUT_WEIGHT = ("chain_matmul", "linalg_multi_dot", "cdist", "addbmm", "linalg_vecdot", "_grouped_mm", "_scaled_mm")
_LOW_LEVEL = ("mm.default", "bmm.default", "addmm.default", "baddbmm.default", "linear.default", "convolution.default")
LEFT = {
    *_RECURRENT,
    *_CELLS,
    *_TRANSPOSED,
    *_WITHOUT_WEIGHT,
    *_LOW_LEVEL,
    "bilinear",
    "linear_cross_entropy",
    "flex_attention",
}
ATTENTIONS = ("scaled_dot_product_attention", "flex_attention")
NO_LAW = "qtorch.linalg has no such product"


def left_kind(name: str) -> str:
    """The kind of product that a function of `LEFT` is, by which entries of recipes match it."""
    if name in _WITHOUT_WEIGHT:
        return MATMUL
    return CONV if name in _TRANSPOSED or name == "convolution.default" else LINEAR


def left_work(name: str, args: Sequence[Any]) -> int | None:
    """The multiply-adds of a function of `LEFT`; None if they are not known."""
    if name in _TRANSPOSED:
        return args[0].numel() * args[1][0].numel()
    if name in _RECURRENT or name in _CELLS:
        weights = args[2] if name in _RECURRENT else args[2:4]
        if isinstance(weights, list | tuple) and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            return args[0].numel() // args[0].shape[-1] * sum(w.numel() for w in weights if w.dim() == 2)
    return None


def _open(function: Any) -> Any:
    """A Python function of torch that holds products, which runs as it is where a mode would get it as a whole."""
    global_names = {**function.__globals__, "has_torch_function": lambda tensors: False}
    made = types.FunctionType(
        function.__code__, global_names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


OPENED: dict[str, Any] = {"multi_head_attention_forward": _open(F.multi_head_attention_forward)}

# Operators that run functions of a program, which torch.compile traces without the modes that are on. Those of loops
# must be as torch made them, so they cannot be wrapped.
BODIES = ("tag_activation_checkpoint", "wrap_activation_checkpoint", "cond", "map_impl")
LOOPS = ("scan", "associative_scan", "while_loop")
