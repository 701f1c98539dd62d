"""Layers that quantize floats, and that dequantize integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch

from qcore.affine import AffineInteger
from qtorch._affine.conversion import quantize, quantize_to
from qtorch._affine.dtypes import integers
from qtorch._affine.tensor import QTensor
from qtorch._conversion import converted, result_dtype
from qtorch._torch_internals import Unscripted
from qtorch.nn.quantized.base import Quantized, check_quantized, layer_name
from qtorch.nn.quantized.weights import Weight, output_of

__all__ = ["DeQuantize", "Quantize"]


class Quantize(Quantized):
    """Quantizes a float tensor with fixed parameters (`qcore.affine.quantize_affine`).

    Args:
        scale, zero_point: of the result.
        dtype: of the result's integers: torch.quint8, or an `AffineInteger`.

    Example:
        >>> Quantize(0.5, 1, torch.quint8)(torch.tensor([0.0, 1.0]))
        QTensor([0., 1.], size=(2,), dtype=torch.quint8, scale=0.5, zero_point=1)
    """

    def __init__(
        self,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        dtype: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        super().__init__(scale, zero_point, integers(dtype))

    def forward(self, x: torch.Tensor) -> QTensor:
        """The quantized tensor of one of float32, float16, bfloat16 or float64; raises TypeError for others."""
        if isinstance(x, QTensor):
            raise TypeError(
                f"{layer_name(self)}: x is a QTensor; allowed is a tensor of floats: insert a DeQuantStub, or leave "
                "this QuantStub out"
            )
        if isinstance(x, Weight):  # code that calls a layer with another layer's weight
            x = x.numbers()
        if torch.compiler.is_dynamo_compiling():
            return QTensor(quantize(x, self.output, self.form), self.output, self.form)
        output = self.checked_output()
        return QTensor._made(quantize_to(x, output, self.form), output, self.form)

    @classmethod
    def from_float(cls, mod: torch.nn.Module) -> Self:
        return cls(*output_of(mod))


class DeQuantize(Unscripted, torch.nn.Module):
    """Dequantizes a quantized tensor, to float32 by default.

    Attributes:
        dtype: of the result; `convert` writes the dtype of the float layer's parameters, and `half()` of the model
            changes it.

    Example:
        >>> DeQuantize()(Quantize(0.5, 1)(torch.tensor([0.0, 1.0])))
        tensor([0., 1.])
    """

    layer_name = ""
    dtype: torch.dtype = torch.float32

    def forward(self, x: QTensor) -> torch.Tensor:
        """The numbers; raises TypeError if x is not a QTensor."""
        check_quantized(self, x, "x")
        # Layers in integers give images with channels last; code behind floats takes views that need torch's order.
        y = x.contiguous().dequantize()
        return converted(y, result_dtype(y, self.dtype))

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(fn, recurse)

    @classmethod
    def from_float(cls, mod: torch.nn.Module) -> Self:
        """The layer that replaces a `DeQuantStub`."""
        return cls()
