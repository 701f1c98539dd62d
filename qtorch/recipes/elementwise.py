"""torch's functions of which a recipe has the formats of the steps: softmax, norms, activations."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch

from qtorch._conversion import HALVES
from qtorch.arithmetic.composed import Tensors
from qtorch.recipes.functions import UnknownCallError


def _check(x: torch.Tensor, inplace: bool = False, out: Any = None) -> None:
    if inplace or out is not None:
        raise UnknownCallError("it writes its result into a tensor; without inplace and out it is lowered")
    if x.dtype is not torch.float32 and x.dtype not in HALVES:
        raise UnknownCallError(f"its numbers are of {x.dtype}; those of float32, bfloat16 and float16 are lowered")


def _softmax(
    steps: Tensors, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None, out: Any = None
) -> Any:
    x = input if dtype is None else input.to(dtype)
    _check(x, out=out)
    if dim is None:
        raise UnknownCallError("it has no dim")
    return steps(x, axis=dim)


def _activation(steps: Tensors, input: Any, inplace: bool = False, *, out: Any = None, **options: Any) -> Any:
    _check(input, inplace, out)
    return steps(input, **options)


def _in_place(steps: Tensors, input: Any, *args: Any, **options: Any) -> Any:
    _check(input, True)


def _layer_norm(
    steps: Tensors, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    return _normalized(steps, input, normalized_shape, (weight, bias), eps)


def _rms_norm(steps: Tensors, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _normalized(steps, input, normalized_shape, (weight,), eps)


def _normalized(steps: Tensors, x: Any, shape: Any, parameters: tuple[Any, ...], eps: float) -> Any:
    """A norm over the last axes, as rows."""
    _check(x)
    size = prod(shape)
    rows = x.reshape(*x.shape[: x.dim() - len(shape)], size)
    given = (one if one is None else one.reshape(size) for one in parameters)
    return steps(rows, *given, eps=eps).reshape(x.shape)


class SteppedFunction(NamedTuple):
    """A function of torch.

    Attributes:
        kind: its name in a recipe.
        function: (steps, *arguments) -> the result; raises an `UnknownCallError` for calls that it does not cover.
    """

    kind: str
    function: Callable[..., Any]


def _activations(kind: str, *names: str) -> dict[str, SteppedFunction]:
    """An activation by its names; each is in place with a "_" behind it."""
    found = {name: SteppedFunction(kind, _activation) for name in names}
    return found | {f"{name}_": SteppedFunction(kind, _in_place) for name in names}


CALLS = {
    **dict.fromkeys(("softmax", "special_softmax"), SteppedFunction("softmax", _softmax)),
    **_activations("exp", "exp", "special_exp"),
    **_activations("tanh", "tanh"),
    **_activations("sigmoid", "sigmoid", "special_expit"),
    **_activations("silu", "silu"),
    **_activations("gelu", "gelu"),
    "layer_norm": SteppedFunction("layer_norm", _layer_norm),
    "rms_norm": SteppedFunction("rms_norm", _rms_norm),
}
# Functions of torch that compute such a function inside, where a recipe does not reach it.
HOLDING = {
    **dict.fromkeys(("scaled_dot_product_attention", "flex_attention"), ("softmax",)),
    **dict.fromkeys(("lstm", "lstm_cell", "gru", "gru_cell"), ("sigmoid", "tanh")),
    **dict.fromkeys(("rnn_tanh", "rnn_tanh_cell"), ("tanh",)),
    "glu": ("sigmoid",),
}
