"""What all layers that compute with integers are made of: packed weights, the output's parameters, and checks."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import QParams
from qtorch._rounding.packing import pack, unpack
from qtorch.quantization.dtypes import integers
from qtorch.quantization.tensor import QTensor

_BITS = 4  # of integers that share a byte


class QuantizedWeight(torch.nn.Module):
    """The integers of a weight in buffers, which `weight()` gives as a QTensor.

    Integers of at most 4 bits lie two in a byte, along the last dimension, as `qtorch.pack` puts them: the buffer is
    then `packed`, else `int_repr`. The buffers' names are those of quantized tensors in checkpoints.

    Args:
        weight: what it holds.

    Example:
        >>> from qcore.affine import AffineInteger
        >>> from qtorch.quantization import quantize_per_tensor
        >>> weight = QuantizedWeight(quantize_per_tensor(torch.tensor([[-1.0, 0.5]]), 0.5, 0, AffineInteger(-8, 7)))
        >>> weight.packed, weight().int_repr()
        (tensor([[30]], dtype=torch.uint8), tensor([[-2,  1]], dtype=torch.int8))
    """

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
            self.register_buffer("packed", pack(values, _BITS))
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
        values = self._unpacked() if self.is_packed else self.int_repr
        return QTensor(values, qparams_of(self, self.axis), self.form)

    def _unpacked(self) -> torch.Tensor:
        codes, sign = unpack(self.packed, _BITS, self.shape[-1]), 1 << _BITS - 1
        return (codes ^ sign).to(torch.int8) - sign if self.form.signed else codes

    def extra_repr(self) -> str:
        return f"{self.shape}, {self.form}, axis={self.axis}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """A scale for each output is loaded where there was one for all, and the other way round."""
        scale = state_dict.get(prefix + "scale")
        if scale is not None and (scale.ndim == 0 or scale.shape == (self.shape[0],)):
            self.axis = 0 if scale.ndim else None
            self.scale, self.zero_point = (old.new_empty(scale.shape) for old in (self.scale, self.zero_point))
        super()._load_from_state_dict(state_dict, prefix, *others)


class Quantized(torch.nn.Module):
    """A layer whose result has the scale and the zero point in its buffers.

    Args:
        scale, zero_point: of the result.
        form: the result's integers.

    Attributes:
        layer_name: where the layer is in a model, for its errors; `convert` writes it.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    layer_name = ""

    def __init__(self, scale: Any = 1.0, zero_point: Any = 0, form: Any = torch.quint8) -> None:
        super().__init__()
        self.form = integers(form)
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32).reshape(()).clone())
        self.register_buffer("zero_point", torch.as_tensor(zero_point).to(torch.int32).reshape(()).clone())

    @property
    def output(self) -> QParams:
        """The result's parameters."""
        return qparams_of(self)

    def check_input(self, x: Any, name: str = "input") -> None:
        """Raises unless x is a quantized tensor.

        Raises:
            TypeError: if it is something else.
        """
        check_quantized(self, x, name)

    def extra_repr(self) -> str:
        return f"scale={self.scale.item()}, zero_point={self.zero_point.item()}, form={self.form}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in ("scale", "zero_point"):  # of shape (1,) in some of torch's
            if (value := state_dict.get(prefix + name)) is not None and value.numel() == 1:
                state_dict[prefix + name] = value.reshape(())
        super()._load_from_state_dict(state_dict, prefix, *others)


def qparams_of(module: Any, axis: int | None = None) -> QParams:
    """The parameters in a module's buffers; a model's `half()` reaches them."""
    return QParams(module.scale.to(torch.float32), module.zero_point, axis)


def check_quantized(module: torch.nn.Module, x: Any, name: str = "input") -> None:
    """Raises unless a layer's argument is a quantized tensor.

    Raises:
        TypeError: if it is something else; the message says where the layer is, and what to insert before it.
    """
    if not isinstance(x, QTensor):
        place = getattr(module, "layer_name", "") or type(module).__name__
        raise TypeError(
            f"{place}: {name} is a {type(x).__name__}; allowed is a QTensor: insert a QuantStub before this layer "
            "(prepare and convert make it a Quantize), or wrap the model in QuantWrapper"
        )
