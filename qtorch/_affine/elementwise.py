"""Functions of one number on quantized tensors whose parameters stay, with torch's names and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: F401  # for examples

from qcore.affine import functional
from qcore.arguments import check_flag, check_float
from qtorch._affine.results import written

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor

__all__ = ["clamp", "hardtanh", "relu", "relu6", "threshold"]


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
    """x between the quantized bounds; see `qcore.affine.functional.clamp`.

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
    return written(input, functional.clamp(input, min_, max_), inplace)


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
    return written(input, functional.threshold(input, threshold, value), inplace)
