"""Activations of quantized tensors that take the parameters of their result."""

from __future__ import annotations

from typing import Any

from qcore.affine import arithmetic
from qcore.arguments import check_flag
from qtorch.nn.quantized.functional.convolutions import result_qparams
from qtorch.quantization.tensor import QTensor
from qtorch.quantization.torch_functions import written


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
    return written(input, result, inplace)


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
