"""Layers that are quantized as one: a convolution or linear layer, a batch norm, a ReLU, in this order."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import skip_init

from qcore.affine.functional.convolutions import as_convolution
from qtorch._classes import plain_class
from qtorch.nn.qat import settings_of

__all__ = [
    "BNReLU2d",
    "BNReLU3d",
    "ConvBn1d",
    "ConvBn2d",
    "ConvBn3d",
    "ConvBnReLU1d",
    "ConvBnReLU2d",
    "ConvBnReLU3d",
    "ConvReLU1d",
    "ConvReLU2d",
    "ConvReLU3d",
    "Fused",
    "LinearReLU",
]


class Fused(nn.Sequential):
    """A row of layers, of the types in the class's `parts`, with one observer for the result of the last one.

    Attributes that it does not have are the first layer's, for code that reads `conv.stride`.

    Args:
        parts: a module of each type, in order.
        named: further modules, by name.

    Raises:
        TypeError: if a part has a wrong type or name, or the number of parts is wrong.

    Example:
        >>> LinearReLU(nn.Linear(2, 3), nn.ReLU())(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
    """

    parts: ClassVar[dict[str, type[nn.Module]]] = {}

    def __init__(self, *parts: nn.Module, **named: nn.Module) -> None:
        rest = [name for name in [*self.parts][len(parts) :] if name in named]
        modules = *parts, *(named[name] for name in rest)
        if len(rest) < len(named) or [plain_class(module) for module in modules] != [*self.parts.values()]:
            given = [type(part).__name__ for part in parts]
            given += [f"{name}={type(module).__name__}" for name, module in named.items()]
            allowed = [f"{name}: {kind.__name__}" for name, kind in self.parts.items()]
            raise TypeError(f"{type(self).__name__} of ({', '.join(given)}); allowed is ({', '.join(allowed)})")
        super().__init__(*modules)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in ("qconfig", "activation_post_process") or not len(self):
                raise
            return getattr(self[0], name)

    @property
    def has_relu(self) -> bool:
        """True if the last part is a ReLU."""
        return "relu" in self.parts

    def _without_norm(self) -> nn.Sequential:
        """The layers; a batch norm is folded into the convolution before it, with its running statistics."""
        if not {"conv", "bn"} <= self.parts.keys():
            return self
        made: Any = nn.Sequential(folded_layer(self[0], self[1]))
        made.qconfig, made.activation_post_process = self.qconfig, self.activation_post_process
        return made


class LinearReLU(Fused):
    """A `Fused` linear layer with its ReLU."""

    parts: ClassVar = {"linear": nn.Linear, "relu": nn.ReLU}


class ConvReLU1d(Fused):
    """A `Fused` convolution of one dimension with its ReLU."""

    parts: ClassVar = {"conv": nn.Conv1d, "relu": nn.ReLU}


class ConvReLU2d(Fused):
    """A `Fused` convolution of two dimensions with its ReLU."""

    parts: ClassVar = {"conv": nn.Conv2d, "relu": nn.ReLU}


class ConvReLU3d(Fused):
    """A `Fused` convolution of three dimensions with its ReLU."""

    parts: ClassVar = {"conv": nn.Conv3d, "relu": nn.ReLU}


class ConvBn1d(Fused):
    """A `Fused` convolution of one dimension with its batch norm, for training."""

    parts: ClassVar = {"conv": nn.Conv1d, "bn": nn.BatchNorm1d}


class ConvBn2d(Fused):
    """A `Fused` convolution of two dimensions with its batch norm, for training."""

    parts: ClassVar = {"conv": nn.Conv2d, "bn": nn.BatchNorm2d}


class ConvBn3d(Fused):
    """A `Fused` convolution of three dimensions with its batch norm, for training."""

    parts: ClassVar = {"conv": nn.Conv3d, "bn": nn.BatchNorm3d}


class ConvBnReLU1d(Fused):
    """A `Fused` convolution of one dimension with its batch norm and ReLU, for training."""

    parts: ClassVar = {"conv": nn.Conv1d, "bn": nn.BatchNorm1d, "relu": nn.ReLU}


class ConvBnReLU2d(Fused):
    """A `Fused` convolution of two dimensions with its batch norm and ReLU, for training."""

    parts: ClassVar = {"conv": nn.Conv2d, "bn": nn.BatchNorm2d, "relu": nn.ReLU}


class ConvBnReLU3d(Fused):
    """A `Fused` convolution of three dimensions with its batch norm and ReLU, for training."""

    parts: ClassVar = {"conv": nn.Conv3d, "bn": nn.BatchNorm3d, "relu": nn.ReLU}


class BNReLU2d(Fused):
    """A `Fused` batch norm of images with its ReLU."""

    parts: ClassVar = {"batch_norm": nn.BatchNorm2d, "relu": nn.ReLU}


class BNReLU3d(Fused):
    """A `Fused` batch norm of volumes with its ReLU."""

    parts: ClassVar = {"batch_norm": nn.BatchNorm3d, "relu": nn.ReLU}


FUSED = {tuple(kind.parts.values()): kind for kind in Fused.__subclasses__()}


def folded_layer(layer: Any, bn: nn.Module) -> nn.Module:
    """A copy of a convolution or linear layer, without hooks; the batch norm is folded into its weights."""
    made: Any = skip_init(plain_class(layer), **settings_of(layer))
    fold = folded_linear if isinstance(layer, nn.Linear) else folded_conv
    groups: Any = layer.groups if getattr(layer, "transposed", False) else None  # other weights have the outputs first
    with torch.no_grad():
        numbers = layer.weight if groups is None else as_convolution(layer.weight, groups)
        weight, bias = fold(numbers, layer.bias, bn)
        weight = weight if groups is None else as_convolution(weight, groups).contiguous()
    made.weight = nn.Parameter(weight, layer.weight.requires_grad)
    made.bias = nn.Parameter(bias, layer.weight.requires_grad)
    return made.train(layer.training)


def folded_conv(weight: torch.Tensor, bias: torch.Tensor | None, bn: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight (outputs, ...) and bias of a convolution into which a batch norm's running statistics are folded.

    weight * (gamma * rsqrt(var + eps)), (bias - mean) * rsqrt(var + eps) * gamma + beta, in this order, where an absent
    bias is 0, gamma 1 and beta 0.
    """
    gamma, beta, inverse = _parameters(bn)
    folded = weight * (gamma * inverse).reshape(-1, *[1] * (weight.dim() - 1))
    mean: torch.Tensor = bn.running_mean  # type: ignore[assignment]
    shift = ((torch.zeros_like(mean) if bias is None else bias) - mean) * inverse * gamma + beta
    return folded.to(weight.dtype), shift.to(weight.dtype)


def folded_linear(weight: torch.Tensor, bias: torch.Tensor | None, bn: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """`folded_conv` of a linear layer, in torch's order: s = gamma * rsqrt(var + eps), (bias - mean) * s + beta."""
    gamma, beta, inverse = _parameters(bn)
    factor = gamma * inverse
    mean: torch.Tensor = bn.running_mean  # type: ignore[assignment]
    shift = ((torch.zeros_like(mean) if bias is None else bias) - mean) * factor + beta
    return weight * factor.unsqueeze(-1).to(weight.dtype), shift.to(weight.dtype)


def _parameters(bn: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gamma, beta and rsqrt(var + eps)."""
    variance: torch.Tensor = bn.running_var  # type: ignore[assignment]
    gamma = torch.ones_like(variance) if bn.weight is None else bn.weight
    beta = torch.zeros_like(variance) if bn.bias is None else bn.bias
    return gamma, beta, torch.rsqrt(variance + bn.eps)  # type: ignore[return-value, operator]
