"""Results of functions of quantized tensors: their parameters, and the tensor that they are written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qcore.affine import QParams
from qcore.affine.functional.operands import check_operand
from qtorch._affine.affine import make_qparams
from qtorch._rounding.paths.choice import is_plain_tensor

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch._affine.tensor import QTensor


def result_qparams(
    input: QTensor, scale: float | torch.Tensor | None, zero_point: int | torch.Tensor | None
) -> QParams:
    """The parameters of a result: the given parameters, with input's where they are None."""
    check_operand("input", input)
    scale = input.qparams.scale if scale is None else scale
    zero_point = input.qparams.zero_point if zero_point is None else zero_point
    return make_qparams(scale, zero_point, None, input.device, is_plain_tensor(input.values))


def written(input: QTensor, result: QTensor, inplace: bool) -> QTensor:
    """The result; with inplace=True it is written over input."""
    if not inplace:
        return result
    input.values.copy_(result.values)
    return input
