"""Activations of quantized tensors: clamps keep the parameters of what goes in, the others take theirs."""

from __future__ import annotations

from typing import Any

from qcore.affine import arithmetic
from qcore.arguments import check_flag, check_float
from qtorch.nn.quantized.functional.convolutions import result_qparams
from qtorch.quantization.tensor import QTensor


def elu(input: QTensor, scale: Any, zero_point: Any, alpha: float = 1.0) -> QTensor:
    """x where it is above 0, else alpha * (exp(x) - 1); see `qcore.affine.arithmetic.elu`.

    Args:
        input: QTensor.
        scale, zero_point: of the result; None means input's.
        alpha: a finite number.

    Returns:
        A QTensor of input's shape and integers, with the parameters given.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-60.0, 0.0, 2.0]), 0.5, 120, torch.quint8)
        >>> elu(x, 0.5, 120).dequantize()
        tensor([-1.,  0.,  2.])
    """
    return arithmetic.elu(input, result_qparams(input, scale, zero_point), alpha=alpha)


def celu(input: QTensor, scale: Any, zero_point: Any, alpha: float = 1.0) -> QTensor:
    """x where it is above 0, else alpha * (exp(x / alpha) - 1); see `qcore.affine.arithmetic.celu`.

    Args:
        input: QTensor.
        scale, zero_point: of the result; None means input's.
        alpha: a finite number but 0.

    Returns:
        A QTensor of input's shape and integers, with the parameters given.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-60.0, 0.0, 2.0]), 0.5, 120, torch.quint8)
        >>> celu(x, 0.5, 120, alpha=0.5).dequantize()
        tensor([-0.5000,  0.0000,  2.0000])
    """
    return arithmetic.celu(input, result_qparams(input, scale, zero_point), alpha=alpha)


def leaky_relu(
    input: QTensor, negative_slope: float = 0.01, inplace: bool = False, scale: Any = None, zero_point: Any = None
) -> QTensor:
    """x where it is above 0, else x * negative_slope; without parameters the result has input's.

    Args:
        input, negative_slope, scale, zero_point: see `qcore.affine.arithmetic.leaky_relu`.
        inplace: whether the result is written over input, whose parameters it must then have.

    Returns:
        A QTensor of input's shape and integers, with the parameters given; with inplace=True input itself.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-8.0, 0.0, 2.0]), 0.5, 120, torch.quint8)
        >>> leaky_relu(x, 0.25).dequantize()
        tensor([-2.,  0.,  2.])
    """
    check_flag("inplace", inplace)
    if inplace and (scale is not None or zero_point is not None):
        raise ValueError(f"inplace=True with scale={scale} and zero_point={zero_point}; allowed are both None")
    result = arithmetic.leaky_relu(input, result_qparams(input, scale, zero_point), slope=negative_slope)
    return _written(input, result, inplace)


def hardswish(input: QTensor, scale: Any, zero_point: Any) -> QTensor:
    """x * clip(x + 3, 0, 6) / 6; see `qcore.affine.arithmetic.hardswish`.

    Args:
        input: QTensor.
        scale, zero_point: of the result; None means input's.

    Returns:
        A QTensor of input's shape and integers, with the parameters given.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> hardswish(x, 0.5, 120).dequantize()
        tensor([0., 0., 4.])
    """
    return arithmetic.hardswish(input, result_qparams(input, scale, zero_point))


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
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> hardsigmoid(x)
        QTensor([0.0000, 0.5000, 0.9961], size=(3,), dtype=torch.quint8, scale=0.00390625, zero_point=0)
    """
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
        >>> import torch
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
        >>> import torch
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
        >>> import torch
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
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.0, 4.0]), 0.5, 120, torch.quint8)
        >>> clamp(x, max_=2).dequantize()
        tensor([-4.,  0.,  2.])
    """
    check_flag("inplace", inplace)
    return _written(input, arithmetic.clamp(input, min_, max_), inplace)


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
        >>> import torch
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([-4.0, 0.5, 4.0]), 0.5, 120, torch.quint8)
        >>> threshold(x, 0.5, -1.0).dequantize()
        tensor([-1., -1.,  4.])
    """
    check_flag("inplace", inplace)
    return _written(input, arithmetic.threshold(input, threshold, value), inplace)


def _written(input: QTensor, result: QTensor, inplace: bool) -> QTensor:
    if not inplace:
        return result
    input.values.copy_(result.values)
    return input
