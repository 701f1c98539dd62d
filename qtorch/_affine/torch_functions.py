"""torch's functions of quantized tensors that need no new scale: `torch.nn.MaxPool2d` takes a QTensor.

`FUNCTIONS` is the table of these functions; names that torch.Tensor has are methods too. Functions that only move
integers are torch's own functions. Pools, interpolation and clamps keep the input's parameters; the parameters of
sigmoids, tanh and softmax follow from their range; joined tensors have the parameters of the first tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from qcore.affine import arithmetic
from qcore.affine.arithmetic.convolutions import pad_values
from qcore.affine.arithmetic.operands import check_operand, integer_of
from qcore.affine.quantized import moving
from qcore.affine.rows import OPERATIONS
from qcore.arguments import check_choice, check_flag, check_float, check_int, quoted
from qtorch._affine import pools
from qtorch._affine.activations import hardsigmoid, leaky_relu
from qtorch._affine.pools import (  # noqa: F401  # where older pickles have them
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
)
from qtorch._affine.results import written
from qtorch._namespace import reinterpreted
from qtorch._places import running_layer

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor


def interpolate(
    input: QTensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> QTensor:
    """The tensor in another size; the law is that of `qcore.affine.arithmetic.interpolate`.

    Args:
        input: of shape (batch, channels, height, width), or of volumes.
        size, scale_factor, mode, align_corners: as for `torch.nn.functional.interpolate`, with mode "nearest" or
            "bilinear".

    Returns:
        A QTensor of shape (batch, channels, *new sizes), with input's integers and parameters.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> interpolate(x, scale_factor=2).dequantize()
        tensor([[[[1., 1., 3., 3.],
                  [1., 1., 3., 3.]]]])
    """
    return arithmetic.interpolate(input, size, scale_factor, mode, align_corners)


upsample = interpolate


def upsample_bilinear(
    input: QTensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> QTensor:
    """The tensor in another size, with mode="bilinear", align_corners=True and other arguments of `interpolate`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_bilinear(x, (1, 3)).dequantize()
        tensor([[[[1., 2., 3.]]]])
    """
    return interpolate(input, size, scale_factor, "bilinear", True)


def upsample_nearest(
    input: QTensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> QTensor:
    """The tensor in another size, with mode="nearest" and other arguments of `interpolate`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_nearest(x, (1, 4)).dequantize()
        tensor([[[[1., 1., 3., 3.]]]])
    """
    return interpolate(input, size, scale_factor)


def relu(input: QTensor, inplace: bool = False) -> QTensor:
    """max(x, 0), with the arguments and the result of `clamp`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> relu(x).dequantize()
        tensor([0., 0., 4.])
    """
    return clamp(input, 0, inplace=inplace)


def relu6(input: QTensor, inplace: bool = False) -> QTensor:
    """x between 0 and the quantized 6, with the arguments and the result of `clamp`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> relu6(quantize_per_tensor(torch.tensor([-1.0, 2.0, 9.0]), 0.5, 20, torch.quint8)).dequantize()
        tensor([0., 2., 6.])
    """
    return clamp(input, 0, 6, inplace)


def hardtanh(input: QTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> QTensor:
    """x between the quantized bounds, with the result of `clamp`.

    Args:
        input, inplace: as for `clamp`.
        min_val, max_val: the bounds; min_val is at most max_val.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> hardtanh(x).dequantize()
        tensor([-1.,  0.,  1.])
    """
    for name, bound in (("min_val", min_val), ("max_val", max_val)):
        check_float(name, bound, "a number", lambda number: number == number)
    if min_val > max_val:
        raise ValueError(f"min_val={min_val} and max_val={max_val}; allowed is min_val <= max_val")
    return clamp(input, min_val, max_val, inplace)


def clamp(input: QTensor, min_: float | None = None, max_: float | None = None, inplace: bool = False) -> QTensor:
    """x between the quantized bounds; see `qcore.affine.arithmetic.clamp`.

    Args:
        input: QTensor.
        min_, max_: the bounds, which are quantized with input's parameters; None for no bound.
        inplace: True writes the result over input.

    Returns:
        A QTensor of input's shape, integers and parameters; with inplace=True input itself.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> clamp(x, max_=2).dequantize()
        tensor([-4.,  0.,  2.])
    """
    check_flag("inplace", inplace)
    for name, bound in (("min_", min_), ("max_", max_)):
        if bound is not None:
            check_float(name, bound, "a number or None", lambda number: number == number)
    return written(input, arithmetic.clamp(input, min_, max_), inplace)


def threshold(input: QTensor, threshold: float, value: float, inplace: bool = False) -> QTensor:
    """x where it is above the threshold, else the quantized value, with the result of `clamp`.

    Args:
        input, inplace: as for `clamp`.
        threshold: a finite number.
        value: a finite number, which is quantized with input's parameters.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.5, 4.0]), 0.5, 120, torch.quint8)
        >>> threshold(x, 0.5, -1.0).dequantize()
        tensor([-1., -1.,  4.])
    """
    check_flag("inplace", inplace)
    return written(input, arithmetic.threshold(input, threshold, value), inplace)


def pad(input: QTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> QTensor:
    """Pads a tensor: with one number, which is quantized, or in the other modes with numbers of the tensor.

    Args:
        input: QTensor.
        pad: the sizes before and after each of the last dimensions, the last dimension first, as for
            `torch.nn.functional.pad`; with mode "constant" negative sizes remove numbers.
        mode: "constant", "reflect", "replicate" or "circular".
        value: with mode "constant"; None for 0.

    Returns:
        A QTensor with input's integers and parameters.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[1.0, 2.0, 3.0]]), 0.5, 7, torch.quint8)
        >>> pad(x, (1, 2)).dequantize()
        tensor([[0., 1., 2., 3., 0., 0.]])
        >>> pad(x, (1, 2), "reflect").dequantize()
        tensor([[2., 1., 2., 3., 2., 1.]])
    """
    check_operand("input", input)
    check_choice("mode", mode, ("constant", "reflect", "replicate", "circular"))
    ends = [check_int("pad", end, None if mode == "constant" else 0) for end in pad]
    if len(ends) % 2 or len(ends) > 2 * input.ndim:
        raise ValueError(f"pad={pad}; allowed are two ints for each of up to {input.ndim} dimensions")
    pairs = tuple(zip(ends[-2::-2], ends[::-2], strict=True))  # of dimensions in order
    first = input.ndim - len(pairs)
    if mode != "constant":
        if value:
            raise ValueError(f"value={value} with mode={quoted(mode)}; allowed is None")
        return input._moved(lambda values: pad_values(input.names, values, pairs, mode, first))
    value = check_float("value", 0.0 if value is None else value, "a number", lambda number: number == number)
    fill = integer_of(input, value).to(input.values.dtype)
    for size, (before, after) in zip(input.shape[first:], pairs, strict=True):
        taken = -min(before, 0) - min(after, 0)
        if taken > size:
            raise ValueError(f"pad takes {taken} of {size} numbers; allowed are no more than there are")
    ones = (1,) * len(pairs)
    return input._moved(lambda values: spread(values, reinterpreted(fill, values.dtype), pairs, ones, first))


def spread(
    values: torch.Tensor, fill: torch.Tensor, pairs: tuple[tuple[int, int], ...], strides: tuple[int, ...], first: int
) -> torch.Tensor:
    """Integers `strides` apart along the axes from `first` on, with margins; gaps and margins have the value `fill`.

    Margins below 0 remove integers.
    """
    shape, places, kept = list(values.shape), [slice(None)] * values.ndim, [slice(None)] * values.ndim
    for axis, ((before, after), step) in enumerate(zip(pairs, strides, strict=True), first):
        size = shape[axis]
        shape[axis] = max(0, (size - 1) * step + 1 + before + after)
        lost = max(0, -(before // step))  # integers that the first margin removes
        start = lost * step + before
        count = max(0, min(size - lost, -((start - shape[axis]) // step)))
        kept[axis] = slice(lost, lost + count)
        places[axis] = slice(start, start + count * step if count else start, step)
    result = fill.expand(shape).clone(memory_format=torch.contiguous_format)
    result[tuple(places)] = values[tuple(kept)]
    return result


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
    return arithmetic.cat(tensors, dim)


def _stack(tensors: Any, dim: int = 0) -> QTensor:
    """`torch.stack`; the result has the parameters of the first tensor, as in torch."""
    return arithmetic.stack(tensors, dim)


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
    return arithmetic.softmax(input, dim)


def _in_place(function: Callable[..., QTensor]) -> Callable[..., QTensor]:
    """A function that writes its result over the input."""

    def method(input: QTensor, *arguments: object, **settings: object) -> QTensor:
        return written(input, function(input, *arguments, **settings), True)

    return method


def _move(name: str) -> Callable[..., Any]:
    """torch's function of a name, applied to the integers, which it only moves."""
    return moving(name, getattr(torch.Tensor, name, None) or getattr(torch, name))


_MOVES = (
    "as_strided atleast_1d atleast_2d atleast_3d broadcast_to channel_shuffle chunk diagonal dsplit expand "
    "fliplr flip flipud gather hsplit index_select masked_select moveaxis movedim narrow "
    "native_channel_shuffle permute pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave roll rot90 "
    "select split split_with_sizes swapaxes swapdims t take take_along_dim tensor_split tile unbind unflatten "
    "unfold unsqueeze vsplit"
).split()
_CLAMPS = {
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
}

# torch's functions of these names, for QTensors; a name that torch.Tensor has is a method of QTensor as well.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _move(name) for name in _MOVES},
    # Layers in integers give images with channels last, of which a view may need a copy that floats do not need.
    "view": moving("view", torch.Tensor.reshape),
    **{name: getattr(pools, name) for name in pools.__all__},
    **{name: row.law for name, row in OPERATIONS.items() if row.limits},  # which need no parameters
    **_CLAMPS,
    **{f"{name}_": _in_place(function) for name, function in _CLAMPS.items()},
    "pad": pad,
    "masked_fill": arithmetic.masked_fill,
    "masked_fill_": _in_place(arithmetic.masked_fill),
    "interpolate": _interpolate_module,
    "relu6": relu6,
    "hardtanh": hardtanh,
    "hardtanh_": _in_place(hardtanh),
    "hardsigmoid": hardsigmoid,
    "leaky_relu": leaky_relu,
    "leaky_relu_": _in_place(leaky_relu),
    "softmax": _softmax,
    "threshold": threshold,
    torch.nn.functional.threshold.__name__: threshold,  # "_threshold", in 2.13
}
# Of several tensors, whose first argument is a list or text.
JOINS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "stack": _stack,
    "einsum": _einsum,
}
