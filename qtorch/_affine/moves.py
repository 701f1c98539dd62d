"""Functions of quantized tensors that only move their integers: torch's own, of the names in `NAMES`, and `pad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from qcore.affine.functional.convolutions import pad_values
from qcore.affine.functional.operands import check_operand, integer_of
from qcore.affine.quantized import moving
from qcore.arguments import check_choice, check_float, check_int, quoted
from qtorch._namespace import reinterpreted

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor

NAMES = (
    "as_strided atleast_1d atleast_2d atleast_3d broadcast_to channel_shuffle chunk diagonal dsplit expand "
    "fliplr flip flipud gather hsplit index_select masked_select moveaxis movedim narrow "
    "native_channel_shuffle permute pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave roll rot90 "
    "select split split_with_sizes swapaxes swapdims t take take_along_dim tensor_split tile unbind unflatten "
    "unfold unsqueeze vsplit"
).split()
# Layers of torch.nn that call them, or `pad`.
LAYERS = "Flatten Unflatten PixelShuffle PixelUnshuffle ChannelShuffle".split()
LAYERS += [
    f"{kind}Pad{dimensions}d"
    for kind in ("Constant", "Zero", "Reflection", "Replication", "Circular")
    for dimensions in (1, 2, 3)
]


def move(name: str) -> Callable[..., Any]:
    """torch's function of a name, applied to the integers, which it only moves."""
    return moving(name, getattr(torch.Tensor, name, None) or getattr(torch, name))


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
