"""Activations of quantized tensors, with torch's names and arguments, and the documents of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qcore.affine import functional
from qcore.arguments import check_flag
from qtorch._affine.documents import of_row
from qtorch._affine.results import result_qparams, written

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor

__all__ = ["celu", "elu", "hardsigmoid", "hardswish", "leaky_relu"]


@of_row
def elu(
    input: QTensor, scale: float | torch.Tensor | None, zero_point: int | torch.Tensor | None, alpha: float = 1.0
) -> QTensor:
    return functional.elu(input, result_qparams(input, scale, zero_point), alpha=alpha)


@of_row
def celu(
    input: QTensor, scale: float | torch.Tensor | None, zero_point: int | torch.Tensor | None, alpha: float = 1.0
) -> QTensor:
    return functional.celu(input, result_qparams(input, scale, zero_point), alpha=alpha)


@of_row
def hardswish(input: QTensor, scale: float | torch.Tensor | None, zero_point: int | torch.Tensor | None) -> QTensor:
    return functional.hardswish(input, result_qparams(input, scale, zero_point))


def hardsigmoid(input: QTensor, inplace: bool = False) -> QTensor:
    """clip(x + 3, 0, 6) / 6, with parameters for numbers from 0 to 1, not input's parameters.

    Args:
        input: QTensor.
        inplace: False.

    Returns:
        A QTensor of input's shape and integers, with the scale 1 / (number of these integers), 1/256 for 8 bits, and
        the least integer as zero point.

    Raises:
        TypeError: if input is not a QTensor.
        ValueError: if inplace is True, or input has a scale for each channel or 32-bit integers.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> hardsigmoid(x)
        QTensor([0.0000, 0.5000, 0.9961], size=(3,), dtype=torch.quint8, scale=0.00390625, zero_point=0)
    """
    check_flag("inplace", inplace)
    if inplace:
        raise ValueError("inplace=True; allowed is False: the result has another scale")
    return functional.hardsigmoid(input)


def leaky_relu(
    input: QTensor,
    negative_slope: float = 0.01,
    inplace: bool = False,
    scale: float | torch.Tensor | None = None,
    zero_point: int | torch.Tensor | None = None,
) -> QTensor:
    """x where it is above 0, else x * negative_slope.

    Args:
        input: QTensor.
        negative_slope: a finite number.
        inplace: True writes the result over input, and takes no parameters.
        scale, zero_point: of the result; None means input's.

    Returns:
        A QTensor of input's shape and integers, with the parameters given; with inplace=True input itself.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-8.0, 0.0, 2.0]), 0.5, 120, torch.quint8)
        >>> leaky_relu(x, 0.25).dequantize()
        tensor([-2.,  0.,  2.])
    """
    check_flag("inplace", inplace)
    if inplace and (scale is not None or zero_point is not None):
        raise ValueError(f"inplace=True with scale={scale} and zero_point={zero_point}; allowed are both None")
    result = functional.leaky_relu(input, result_qparams(input, scale, zero_point), slope=negative_slope)
    return written(input, result, inplace)
