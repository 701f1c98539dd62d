"""torch's functions of quantized tensors that need no new scale: `torch.nn.MaxPool2d` takes a QTensor.

`FUNCTIONS` is the table of these functions; names that torch.Tensor has are methods too. Functions that only move
integers are torch's own functions. Pools, interpolation and clamps keep the input's parameters; the parameters of
sigmoids, tanh and softmax follow from their range; joined tensors have the parameters of the first tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from qcore.affine import functional
from qcore.affine.quantized import moving
from qcore.affine.rows import OPERATIONS
from qtorch._affine import elementwise, moves, pools, resize
from qtorch._affine.activations import hardsigmoid, leaky_relu
from qtorch._affine.elementwise import clamp, hardtanh, relu, relu6, threshold  # noqa: F401  # some for older pickles
from qtorch._affine.moves import pad
from qtorch._affine.pools import (  # noqa: F401  # where older pickles have them
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
)
from qtorch._affine.resize import interpolate, upsample_bilinear, upsample_nearest  # noqa: F401  # the same
from qtorch._affine.results import written
from qtorch._running import running_layer

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor


def _interpolate_module(input: QTensor, *others: Any, recompute_scale_factor: Any = None, **settings: Any) -> QTensor:
    """`interpolate` with the arguments that `torch.nn.Upsample` passes."""
    if recompute_scale_factor or settings.pop("antialias", False):
        raise ValueError("interpolate of a QTensor with recompute_scale_factor or antialias; allowed is neither")
    return interpolate(input, *others, **settings)


def without_integers(operation: str) -> str:
    """The message about a float operation, such as x + y, of a quantized tensor."""
    return (
        f"{running_layer()}{operation} of a QTensor; allowed are its methods, the methods of FloatFunctional in the "
        "place of x + y, x * y and x @ y, layers of qtorch.nn.quantized, and floats: insert a DeQuantStub before it"
    )


def _cat(tensors: Any, dim: int = 0) -> QTensor:
    """`torch.cat`; the result has the parameters of the first tensor, as in torch."""
    return functional.cat(tensors, dim)


def _stack(tensors: Any, dim: int = 0) -> QTensor:
    """`torch.stack`; the result has the parameters of the first tensor, as in torch."""
    return functional.stack(tensors, dim)


def _einsum(equation: str, *operands: Any) -> QTensor:
    """`torch.einsum` of one tensor that only permutes dimensions; sums and products need a new scale."""
    left, _, right = equation.replace(" ", "").partition("->")
    if len(operands) != 1 or not left.isalpha() or sorted(left) != sorted(right) or len(set(left)) < len(left):
        raise TypeError(without_integers("einsum"))
    return operands[0].permute(*map(left.index, right))


def _clamp(input: QTensor, min: float | None = None, max: float | None = None) -> QTensor:
    """`torch.clamp`."""
    return clamp(input, min, max)


def _clamp_min(input: QTensor, min: float) -> QTensor:
    """`torch.clamp_min`."""
    return clamp(input, min)


def _clamp_max(input: QTensor, max: float) -> QTensor:
    """`torch.clamp_max`."""
    return clamp(input, None, max)


def _softmax(input: QTensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> QTensor:
    """`torch.softmax`; the result has parameters for numbers from 0 to 1."""
    if dtype is not None:
        raise ValueError(f"softmax of a QTensor with dtype={dtype}; allowed is None")
    if dim is None:
        raise TypeError("softmax of a QTensor with dim=None; allowed is an int")
    return functional.softmax(input, dim)


def _in_place(function: Callable[..., QTensor]) -> Callable[..., QTensor]:
    """A function that writes its result over the input."""

    def method(input: QTensor, *arguments: object, **settings: object) -> QTensor:
        return written(input, function(input, *arguments, **settings), True)

    return method


# Their results have the input's parameters, so that they may be written over it.
_KEEPING: dict[str, Callable[..., Any]] = {
    **{name: getattr(elementwise, name) for name in elementwise.__all__ if name != "relu"},  # a method of QTensor
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "leaky_relu": leaky_relu,
    "masked_fill": functional.masked_fill,
}

# torch's functions of these names, for QTensors; a name that torch.Tensor has is a method of QTensor as well.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: moves.move(name) for name in moves.NAMES},
    # Layers in integers give images with channels last, of which a view may need a copy that floats do not need.
    "view": moving("view", torch.Tensor.reshape),
    **{name: getattr(room, name) for room in (pools, resize) for name in room.__all__},
    **{name: row.law for name, row in OPERATIONS.items() if row.limits},  # which need no parameters
    **_KEEPING,
    **{f"{name}_": _in_place(function) for name, function in _KEEPING.items()},
    "pad": pad,
    "interpolate": _interpolate_module,
    "hardsigmoid": hardsigmoid,
    "softmax": _softmax,
    torch.nn.functional.threshold.__name__: elementwise.threshold,  # "_threshold", in 2.13
}
# Of several tensors, whose first argument is a list or text.
JOINS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "stack": _stack,
    "einsum": _einsum,
}
# Functions that files which need not be exact have of the numbers. True and False say that the parameters are those of
# numbers from -1 or from 0 to 1; None that they are the input's.
OF_NUMBERS: dict[str, bool | None] = {
    **dict.fromkeys((*pools.__all__, "interpolate", "mean")),
    **{name: row.limits.startswith("from -1") for name, row in OPERATIONS.items() if row.limits},
}
