"""Activations of quantized tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import torch

from qcore.affine import AffineInteger, functional
from qcore.arguments import check_flag, check_size
from qtorch._affine.elementwise import relu, relu6
from qtorch._affine.tensor import QTensor
from qtorch._torch_internals import Unscripted
from qtorch.nn.quantized.base import FunctionLayer, check_quantized
from qtorch.nn.quantized.weights import QuantizedWeight, check_weight, empty_weight, output_of, weight_of

__all__ = ["ELU", "Hardswish", "LeakyReLU", "PReLU", "ReLU", "ReLU6", "Sigmoid"]


class ReLU(Unscripted, torch.nn.Module):
    """max(x, 0); the result has the input's parameters.

    Args:
        inplace: whether the result is written over the input.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> ReLU()(quantize_per_tensor(torch.tensor([-4.0, 0.0, 8.0]), 0.5, 120, torch.quint8)).dequantize()
        tensor([0., 0., 8.])
    """

    layer_name = ""
    _function: ClassVar[Callable[..., QTensor]] = staticmethod(relu)

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        check_flag("inplace", inplace)
        self.inplace = inplace

    def forward(self, input: QTensor) -> QTensor:
        """The result; raises TypeError if input is not a QTensor."""
        check_quantized(self, input)
        return self._function(input, self.inplace)

    def extra_repr(self) -> str:
        return f"inplace={self.inplace}"

    @classmethod
    def from_float(cls, mod: torch.nn.ReLU | torch.nn.ReLU6) -> Self:
        """The same layer for quantized tensors."""
        return cls(mod.inplace)


class ReLU6(ReLU):
    """x clamped between 0 and the quantized 6; arguments and parameters are those of `ReLU`.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> ReLU6()(
        ...     quantize_per_tensor(torch.tensor([-4.0, 0.0, 8.0]), 0.5, 120, torch.quint8)
        ... ).dequantize()
        tensor([0., 0., 6.])
    """

    _function: ClassVar[Callable[..., QTensor]] = staticmethod(relu6)


class ELU(FunctionLayer):
    law = "elu"

    def __init__(
        self,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        alpha: float = 1.0,
        *,
        form: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        super().__init__(scale, zero_point, form)
        self.alpha = alpha


class LeakyReLU(FunctionLayer):
    law = "leaky_relu"

    def __init__(
        self,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        negative_slope: float = 0.01,
        *,
        form: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        super().__init__(scale, zero_point, form)
        self.negative_slope = negative_slope


class Hardswish(FunctionLayer):
    law = "hardswish"


class Sigmoid(FunctionLayer):
    law = "sigmoid"


class PReLU(FunctionLayer):
    """x where it is above 0, else x * w, with a quantized slope w for all or for each channel.

    Args:
        scale, zero_point: of the result.
        num_parameters: the number of slopes: 1, or the number of channels (the second dimension).
        form: the result's integers.
        dtype: of the slopes' integers: torch.qint8, or an `AffineInteger` of up to 16 bits.

    Attributes:
        weight: `weight()` is the quantized tensor of slopes, of shape (num_parameters,).

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> layer = PReLU(0.5, 120)
        >>> layer.set_weight(quantize_per_tensor(torch.tensor([0.25]), 0.25, 0, torch.qint8))
        >>> layer(quantize_per_tensor(torch.tensor([-4.0, 0.0, 8.0]), 0.5, 120, torch.quint8)).dequantize()
        tensor([-1.,  0.,  8.])
    """

    def __init__(
        self,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        num_parameters: int = 1,
        *,
        form: torch.dtype | AffineInteger = torch.quint8,
        dtype: torch.dtype | AffineInteger = torch.qint8,
    ) -> None:
        super().__init__(scale, zero_point, form)
        self.num_parameters = check_size("num_parameters", num_parameters)
        self.weight = QuantizedWeight(empty_weight((num_parameters,), dtype))

    def _function(self, input: QTensor) -> QTensor:
        return functional.prelu(input, self.weight(), self.output, self.form)

    def _of_numbers(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.prelu(x, self.weight().dequantize())

    def set_weight(self, weight: QTensor) -> None:
        """Replaces the slopes; raises TypeError or ValueError if weight has another type or shape."""
        check_weight(self, weight)
        self.weight = QuantizedWeight(weight)

    @classmethod
    def from_float(cls, mod: torch.nn.PReLU) -> Self:
        scale, zero_point, form = output_of(mod)
        weight = weight_of(mod, mod.weight.detach().to(torch.float32))
        layer = cls(scale, zero_point, mod.num_parameters, form=form, dtype=weight.form)
        layer.set_weight(weight)
        return layer
