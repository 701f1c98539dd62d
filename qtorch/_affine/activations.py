"""Activations of quantized tensors, with torch's names and arguments; each has the document of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qcore.affine import arithmetic
from qcore.arguments import check_flag
from qtorch._affine.documents import of_row
from qtorch._affine.results import result_qparams, written

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor

__all__ = ["celu", "elu", "hardsigmoid", "hardswish", "leaky_relu"]


@of_row()
def elu(
    input: QTensor, scale: float | torch.Tensor | None, zero_point: int | torch.Tensor | None, alpha: float = 1.0
) -> QTensor:
    return arithmetic.elu(input, result_qparams(input, scale, zero_point), alpha=alpha)


@of_row()
def celu(
    input: QTensor, scale: float | torch.Tensor | None, zero_point: int | torch.Tensor | None, alpha: float = 1.0
) -> QTensor:
    return arithmetic.celu(input, result_qparams(input, scale, zero_point), alpha=alpha)


@of_row()
def hardswish(input: QTensor, scale: float | torch.Tensor | None, zero_point: int | torch.Tensor | None) -> QTensor:
    return arithmetic.hardswish(input, result_qparams(input, scale, zero_point))


@of_row(inplace="False.")
def hardsigmoid(input: QTensor, inplace: bool = False) -> QTensor:
    check_flag("inplace", inplace)
    if inplace:
        raise ValueError("inplace=True; allowed is False: the result has another scale")
    return arithmetic.hardsigmoid(input)


@of_row()
def leaky_relu(
    input: QTensor,
    negative_slope: float = 0.01,
    inplace: bool = False,
    scale: float | torch.Tensor | None = None,
    zero_point: int | torch.Tensor | None = None,
) -> QTensor:
    check_flag("inplace", inplace)
    if inplace and (scale is not None or zero_point is not None):
        raise ValueError(f"inplace=True with scale={scale} and zero_point={zero_point}; allowed are both None")
    result = arithmetic.leaky_relu(input, result_qparams(input, scale, zero_point), slope=negative_slope)
    return written(input, result, inplace)
