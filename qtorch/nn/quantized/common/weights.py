"""Quantized weights in buffers, and what layers do with them."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from qcore.affine import QParams
from qtorch._rounding.packing import pack, unpack
from qtorch.nn.quantized.common.base import qparams_of
from qtorch.quantization.dtypes import FixedDtypes, integers
from qtorch.quantization.tensor import QTensor

_BITS = 4  # of integers that share a byte


class QuantizedWeight(FixedDtypes):
    """The integers of a weight in buffers, which `weight()` gives as a QTensor.

    Integers of at most 4 bits lie two in a byte, each output's in a row, as `qtorch.pack` puts them: the buffer is then
    `packed`, of shape (outputs, bytes), else `int_repr`. The buffers' names are those of quantized tensors in
    checkpoints.

    Args:
        weight: what it holds.

    Example:
        >>> from qcore.affine import AffineInteger
        >>> from qtorch.quantization import quantize_per_tensor
        >>> weight = QuantizedWeight(quantize_per_tensor(torch.tensor([[-1.0, 0.5]]), 0.5, 0, AffineInteger(-8, 7)))
        >>> weight.packed, weight().int_repr()
        (tensor([[30]], dtype=torch.uint8), tensor([[-2,  1]], dtype=torch.int8))
    """

    channels = 0  # along which dimension scales lie, if there are several
    packed: torch.Tensor
    int_repr: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(self, weight: QTensor) -> None:
        super().__init__()
        self.form, self.shape, self.axis = weight.form, tuple(weight.shape), weight.qparams.axis
        least = -(1 << _BITS - 1) if self.form.signed else 0
        self.is_packed = least <= self.form.qmin and self.form.qmax < least + (1 << _BITS)
        values = weight.values.contiguous()
        if self.is_packed:
            self.register_buffer("packed", pack(values.reshape(len(values), -1), _BITS))
        else:
            self.register_buffer("int_repr", values)
        self.register_buffer("scale", weight.qparams.scale)
        self.register_buffer("zero_point", weight.qparams.zero_point)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        """torch's functions have no such weights; that they ask keeps its fast paths for encoders away."""
        raise TypeError(f"{function.__name__} of a quantized weight; allowed is weight().dequantize()")

    def forward(self) -> QTensor:
        """The weight."""
        values = self._unpacked(self.packed) if self.is_packed else self.int_repr
        return QTensor(values, qparams_of(self, self.axis), self.form)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Some rows of the weight as numbers, in float32."""
        if self.is_packed:
            chosen = self._unpacked(self.packed[indices].reshape(-1, self.packed.shape[1]))
            values = chosen.reshape(*indices.shape, self.shape[1])
        else:
            values = self.int_repr[indices]
        zero, scale = self.zero_point, self.scale
        if self.axis is not None:
            zero, scale = (parameter[indices].unsqueeze(-1) for parameter in (zero, scale))
        return (values.to(torch.int32) - zero).to(torch.float32) * scale

    def _unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        codes, sign = unpack(packed, _BITS, prod(self.shape[1:])), 1 << _BITS - 1
        codes = codes.reshape(-1, *self.shape[1:])
        return (codes ^ sign).to(torch.int8) - sign if self.form.signed else codes

    def extra_repr(self) -> str:
        return f"{self.shape}, {self.form}, axis={self.axis}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """A scale for each output is loaded where there was one for all, and the other way round; no floats."""
        name = "packed" if self.is_packed else "int_repr"
        found, own = state_dict.get(prefix + name), getattr(self, name)
        if found is not None and found.dtype != own.dtype:
            others[-1].append(f"{prefix}{name} has dtype {found.dtype}; allowed is {own.dtype}")
            return
        scale = state_dict.get(prefix + "scale")
        if scale is not None and (scale.ndim == 0 or scale.shape == (self.shape[self.channels],)):
            self.axis = self.channels if scale.ndim else None
            self.scale, self.zero_point = (old.new_empty(scale.shape) for old in (self.scale, self.zero_point))
        super()._load_from_state_dict(state_dict, prefix, *others)


def empty_weight(shape: tuple[int, ...], dtype: Any) -> QTensor:
    """A weight of zeros."""
    form = integers(dtype)
    values = torch.zeros(shape, dtype=getattr(torch, form.storage))
    return QTensor(values, QParams(torch.tensor(1.0), torch.tensor(0, dtype=torch.int32)), form)


def set_weight(layer: Any, weight: QTensor) -> None:
    """Replaces a layer's weight by another of the same shape."""
    check_weight(layer, weight)
    layer.weight = QuantizedWeight(weight)


def set_weight_bias(layer: Any, weight: QTensor, bias: torch.Tensor | None) -> None:
    """Replaces a layer's weight and bias by others of the same shape."""
    check_weight(layer, weight)
    if bias is not None and (bias.dtype is not torch.float32 or bias.shape != weight.shape[:1]):
        raise ValueError(f"bias is {bias.dtype} of shape {tuple(bias.shape)}; allowed is float32 of ({len(weight)},)")
    layer.weight = QuantizedWeight(weight)
    layer.bias = bias


def check_weight(layer: Any, weight: Any) -> None:
    """Raises unless a weight can take the place of a layer's."""
    if not isinstance(weight, QTensor):
        raise TypeError(f"weight is a {type(weight).__name__}; allowed is a QTensor")
    if tuple(weight.shape) != layer.weight.shape:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; allowed is {layer.weight.shape}")


def finish(
    layer: Any, weight: QTensor, bias: torch.Tensor | None, scale: torch.Tensor, zero_point: torch.Tensor
) -> None:
    """Gives a new layer its weight, its bias and the parameters of its result."""
    set_weight_bias(layer, weight, bias)
    layer.scale, layer.zero_point = scale.clone(), zero_point.clone()
