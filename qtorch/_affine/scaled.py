"""Rounding to a format with a given scale; the law is `qcore.linalg.scaling.round_scaled`."""

from __future__ import annotations

from typing import Any

import torch

from qcore import BlockScaled, Number
from qcore.formats.block import check_element
from qcore.formats.number import check_number
from qcore.linalg.scaling import round_scaled, scale_for
from qtorch._affine import exported
from qtorch._affine.dtypes import FixedDtypes
from qtorch._rounding.dense import listed
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.gradients import for_transforms
from qtorch.linalg.namespace import Float64


def run_round_scaled(x: torch.Tensor, scale: torch.Tensor, number: str, axis: int) -> torch.Tensor:
    """A tensor rounded to the nearest numbers of a format times a scale, in the tensor's dtype."""
    scale = scale.reshape(-1, *[1] * (x.dim() - 1 - axis)) if scale.numel() > 1 else scale.reshape(())
    element = check_element(check_number(number))
    found = round_scaled(Float64, x.to(torch.float32), scale, element, lambda y, form: quantize(y, form, "nearest"))
    return found.to(x.dtype)


def round_scaled_shape(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """A tensor of the result's shape and dtype."""
    return torch.empty_like(x)


class _StraightThrough(torch.autograd.Function):
    """(x, scale, format as text, axis) -> x rounded; gradients pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, scale: torch.Tensor, number: str, axis: int) -> torch.Tensor:
        return torch.ops.qtorch.round_scaled(x, scale, number, axis)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:  # type: ignore[override]
        return tangent.clone()


def check_scaled(number: Any) -> Number:
    """A format that may have a scale in float32, given as an object or as text."""
    number = check_number(number)
    return BlockScaled(number, {...: None}, scale="float32") and number


def round_with_scale(x: torch.Tensor, scale: torch.Tensor, number: Number, axis: int) -> torch.Tensor:
    """x rounded to a format times a scale, or one for each index along the axis; gradients pass straight through."""
    if scale.numel() > 1 and (x.dim() <= axis or x.shape[axis] != scale.numel()):
        raise ValueError(f"x has shape {tuple(x.shape)}; allowed are {scale.numel()} channels along dimension {axis}")
    if exported.is_wanted():
        return exported.scaled(x, scale, number.text, axis)
    return for_transforms(_StraightThrough, _StraightThrough)(x, scale.to(torch.float32), number.text, axis)


def scale_of_range(low: torch.Tensor, high: torch.Tensor, number: Number) -> torch.Tensor:
    """The scale with which a format's largest number is the larger magnitude of a range's ends."""
    return scale_for(Float64, torch.maximum(low.abs(), high.abs()).to(torch.float32), check_element(number))


class ScaledRounding(FixedDtypes):
    """Rounds tensors to a format with a scale that calibration, or training, has chosen.

    Args:
        number: the format.
        scale: float32 of shape (1,), or (channels,).
        axis: the dimension of the channels.

    Example:
        >>> from qtorch import parse
        >>> ScaledRounding(parse("e4m3fn"), torch.tensor([2.0]))(torch.tensor([1.3, 2000.0]))
        tensor([  1.2500, 896.0000])
    """

    scale: torch.Tensor

    def __init__(self, number: Number, scale: torch.Tensor, axis: int = 0) -> None:
        super().__init__()
        self.number, self.axis = number, axis
        self.register_buffer("scale", scale.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x rounded."""
        return round_with_scale(x, self.scale, self.number, self.axis)

    def extra_repr(self) -> str:
        return f"{self.number.text}, scale={listed(self.scale)}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        if (scale := state_dict.get(prefix + "scale")) is not None:  # without a dimension in JAX
            state_dict[prefix + "scale"] = scale.reshape(-1)
            self.scale = self.scale.new_empty(scale.numel())
        super()._load_from_state_dict(state_dict, prefix, *others)
