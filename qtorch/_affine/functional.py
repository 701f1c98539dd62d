"""Functions that make quantized tensors, and functions of quantized tensors that take their result's parameters.

Sums of products are exact, and rounded by fbgemm's formula (`qcore.affine.requantize`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from qcore.affine import AffineInteger, QParams
from qcore.affine.functional.convolutions import pad_images
from qcore.affine.quantized import check_convolution, check_linear
from qcore.arguments import check_type
from qcore.names import in_dimensions
from qtorch._affine import conversion
from qtorch._affine.activations import celu, elu, hardswish  # noqa: F401  # where older pickles have them
from qtorch._affine.affine import make_qparams
from qtorch._affine.dtypes import integers
from qtorch._affine.products import Geometry, Rounding, rounded_products, rounded_windows
from qtorch._affine.programs import law
from qtorch._affine.results import result_qparams
from qtorch._affine.tensor import QTensor
from qtorch._rounding.dense import check_dense
from qtorch._rounding.paths.choice import is_plain_tensor

WIDTHS = (8, 16)  # of integers in memory


def quantize_per_tensor(
    x: torch.Tensor, scale: float | torch.Tensor, zero_point: int | torch.Tensor, dtype: torch.dtype | AffineInteger
) -> QTensor:
    """A quantized tensor of the integers clip(rint(x * (1 / scale)) + zero_point).

    Args:
        x: tensor of any shape and device; float32, float64, float16 or bfloat16.
        scale: a number, or a float32 tensor of one element.
        zero_point: an int, or an integer tensor of one element.
        dtype: torch.quint8, qint8 or qint32, a plain integer type, or an `AffineInteger`.

    Returns:
        A QTensor of x's shape and device, of the integers that dtype names.

    Example:
        >>> quantize_per_tensor(torch.tensor([-1.0, 0.0, 1.0]), 0.1, 10, torch.quint8).int_repr()
        tensor([ 0, 10, 20], dtype=torch.uint8)
    """
    return _quantize(x, scale, zero_point, None, dtype)


def quantize_per_channel(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, axis: int, dtype: torch.dtype | AffineInteger
) -> QTensor:
    """The integers of `quantize_per_tensor`, with a scale and a zero point for each channel.

    Args:
        x, dtype: as for `quantize_per_tensor`; x has at least one dimension.
        scales: float32 tensor of shape (channels,).
        zero_points: integer tensor of shape (channels,).
        axis: the dimension of x along which the channels lie.

    Returns:
        A QTensor of x's shape and device, of the integers that dtype names.

    Raises:
        TypeError, ValueError: as `quantize_per_tensor` does, and if the number of channels is not that of x.

    Example:
        >>> x = torch.tensor([[-1.0, 0.0], [1.0, 2.0]])
        >>> quantize_per_channel(
        ...     x, torch.tensor([0.1, 0.01]), torch.tensor([10, 0]), 0, torch.quint8
        ... ).int_repr()
        tensor([[  0,  10],
                [100, 200]], dtype=torch.uint8)
    """
    if axis is None:
        raise TypeError("axis=None; allowed is an int (quantize_per_tensor has no axis)")
    return _quantize(x, scales, zero_points, axis, dtype)


def dequantize(q: QTensor) -> torch.Tensor:
    """The numbers of a quantized tensor, (q - zero_point) * scale, in float32.

    Args:
        q: a QTensor; a torch.Tensor goes to `torch.dequantize`.

    Returns:
        A float32 tensor of q's shape and device.

    Example:
        >>> dequantize(quantize_per_tensor(torch.tensor([1.2, 3.0]), 0.5, 0, torch.quint8))
        tensor([1., 3.])
    """
    check_type("q", q, (QTensor, torch.Tensor), "a QTensor")
    if isinstance(q, QTensor) or q.is_quantized:
        return q.dequantize()
    check_dense("q", q)
    return q.to(torch.float32)


def _quantize(
    x: torch.Tensor,
    scale: float | torch.Tensor,
    zero_point: int | torch.Tensor,
    axis: int | None,
    dtype: torch.dtype | AffineInteger,
) -> QTensor:
    plain = is_plain_tensor(x)
    qparams, form = make_qparams(scale, zero_point, axis, x.device, plain), integers(dtype)
    return QTensor(conversion.quantize(x, qparams, form), qparams, form)


def linear(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None = None,
    scale: float | torch.Tensor | None = None,
    zero_point: int | torch.Tensor | None = None,
) -> QTensor:
    """input @ weight.T + bias in integers, requantized.

    Sums are exact: int32 where all fit, else float64.

    Args:
        input: of up to 16-bit integers and shape (..., features), with parameters for the whole.
        weight: of up to 16-bit integers and shape (outputs, features), with parameters for the whole or for each
            output.
        bias: float32 tensor of shape (outputs,), or None.
        scale, zero_point: of the result; None means input's.

    Returns:
        A QTensor of shape (..., outputs) and input's integers.

    Raises:
        ValueError: if shapes or parameters do not fit.

    Example:
        >>> x = quantize_per_tensor(torch.tensor([[1.0, 2.0]]), 0.1, 0, torch.quint8)
        >>> weight = quantize_per_tensor(torch.tensor([[0.5, 0.25]]), 0.01, 0, torch.qint8)
        >>> linear(x, weight, torch.tensor([0.5])).dequantize()
        tensor([[1.5000]])
    """
    check_linear(input, weight, WIDTHS)
    return linear_to(input, weight, bias, result_qparams(input, scale, zero_point), input.form)


def _check_bias(bias: Any) -> None:
    check_type("bias", bias, (torch.Tensor, type(None)), "a float32 tensor or None")
    if bias is not None:
        check_dense("bias", bias)


def linear_to(
    input: QTensor, weight: QTensor, bias: torch.Tensor | None, output: QParams, form: AffineInteger
) -> QTensor:
    """`linear` of checked operands, with the integers of the result as an argument."""
    _check_bias(bias)
    shape = *input.shape[:-1], weight.shape[0]
    empty = partial(torch.empty, shape, dtype=getattr(torch, form.storage), device=input.device)
    return QTensor(law(_linear, (input, weight, bias, output), form, empty=empty), output, form)


def _linear(
    input: QTensor, weight: QTensor, bias: torch.Tensor | None, output: QParams, form: AffineInteger
) -> torch.Tensor:
    values = rounded_products(input.reshape(-1, weight.shape[1]), weight, Rounding(bias, output, form))
    return values.reshape(*input.shape[:-1], weight.shape[0])


def _conv(dimensions: int):  # its result has the type of the function, which checkers infer
    def conv(
        input: QTensor,
        weight: QTensor,
        bias: torch.Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        scale: float | torch.Tensor | None = 1.0,
        zero_point: int | torch.Tensor | None = 0,
        dtype: torch.dtype | AffineInteger = torch.quint8,
    ) -> QTensor:
        """A convolution in integers, requantized; see `torch.nn.functional.{name}`, and `linear` for the sums.

        Args:
            input: of up to 16-bit integers and shape (batch, channels, {sizes}), with parameters for the whole.
            weight: of up to 16-bit integers and shape (outputs, channels / groups, {sizes}), with parameters for the
                whole or for each output.
            bias, scale, zero_point: as for `linear`.
            stride, padding, dilation: for all dimensions, or for each.
            groups: the number of groups of channels and outputs.
            padding_mode: "zeros" pads with the zero point; "reflect", "replicate" and "circular" pad with the image's
                own integers, as for `torch.nn.Conv2d`.
            dtype: of the result.

        Returns:
            A QTensor of shape (batch, outputs, {sizes}).

        Raises:
            ValueError: if shapes, sizes or parameters do not fit, or padding_mode is none of these.

        Example:
            >>> x = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, {ones}3)
            >>> x = quantize_per_tensor(x, 0.5, 0, torch.quint8)
            >>> weight = quantize_per_tensor(torch.ones(1, 1, {ones}2), 0.5, 0, torch.qint8)
            >>> {name}(x, weight).dequantize().flatten()
            tensor([3., 5.])
        """
        geometry = stride, padding, dilation, groups, padding_mode
        sizes = check_convolution(input, weight, *geometry, dimensions, WIDTHS)
        output = result_qparams(input, scale, zero_point)
        return conv_to(input, weight, bias, (*sizes, groups, padding_mode), output, integers(dtype))

    return in_dimensions(dimensions, conv)


conv1d = _conv(1)
conv2d = _conv(2)
conv3d = _conv(3)


def conv_to(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None,
    settings: tuple[Any, ...],
    output: QParams,
    form: AffineInteger,
) -> QTensor:
    """A convolution in one, two or three dimensions; settings are stride, padding, dilation, groups and mode."""
    _check_bias(bias)
    stride, padding, dilation, groups, mode = settings
    if mode != "zeros":
        input = pad_images(input, tuple((size, size) for size in padding), mode)
        padding = (0,) * len(padding)
    geometry = Geometry(stride, padding, dilation, groups)
    whole = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    places = [(size + 2 * margin - gap * (count - 1) - 1) // step + 1 for size, count, step, margin, gap in whole]

    def empty() -> torch.Tensor:
        shape = input.shape[0], *places, weight.shape[0]
        return torch.empty(shape, dtype=getattr(torch, form.storage), device=input.device).movedim(-1, 1)

    return QTensor(law(_convolution, (input, weight, bias, output), form, geometry, empty=empty), output, form)


def _convolution(
    input: QTensor,
    weight: QTensor,
    bias: torch.Tensor | None,
    output: QParams,
    form: AffineInteger,
    geometry: Geometry,
) -> torch.Tensor:
    found = rounded_windows(input, weight, geometry, Rounding(bias, output, form))
    return found.movedim(1, -1).contiguous().movedim(-1, 1)  # channels last, by whichever way the sums were found
