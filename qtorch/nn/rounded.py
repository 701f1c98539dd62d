"""Layers that multiply in floats, with weights that lie in memory as the codes of a format, and rounded outputs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from qcore import Number, Rounding
from qtorch._rounding.dispatch import decode, encode, quantize
from qtorch._rounding.packing import pack, unpack
from qtorch.quantization.tensor import QTensor

__all__ = ["CodedWeight", "Dequantized", "RoundedLayer"]


class CodedWeight(nn.Module):
    """A tensor rounded to a format, as its packed codes; for formats without codes, as the rounded numbers.

    Args:
        weight: float32 tensor.
        number: the format.
        rounding: the mode, as for `qtorch.quantize`.

    Example:
        >>> from qtorch import parse
        >>> weight = CodedWeight(torch.tensor([[1.0, -1.2], [0.3, 7.0]]), parse("e2m1fn"))
        >>> weight(), weight.codes
        (tensor([[ 1.0000, -1.0000],
                [ 0.5000,  6.0000]]), tensor([[162],
                [113]], dtype=torch.uint8))
    """

    codes: torch.Tensor

    def __init__(self, weight: torch.Tensor, number: Number, rounding: Rounding | str = "nearest") -> None:
        super().__init__()
        self.number, self.shape, self.bits = number, tuple(weight.shape), _width(number)
        weight = weight.detach()
        scales: list[torch.Tensor] = []
        if self.bits is None:
            codes = quantize(weight, number, rounding)
        else:
            codes = encode(weight, number, rounding)
            if isinstance(codes, tuple):
                codes, found = codes
                scales = list(found) if isinstance(found, tuple) else [found]
            codes = pack(codes, self.bits)
        self.register_buffer("codes", codes)
        self.scales = [f"scales{index}" for index in range(len(scales))]
        for name, scale in zip(self.scales, scales, strict=True):
            self.register_buffer(name, scale)

    def forward(self) -> torch.Tensor:
        """The numbers, in float32."""
        if self.bits is None:
            return self.codes
        scales = tuple(getattr(self, name) for name in self.scales)
        codes = unpack(self.codes, self.bits, self.shape[-1])
        return decode(codes, self.number, scales=scales[0] if len(scales) == 1 else scales or None)

    def extra_repr(self) -> str:
        return f"{self.shape}, {self.number.text}"


def _width(number: Number) -> int | None:
    """How many bits a code has, or None where there are no codes."""
    try:
        return number.bits
    except ValueError:
        return None


class Dequantized(nn.Module):
    """A tensor of float32, or the numbers of one in integers.

    Args:
        weight: a tensor, or a module whose call returns a QTensor.

    Example:
        >>> Dequantized(torch.ones(1))()
        tensor([1.])
    """

    values: torch.Tensor

    def __init__(self, weight: torch.Tensor | nn.Module) -> None:
        super().__init__()
        if isinstance(weight, nn.Module):
            self.integers = weight
        else:
            self.register_buffer("values", weight)

    def forward(self) -> torch.Tensor:
        """The numbers."""
        return self.integers().dequantize() if "integers" in self._modules else self.values


class RoundedLayer(nn.Module):
    """A linear layer or convolution in floats whose weight was rounded once, and whose outputs are rounded.

    Quantized inputs are dequantized.

    Args:
        layer: a linear layer or convolution, whose weight and bias are not used.
        weight: a module whose call returns the weight.
        bias: float32, or None.
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
        self.layer = copy.copy(layer)
        self.layer.__dict__ |= {"_parameters": {}, "_modules": {}, "_buffers": {}}
        self.weight, self.relu, self.output = weight, relu, output
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, input: torch.Tensor | QTensor) -> Any:
        x = input.dequantize() if isinstance(input, QTensor) else input
        weight = self.weight()
        if isinstance(self.layer, nn.Linear):
            result = nn.functional.linear(x, weight, self.bias)
        else:
            result = self.layer._conv_forward(x, weight, self.bias)  # type: ignore[operator]
        return self.output(torch.relu(result) if self.relu else result)
