"""Activations of quantized tensors that take the parameters of their result."""

from __future__ import annotations

from typing import Any

from qcore.affine import arithmetic
from qtorch._affine.tensor import QTensor
from qtorch._affine.torch_functions import result_qparams


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
