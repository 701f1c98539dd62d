"""Functions that make quantized tensors, and layers that compute with their integers.

Sums of products are exact, in int32; what becomes of them is fbgemm's formula (`qcore.affine.requantize`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from qcore import affine
from qcore.affine import AffineInteger, QParams
from qcore.affine.quantized import check_convolution, check_linear
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import int8_product
from qtorch.quantization.affine import make_qparams
from qtorch.quantization.array_names import Names
from qtorch.quantization.dtypes import integers
from qtorch.quantization.tensor import QTensor


def quantize_per_tensor(x: torch.Tensor, scale: Any, zero_point: Any, dtype: Any) -> QTensor:
    """The integers clip(rint(x * (1 / scale)) + zero_point), with what they stand for.

    Args:
        x: tensor of any shape and device; float32, float64, float16 or bfloat16.
        scale: a number, or a float32 tensor of one element.
        zero_point: an int, or an integer tensor of one element.
        dtype: torch.quint8, qint8 or qint32, a plain integer type, or an `AffineInteger`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range.

    Example:
        >>> quantize_per_tensor(torch.tensor([-1.0, 0.0, 1.0]), 0.1, 10, torch.quint8).int_repr()
        tensor([ 0, 10, 20], dtype=torch.uint8)
    """
    return _quantize(x, make_qparams(scale, zero_point, None, x.device, is_plain_tensor(x)), integers(dtype))


def quantize_per_channel(x: torch.Tensor, scales: Any, zero_points: Any, axis: int, dtype: Any) -> QTensor:
    """The same with a scale and a zero point for each channel; see `quantize_per_tensor`.

    Args:
        x, dtype: as for `quantize_per_tensor`; x has at least one dimension.
        scales: float32 tensor of shape (channels,).
        zero_points: integer tensor of shape (channels,).
        axis: the dimension of x along which the channels lie.

    Raises:
        TypeError, ValueError: as `quantize_per_tensor` does, and if the channels are not as many as x's.

    Example:
        >>> x = torch.tensor([[-1.0, 0.0], [1.0, 2.0]])
        >>> quantize_per_channel(x, torch.tensor([0.1, 0.01]), torch.tensor([10, 0]), 0, torch.quint8).int_repr()
        tensor([[  0,  10],
                [100, 200]], dtype=torch.uint8)
    """
    if axis is None:
        raise TypeError("axis=None; allowed is an int (quantize_per_tensor has no axis)")
    return _quantize(x, make_qparams(scales, zero_points, axis, x.device, is_plain_tensor(x)), integers(dtype))


def dequantize(q: QTensor) -> torch.Tensor:
    """The numbers that a quantized tensor's integers stand for, in float32."""
    return q.dequantize()


def _quantize(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> QTensor:
    return QTensor(affine.quantize_affine(x, qparams, form, Names), qparams, form)


def linear(
    input: QTensor, weight: QTensor, bias: torch.Tensor | None = None, scale: Any = None, zero_point: Any = None
) -> QTensor:
    """input @ weight.T + bias by integers, requantized.

    Sums are of 32 bits, and what does not fit wraps.

    Args:
        input: of 8-bit integers and shape (..., features), with parameters for the whole.
        weight: of 8-bit integers and shape (outputs, features), with parameters for the whole or for each output.
        bias: float32 tensor of shape (outputs,), or None.
        scale, zero_point: of the result; None means input's.

    Returns:
        A QTensor of shape (..., outputs) and input's integers.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes or parameters do not fit.

    Example:
        >>> x = quantize_per_tensor(torch.tensor([[1.0, 2.0]]), 0.1, 0, torch.quint8)
        >>> weight = quantize_per_tensor(torch.tensor([[0.5, 0.25]]), 0.01, 0, torch.qint8)
        >>> linear(x, weight, torch.tensor([0.5])).dequantize()
        tensor([[1.5000]])
    """
    check_linear(input, weight)
    (rows, zero), (filters, zeros) = _signed(input), _signed(weight)
    sums = _sums_of_products(rows.reshape(-1, weight.shape[1]), zero, filters, zeros)
    result = _requantized(sums, input, weight, bias, _output(input, scale, zero_point), input.form)
    return result.reshape(*input.shape[:-1], weight.shape[0])


def conv2d(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    scale: Any = 1.0,
    zero_point: Any = 0,
    dtype: Any = torch.quint8,
) -> QTensor:
    """A convolution by integers, requantized; see `torch.nn.functional.conv2d`, and `linear` for the sums.

    Args:
        input: of 8-bit integers and shape (batch, channels, height, width), with parameters for the whole.
        weight: of 8-bit integers and shape (outputs, channels / groups, height, width), with parameters for the whole
            or for each output.
        bias, scale, zero_point: as for `linear`, which raises the same errors.
        stride, padding, dilation: for both dimensions, or for each.
        groups: into how many parts channels and outputs are split.
        padding_mode: "zeros": around the image lies the zero point.
        dtype: of the result.

    Returns:
        A QTensor of shape (batch, outputs, height, width).
    """
    stride, padding, dilation = check_convolution(input, weight, stride, padding, dilation, groups, padding_mode)
    outputs, _, *kernel = weight.shape
    (images, zero), (filters, zeros) = _signed(input), _signed(weight)
    windows = _windows(images, int(zero), tuple(kernel), stride, padding, dilation)
    batch, height, width = windows.shape[:3]
    parts = zip(
        windows.chunk(groups, 3), filters.flatten(1).chunk(groups), zeros.expand(outputs).chunk(groups), strict=True
    )
    sums = [_sums_of_products(rows.reshape(batch * height * width, -1), zero, *part) for rows, *part in parts]
    result = _requantized(torch.cat(sums, 1), input, weight, bias, _output(input, scale, zero_point), integers(dtype))
    return result.reshape(batch, height, width, outputs).permute(0, 3, 1, 2)


def _windows(
    images: torch.Tensor,
    zero: int,
    kernel: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    """All places of a kernel, as a view of shape (batch, rows, columns, channels, *kernel) of the padded images."""
    images = pad(images, (padding[1], padding[1], padding[0], padding[0]), value=zero)
    spans = [gap * (size - 1) + 1 for gap, size in zip(dilation, kernel, strict=True)]
    windows = images.unfold(2, spans[0], stride[0]).unfold(3, spans[1], stride[1])[..., :: dilation[0], :: dilation[1]]
    return windows.permute(0, 2, 3, 1, 4, 5)


def _sums_of_products(
    rows: torch.Tensor, zero: torch.Tensor, filters: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The sums of (row - zero) * (filter - its zero), int32, for each of (rows, terms) and each of (filters, terms)."""
    sums = int8_product(rows, filters.t()) - zero * filters.sum(1, dtype=torch.int32)
    if (zeros != 0).any():
        ones = torch.ones((rows.shape[1], 1), dtype=torch.int8, device=rows.device)
        sums = sums - (int8_product(rows, ones) - zero * rows.shape[1]) * zeros
    return sums


def _signed(q: QTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values and a zero point with the same differences; unsigned ones are moved by 128."""
    if q.values.dtype is torch.int8:
        return q.values, q.qparams.zero_point
    return (q.values ^ 0x80).view(torch.int8), q.qparams.zero_point - 128


def _requantized(
    sums: torch.Tensor, input: QTensor, weight: QTensor, bias: torch.Tensor | None, output: QParams, form: AffineInteger
) -> QTensor:
    scales = input.qparams.scale, weight.qparams.scale
    return QTensor(affine.requantize(sums, *scales, bias, output, form, xp=Names), output, form)


def _output(input: QTensor, scale: Any, zero_point: Any) -> QParams:
    scale = input.qparams.scale if scale is None else scale
    zero_point = input.qparams.zero_point if zero_point is None else zero_point
    return make_qparams(scale, zero_point, None, input.device, is_plain_tensor(input.values))
