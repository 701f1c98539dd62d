"""Convolutions of quantized tensors in one and three dimensions."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine.quantized import check_convolution
from qtorch._affine.dtypes import integers
from qtorch._affine.functional import WIDTHS, conv_to
from qtorch._affine.tensor import QTensor
from qtorch._affine.torch_functions import result_qparams


def conv1d(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: Any = 1.0,
    zero_point: Any = 0,
    dtype: Any = torch.quint8,
) -> QTensor:
    """A convolution of one dimension by integers, requantized; the law is that of `conv2d`.

    Args:
        input: of shape (batch, channels, size).
        weight: of shape (outputs, channels / groups, size).
        bias, scale, zero_point, stride, padding, dilation, groups, padding_mode, dtype: as for `conv2d`.

    Returns:
        A QTensor of shape (batch, outputs, size).

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3), 0.5, 0, torch.quint8)
        >>> weight = quantize_per_tensor(torch.ones(1, 1, 2), 0.5, 0, torch.qint8)
        >>> conv1d(x, weight).dequantize().flatten()
        tensor([3., 5.])
    """
    geometry = stride, padding, dilation, groups, padding_mode
    return _conv(1, input, weight, bias, geometry, scale, zero_point, dtype)


def conv3d(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: Any = 1.0,
    zero_point: Any = 0,
    dtype: Any = torch.quint8,
) -> QTensor:
    """A convolution of three dimensions by integers, requantized; the law is that of `conv2d`.

    Args:
        input: of shape (batch, channels, depth, height, width).
        weight: of shape (outputs, channels / groups, depth, height, width).
        bias, scale, zero_point, stride, padding, dilation, groups, padding_mode, dtype: as for `conv2d`.

    Returns:
        A QTensor of shape (batch, outputs, depth, height, width).

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 1, 1, 3), 0.5, 0, torch.quint8)
        >>> weight = quantize_per_tensor(torch.ones(1, 1, 1, 1, 2), 0.5, 0, torch.qint8)
        >>> conv3d(x, weight).dequantize().flatten()
        tensor([3., 5.])
    """
    geometry = stride, padding, dilation, groups, padding_mode
    return _conv(3, input, weight, bias, geometry, scale, zero_point, dtype)


def _conv(
    dimensions: int,
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None,
    geometry: tuple[Any, Any, Any, Any, Any],
    scale: Any,
    zero_point: Any,
    dtype: Any,
) -> QTensor:
    sizes = check_convolution(input, weight, *geometry, dimensions, WIDTHS)
    output = result_qparams(input, scale, zero_point)
    return conv_to(input, weight, bias, (*sizes, *geometry[3:]), output, integers(dtype))
