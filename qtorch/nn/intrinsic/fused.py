"""Layers that are quantized as one: a convolution or linear layer, a batch norm, a ReLU, in this order."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils import skip_init

from qtorch.nn.qat.layers import settings_of


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

    def without_norm(self) -> nn.Sequential:
        """The same with a batch norm's running statistics in the convolution before it, if there are both."""
        if self.parts[0] not in (nn.Conv1d, nn.Conv2d, nn.Conv3d) or self.parts[1] is nn.ReLU:
            return self
        made: Any = nn.Sequential(folded_layer(self[0], self[1]))
        made.qconfig, made.activation_post_process = self.qconfig, self.activation_post_process
        return made


class LinearReLU(Fused):
    """A linear layer and its ReLU.

    Args:
        parts: a `torch.nn.Linear` and a `torch.nn.ReLU`.

    Example:
        >>> LinearReLU(nn.Linear(2, 3), nn.ReLU())(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
    """

    parts = nn.Linear, nn.ReLU


class ConvReLU1d(Fused):
    """A convolution and its ReLU.

    Args:
        parts: a `torch.nn.Conv1d` and a `torch.nn.ReLU`.

    Example:
        >>> ConvReLU1d(nn.Conv1d(2, 3, 2), nn.ReLU())(torch.zeros(1, 2, 4)).shape
        torch.Size([1, 3, 3])
    """

    parts = nn.Conv1d, nn.ReLU


class ConvReLU2d(Fused):
    """A convolution and its ReLU.

    Args:
        parts: a `torch.nn.Conv2d` and a `torch.nn.ReLU`.

    Example:
        >>> ConvReLU2d(nn.Conv2d(2, 3, 2), nn.ReLU())(torch.zeros(1, 2, 4, 4)).shape
        torch.Size([1, 3, 3, 3])
    """

    parts = nn.Conv2d, nn.ReLU


class ConvReLU3d(Fused):
    """A convolution and its ReLU.

    Args:
        parts: a `torch.nn.Conv3d` and a `torch.nn.ReLU`.

    Example:
        >>> ConvReLU3d(nn.Conv3d(2, 3, 2), nn.ReLU())(torch.zeros(1, 2, 4, 4, 4)).shape
        torch.Size([1, 3, 3, 3, 3])
    """

    parts = nn.Conv3d, nn.ReLU


class ConvBn1d(Fused):
    """A convolution and its batch norm, for training.

    Args:
        parts: a `torch.nn.Conv1d` and a `torch.nn.BatchNorm1d`.

    Example:
        >>> ConvBn1d(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3))(torch.zeros(1, 2, 4)).shape
        torch.Size([1, 3, 3])
    """

    parts = nn.Conv1d, nn.BatchNorm1d


class ConvBn2d(Fused):
    """A convolution and its batch norm, for training.

    Args:
        parts: a `torch.nn.Conv2d` and a `torch.nn.BatchNorm2d`.

    Example:
        >>> ConvBn2d(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3))(torch.zeros(1, 2, 4, 4)).shape
        torch.Size([1, 3, 3, 3])
    """

    parts = nn.Conv2d, nn.BatchNorm2d


class ConvBn3d(Fused):
    """A convolution and its batch norm, for training.

    Args:
        parts: a `torch.nn.Conv3d` and a `torch.nn.BatchNorm3d`.

    Example:
        >>> ConvBn3d(nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3))(torch.zeros(1, 2, 4, 4, 4)).shape
        torch.Size([1, 3, 3, 3, 3])
    """

    parts = nn.Conv3d, nn.BatchNorm3d


class ConvBnReLU1d(Fused):
    """A convolution, its batch norm and ReLU, for training.

    Args:
        parts: a `torch.nn.Conv1d`, a `torch.nn.BatchNorm1d` and a `torch.nn.ReLU`.

    Example:
        >>> ConvBnReLU1d(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.ReLU())(torch.zeros(1, 2, 4)).shape
        torch.Size([1, 3, 3])
    """

    parts = nn.Conv1d, nn.BatchNorm1d, nn.ReLU


class ConvBnReLU2d(Fused):
    """A convolution, its batch norm and ReLU, for training.

    Args:
        parts: a `torch.nn.Conv2d`, a `torch.nn.BatchNorm2d` and a `torch.nn.ReLU`.

    Example:
        >>> ConvBnReLU2d(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU())(torch.zeros(1, 2, 4, 4)).shape
        torch.Size([1, 3, 3, 3])
    """

    parts = nn.Conv2d, nn.BatchNorm2d, nn.ReLU


class ConvBnReLU3d(Fused):
    """A convolution, its batch norm and ReLU, for training.

    Args:
        parts: a `torch.nn.Conv3d`, a `torch.nn.BatchNorm3d` and a `torch.nn.ReLU`.

    Example:
        >>> ConvBnReLU3d(nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), nn.ReLU())(torch.zeros(1, 2, 4, 4, 4)).shape
        torch.Size([1, 3, 3, 3, 3])
    """

    parts = nn.Conv3d, nn.BatchNorm3d, nn.ReLU


class BNReLU2d(Fused):
    """A batch norm and its ReLU.

    Args:
        parts: a `torch.nn.BatchNorm2d` and a `torch.nn.ReLU`.

    Example:
        >>> BNReLU2d(nn.BatchNorm2d(3), nn.ReLU())(torch.zeros(1, 3, 4, 4)).shape
        torch.Size([1, 3, 4, 4])
    """

    parts = nn.BatchNorm2d, nn.ReLU


class BNReLU3d(Fused):
    """A batch norm and its ReLU.

    Args:
        parts: a `torch.nn.BatchNorm3d` and a `torch.nn.ReLU`.

    Example:
        >>> BNReLU3d(nn.BatchNorm3d(3), nn.ReLU())(torch.zeros(1, 3, 4, 4, 4)).shape
        torch.Size([1, 3, 4, 4, 4])
    """

    parts = nn.BatchNorm3d, nn.ReLU


FUSED = {
    kind.parts: kind
    for kind in (
        LinearReLU,
        *(ConvReLU1d, ConvReLU2d, ConvReLU3d, BNReLU2d, BNReLU3d),
        *(ConvBn1d, ConvBn2d, ConvBn3d, ConvBnReLU1d, ConvBnReLU2d, ConvBnReLU3d),
    )
}


def folded_layer(layer: Any, bn: nn.Module) -> nn.Module:
    """A copy of a convolution or linear layer, without hooks, with the batch norm in its weights."""
    made: Any = skip_init(type(layer), **settings_of(layer))
    fold = folded_linear if isinstance(layer, nn.Linear) else folded_conv
    with torch.no_grad():
        weight, bias = fold(layer.weight, layer.bias, bn)
    made.weight = nn.Parameter(weight, layer.weight.requires_grad)
    made.bias = nn.Parameter(bias, layer.weight.requires_grad)
    return made.train(layer.training)


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
