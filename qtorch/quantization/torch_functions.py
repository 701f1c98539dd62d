"""torch's functions of quantized tensors that need no scale: `torch.nn.MaxPool2d` takes them as it takes floats.

Pools, interpolation and clamps keep the parameters of what goes in; the parameters of sigmoids and tanh follow from
their range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from qcore.affine import arithmetic
from qcore.arguments import check_flag, check_float

if TYPE_CHECKING:  # the class has a table of these functions
    from qtorch.quantization.tensor import QTensor


def max_pool1d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> QTensor:
    """The greatest number of each window; the law is that of `qcore.affine.arithmetic.max_pool`.

    Args:
        input: of shape (batch, channels, size), or without the batch.
        kernel_size, stride, padding, dilation, ceil_mode, return_indices: as for `max_pool2d`.

    Returns:
        A QTensor of shape (batch, channels, windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 0.5, 0, torch.quint8)
        >>> max_pool1d(x, 2).dequantize()
        tensor([[3., 2.]])
    """
    _check_indices(return_indices)
    return arithmetic.max_pool(input, 1, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> QTensor:
    """The greatest number of each window; see `qcore.affine.arithmetic.max_pool`.

    Args:
        input: of shape (batch, channels, height, width), or without the batch.
        kernel_size, stride, padding, dilation, ceil_mode: as for `torch.nn.functional.max_pool2d`.
        return_indices: False.

    Returns:
        A QTensor of shape (batch, channels, windows down, windows across), or without the batch, with input's
        integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]), 0.5, 0, torch.quint8)
        >>> max_pool2d(x, 2).dequantize()
        tensor([[[3.]]])
    """
    _check_indices(return_indices)
    return arithmetic.max_pool(input, 2, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool2d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> QTensor:
    """The mean of each window; the law is that of `qcore.affine.arithmetic.avg_pool`.

    Args:
        input: of shape (batch, channels, height, width), or without the batch.
        kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override: as for
            `torch.nn.functional.avg_pool2d`.

    Returns:
        A QTensor of shape (batch, channels, windows down, windows across), or without the batch, with input's
        integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]]), 0.5, 0, torch.quint8)
        >>> avg_pool2d(x, 2).dequantize()
        tensor([[[3.]]])
    """
    return arithmetic.avg_pool(input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: QTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> QTensor:
    """The mean of each window of volumes; the law is that of `qcore.affine.arithmetic.avg_pool`.

    Args:
        input: of shape (batch, channels, depth, height, width), or without the batch.
        kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override: as for
            `torch.nn.functional.avg_pool3d`.

    Returns:
        A QTensor of shape (batch, channels, *windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), 0.5, 0, torch.quint8)
        >>> avg_pool3d(x, (1, 2, 2)).dequantize()
        tensor([[[[3.]]]])
    """
    return arithmetic.avg_pool(input, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def adaptive_avg_pool2d(input: QTensor, output_size: Any) -> QTensor:
    """The means of as many windows as are asked for; the law is that of `qcore.affine.arithmetic.adaptive_avg_pool`.

    Args:
        input: of shape (batch, channels, height, width), or without the batch.
        output_size: how many windows there are along all dimensions, or along each; None leaves a dimension as it is.

    Returns:
        A QTensor of shape (batch, channels, *windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]]), 0.5, 0, torch.quint8)
        >>> adaptive_avg_pool2d(x, 1).dequantize()
        tensor([[[3.]]])
    """
    return arithmetic.adaptive_avg_pool(input, output_size, 2)


def adaptive_avg_pool3d(input: QTensor, output_size: Any) -> QTensor:
    """The means of as many windows as are asked for; the law is that of `qcore.affine.arithmetic.adaptive_avg_pool`.

    Args:
        input: of shape (batch, channels, depth, height, width), or without the batch.
        output_size: how many windows there are along all dimensions, or along each; None leaves a dimension as it is.

    Returns:
        A QTensor of shape (batch, channels, *windows), or without the batch, with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), 0.5, 0, torch.quint8)
        >>> adaptive_avg_pool3d(x, 1).dequantize()
        tensor([[[[3.]]]])
    """
    return arithmetic.adaptive_avg_pool(input, output_size, 3)


def interpolate(
    input: QTensor,
    size: Any = None,
    scale_factor: Any = None,
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

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> interpolate(x, scale_factor=2).dequantize()
        tensor([[[[1., 1., 3., 3.],
                  [1., 1., 3., 3.]]]])
    """
    return arithmetic.interpolate(input, size, scale_factor, mode, align_corners)


upsample = interpolate


def upsample_bilinear(input: QTensor, size: Any = None, scale_factor: Any = None) -> QTensor:
    """`interpolate` with mode="bilinear" and align_corners=True.

    Args:
        input, size, scale_factor: as for `interpolate`.

    Returns:
        A QTensor of shape (batch, channels, *new sizes), with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_bilinear(x, (1, 3)).dequantize()
        tensor([[[[1., 2., 3.]]]])
    """
    return interpolate(input, size, scale_factor, "bilinear", True)


def upsample_nearest(input: QTensor, size: Any = None, scale_factor: Any = None) -> QTensor:
    """`interpolate` with mode="nearest".

    Args:
        input, size, scale_factor: as for `interpolate`.

    Returns:
        A QTensor of shape (batch, channels, *new sizes), with input's integers and parameters.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[[[1.0, 3.0]]]]), 0.5, 0, torch.quint8)
        >>> upsample_nearest(x, (1, 4)).dequantize()
        tensor([[[[1., 1., 3., 3.]]]])
    """
    return interpolate(input, size, scale_factor)


def hardsigmoid(input: QTensor, inplace: bool = False) -> QTensor:
    """clip(x + 3, 0, 6) / 6, with the parameters of numbers from 0 to 1, which input does not have.

    Args:
        input: QTensor.
        inplace: False.

    Returns:
        A QTensor of input's shape and integers, with the scale 1 / (how many of these there are), 1/256 for 8 bits, and
        the least of them as zero point.

    Raises:
        TypeError: if input is no QTensor.
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
    return arithmetic.hardsigmoid(input)


def relu(input: QTensor, inplace: bool = False) -> QTensor:
    """max(x, 0); the parameters stay.

    Args:
        input: QTensor.
        inplace: True writes the result over input.

    Returns:
        A QTensor of input's shape, integers and parameters; with inplace=True input itself.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> relu(x).dequantize()
        tensor([0., 0., 4.])
    """
    return clamp(input, 0, inplace=inplace)


def relu6(input: QTensor, inplace: bool = False) -> QTensor:
    """x between 0 and the quantized 6; the parameters stay.

    Args:
        input: QTensor.
        inplace: True writes the result over input.

    Returns:
        A QTensor of input's shape, integers and parameters; with inplace=True input itself.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> relu6(quantize_per_tensor(torch.tensor([-1.0, 2.0, 9.0]), 0.5, 20, torch.quint8)).dequantize()
        tensor([0., 2., 6.])
    """
    return clamp(input, 0, 6, inplace)


def hardtanh(input: QTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> QTensor:
    """x between the quantized bounds.

    Args:
        input: QTensor.
        min_val, max_val: the bounds, which are quantized with input's parameters; min_val is at most max_val.
        inplace: True writes the result over input.

    Returns:
        A QTensor of input's shape, integers and parameters; with inplace=True input itself.

    Raises:
        TypeError, ValueError: if an argument is not as above.

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
        min_, max_: the bounds, which are quantized with input's parameters; None for none.
        inplace: True writes the result over input.

    Returns:
        A QTensor of input's shape, integers and parameters; with inplace=True input itself.

    Raises:
        TypeError, ValueError: if an argument is not as above.

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
    """x where it is above the threshold, else the quantized value; see `qcore.affine.arithmetic.threshold`.

    Args:
        input: QTensor.
        threshold: finite.
        value: finite, which is quantized with input's parameters.
        inplace: True writes the result over input.

    Returns:
        A QTensor of input's shape, integers and parameters; with inplace=True input itself.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.5, 4.0]), 0.5, 120, torch.quint8)
        >>> threshold(x, 0.5, -1.0).dequantize()
        tensor([-1., -1.,  4.])
    """
    check_flag("inplace", inplace)
    return written(input, arithmetic.threshold(input, threshold, value), inplace)


def _check_indices(return_indices: Any) -> None:
    if return_indices is not False:
        raise ValueError(f"return_indices={return_indices}; allowed is False")


def written(input: QTensor, result: QTensor, inplace: bool) -> QTensor:
    """The result, written over input where that is asked for."""
    if not inplace:
        return result
    input.values.copy_(result.values)
    return input


def _interpolate_module(input: QTensor, *others: Any, recompute_scale_factor: Any = None, **settings: Any) -> QTensor:
    """`interpolate` with the arguments that `torch.nn.Upsample` passes."""
    if recompute_scale_factor or settings.pop("antialias", False):
        raise ValueError("interpolate of a QTensor with recompute_scale_factor or antialias; allowed is neither")
    return interpolate(input, *others, **settings)


# What torch's functions of these names do with a QTensor, beside its methods.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max_pool1d": max_pool1d,
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "avg_pool3d": avg_pool3d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "adaptive_avg_pool3d": adaptive_avg_pool3d,
    "interpolate": _interpolate_module,
    "relu6": relu6,
    "hardtanh": hardtanh,
    "hardsigmoid": hardsigmoid,
    "sigmoid": arithmetic.sigmoid,
    "tanh": arithmetic.tanh,
    "threshold": threshold,
    torch.nn.functional.threshold.__name__: threshold,  # "_threshold", in 2.13
}
