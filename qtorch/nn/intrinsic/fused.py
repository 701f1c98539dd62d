"""Layers that are quantized as one: a convolution or linear layer, a batch norm, a ReLU, in this order."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import nn


class Fused(nn.Sequential):
    """Layers, of the types that the class names, which one observer sees as a whole.

    Args:
        parts: a module of each type, in order.

    Raises:
        TypeError: if a part has another type, or there are too many or too few.

    Example:
        >>> LinearReLU(nn.Linear(2, 3), nn.ReLU())(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
    """

    parts: ClassVar[tuple[type[nn.Module], ...]] = ()

    def __init__(self, *parts: nn.Module) -> None:
        types = tuple(map(type, parts))
        if types != self.parts:
            given, allowed = (", ".join(kind.__name__ for kind in kinds) for kinds in (types, self.parts))
            raise TypeError(f"{type(self).__name__} of ({given}); allowed are exactly ({allowed})")
        super().__init__(*parts)

    @property
    def has_relu(self) -> bool:
        """True if the last part is a ReLU."""
        return nn.ReLU in self.parts

    def without_norm(self) -> Fused:
        """The same with a batch norm's running statistics in the convolution before it, if there are both."""
        if len(self.parts) == 1 or not issubclass(self.parts[0], nn.modules.conv._ConvNd) or self.parts[1] is nn.ReLU:
            return self
        made = copy.copy(self)
        made._modules = self._modules | {"0": folded_layer(self[0], self[1]), "1": nn.Identity()}
        return made


class LinearReLU(Fused):
    """A linear layer and its ReLU."""

    parts = nn.Linear, nn.ReLU


class ConvReLU1d(Fused):
    """A convolution and its ReLU."""

    parts = nn.Conv1d, nn.ReLU


class ConvReLU2d(Fused):
    """A convolution and its ReLU."""

    parts = nn.Conv2d, nn.ReLU


class ConvReLU3d(Fused):
    """A convolution and its ReLU."""

    parts = nn.Conv3d, nn.ReLU


class ConvBn1d(Fused):
    """A convolution and its batch norm, for training."""

    parts = nn.Conv1d, nn.BatchNorm1d


class ConvBn2d(Fused):
    """A convolution and its batch norm, for training."""

    parts = nn.Conv2d, nn.BatchNorm2d


class ConvBn3d(Fused):
    """A convolution and its batch norm, for training."""

    parts = nn.Conv3d, nn.BatchNorm3d


class ConvBnReLU1d(Fused):
    """A convolution, its batch norm and ReLU, for training."""

    parts = nn.Conv1d, nn.BatchNorm1d, nn.ReLU


class ConvBnReLU2d(Fused):
    """A convolution, its batch norm and ReLU, for training."""

    parts = nn.Conv2d, nn.BatchNorm2d, nn.ReLU


class ConvBnReLU3d(Fused):
    """A convolution, its batch norm and ReLU, for training."""

    parts = nn.Conv3d, nn.BatchNorm3d, nn.ReLU


class BNReLU2d(Fused):
    """A batch norm and its ReLU."""

    parts = nn.BatchNorm2d, nn.ReLU


class BNReLU3d(Fused):
    """A batch norm and its ReLU."""

    parts = nn.BatchNorm3d, nn.ReLU


FUSED = {
    kind.parts: kind
    for kind in (
        LinearReLU,
        *(ConvReLU1d, ConvReLU2d, ConvReLU3d, BNReLU2d, BNReLU3d),
        *(ConvBn1d, ConvBn2d, ConvBn3d, ConvBnReLU1d, ConvBnReLU2d, ConvBnReLU3d),
    )
}


def folded_layer(layer: nn.Module, bn: nn.Module) -> nn.Module:
    """A copy of a convolution or linear layer, without hooks, with the batch norm in its weights."""
    made: Any = copy.deepcopy(layer)
    for hooks in (made._forward_pre_hooks, made._forward_hooks):
        hooks.clear()
    fold = folded_linear if isinstance(layer, nn.Linear) else folded_conv
    with torch.no_grad():
        weight, bias = fold(made.weight, made.bias, bn)
    made.weight = nn.Parameter(weight, made.weight.requires_grad)
    made.bias = nn.Parameter(bias, made.weight.requires_grad)
    return made


def folded_conv(weight: torch.Tensor, bias: torch.Tensor | None, bn: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight and bias of a convolution that has a batch norm's running statistics in it.

    weight * (gamma * rsqrt(var + eps)), (bias - mean) * rsqrt(var + eps) * gamma + beta, in this order, where an absent
    bias is 0, gamma 1 and beta 0.

    Args:
        weight: of shape (outputs, ...).
        bias: of shape (outputs,), or None.
        bn: a batch norm with running statistics.
    """
    gamma, beta, inverse = _parameters(bn)
    folded = weight * (gamma * inverse).reshape(-1, *[1] * (weight.dim() - 1))
    mean: torch.Tensor = bn.running_mean  # type: ignore[assignment]
    shift = ((torch.zeros_like(mean) if bias is None else bias) - mean) * inverse * gamma + beta
    return folded.to(weight.dtype), shift.to(weight.dtype)


def folded_linear(weight: torch.Tensor, bias: torch.Tensor | None, bn: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for a linear layer, in torch's other order: s = gamma * rsqrt(var + eps), (bias - mean) * s + beta."""
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
