"""Float layers whose weights are stored as codes of a format, and whose outputs are rounded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qcore.lazy import public_names
from qtorch._affine.dtypes import FixedDtypes
from qtorch._affine.tensor import QTensor
from qtorch._classes import change_class
from qtorch._conversion import converted, result_dtype
from qtorch.nn.qat import convolve, settings_of
from qtorch.nn.quantized.weights import CodedWeight, Dequantized, Weight, in_float32

__all__ = ["CodedWeight", "Dequantized", "RoundedLayer"]
__dir__ = public_names(__name__)


class RoundedLayer(FixedDtypes):
    """A linear layer or convolution in floats whose weight was rounded once, and whose outputs are rounded.

    Quantized inputs are dequantized.

    Args:
        layer: a linear layer or convolution, whose weight and bias are not used.
        weight: a module whose call returns the weight.
        bias: floats, or None; `convert` gives it the model's dtype, and sums are float32's.
        relu: whether a ReLU follows.
        output: a module that rounds the result.

    Example:
        >>> from qtorch import parse
        >>> weight = CodedWeight(torch.tensor([[1.0, 0.3]]), parse("e2m1fn"))
        >>> layer = RoundedLayer(nn.Linear(2, 1), weight, None, True, nn.Identity())
        >>> layer(torch.tensor([[1.0, 2.0]]))
        tensor([[2.]])
    """

    bias: torch.Tensor | None

    def __init__(
        self, layer: nn.Module, weight: nn.Module, bias: torch.Tensor | None, relu: bool, output: nn.Module
    ) -> None:
        super().__init__()
        self.settings = settings_of(layer)
        self.weight, self.relu, self.output = weight, relu, output
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, input: torch.Tensor | QTensor) -> torch.Tensor | QTensor:
        """The rounded result, in the input's dtype, or autocast's; sums are float32's."""
        x = input.dequantize() if isinstance(input, (QTensor, Weight)) else input
        weight, bias, given = self.weight(), in_float32(self.bias), result_dtype(x, x.dtype)
        x = converted(x, weight.dtype)
        if weight.dim() == 2:
            result = nn.functional.linear(x, weight, bias)
        else:
            result = convolve(x, weight, bias, self.settings)
        return self.output(converted(torch.relu(result) if self.relu else result, given))


def with_weight(layer: nn.Module, weight: nn.Module) -> nn.Module:
    """Replaces a layer's weight: from now on its attribute `weight` is the numbers of a module.

    The module is the layer's child `rounded_weight`.

    Args:
        layer: changed in place.
        weight: a module whose call returns the numbers.

    Example:
        >>> from qtorch import parse
        >>> layer = nn.PReLU(init=0.3)
        >>> with_weight(layer, CodedWeight(layer.weight, parse("e2m1fn")))(torch.tensor([-1.0]))
        tensor([-0.5000])
    """
    del layer.weight
    layer.add_module("rounded_weight", weight)
    change_class(layer, "weight", _reading_weight)
    return layer


def _reading_weight(base: type) -> dict[str, Any]:
    """A property `weight` that returns the numbers, in the dtype of the parameter that it replaces."""
    return {"weight": property(lambda self: self.rounded_weight.numbers())}
