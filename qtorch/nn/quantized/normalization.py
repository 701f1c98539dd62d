"""Normalisation of quantized tensors; the law is `qcore.affine.functional`'s."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch

from qcore.affine import AffineInteger, functional
from qcore.arguments import check_flag, check_size, check_type
from qtorch._affine.tensor import QTensor
from qtorch._rounding.dense import check_dense
from qtorch.nn.quantized.base import FunctionLayer
from qtorch.nn.quantized.weights import in_float32, output_of

__all__ = [
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
]


def _float32(name: str, x: Any) -> torch.Tensor | None:
    """A copy of a tensor of floats in float32; None of None."""
    if x is None:
        return None
    check_type(name, x, torch.Tensor, "a torch.Tensor of floats, and None")
    check_dense(name, x)
    if not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}; allowed are floats")
    return x.detach().to(torch.float32).clone()


class _Norm(FunctionLayer):
    """Normalisation by the statistics of each example, with a weight and a bias, or neither."""

    weight: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        eps: float,
        has_weight: bool,
        form: torch.dtype | AffineInteger,
    ) -> None:
        super().__init__(scale, zero_point, form)
        self.eps = eps
        self.register_buffer("weight", _float32("weight", weight) if has_weight else None)
        self.register_buffer("bias", _float32("bias", bias) if has_weight else None)


class LayerNorm(_Norm):
    """`torch.nn.LayerNorm` of quantized tensors (`qcore.affine.functional.layer_norm`).

    Args:
        normalized_shape: the sizes of the last dimensions.
        weight, bias: tensors of these sizes, or None.
        scale, zero_point: of the result.
        eps: added to variances.
        elementwise_affine: False for neither weight nor bias.
        form: the result's integers.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[0.0, 1.0, 2.0]]), 0.1, 7, torch.quint8)
        >>> LayerNorm(3, None, None, 0.1, 100)(x).int_repr()
        tensor([[ 88, 100, 112]], dtype=torch.uint8)
    """

    settings: ClassVar = ("normalized_shape", "weight", "bias", "eps", "elementwise_affine")

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        *,
        form: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        check_flag("elementwise_affine", elementwise_affine)
        super().__init__(weight, bias, scale, zero_point, eps, elementwise_affine, form)
        several = isinstance(normalized_shape, (tuple, list, torch.Size))
        self.normalized_shape = tuple(normalized_shape) if several else (normalized_shape,)
        self.elementwise_affine = elementwise_affine

    def _function(self, input: QTensor) -> QTensor:
        settings = self.normalized_shape, in_float32(self.weight), in_float32(self.bias), self.eps
        return functional.layer_norm(input, *settings, self.output, self.form)

    def _of_numbers(self, x: torch.Tensor) -> torch.Tensor:
        settings = self.normalized_shape, in_float32(self.weight), in_float32(self.bias), self.eps
        return torch.nn.functional.layer_norm(x, *settings)


class GroupNorm(_Norm):
    """`torch.nn.GroupNorm` of quantized tensors (`qcore.affine.functional.group_norm`).

    Args:
        num_groups, num_channels: the numbers of groups and of channels.
        weight, bias: tensors of shape (num_channels,), or None.
        scale, zero_point: of the result.
        eps: added to variances.
        affine: False for neither weight nor bias.
        form: the result's integers.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([[1.0, 3.0, 5.0, 9.0]]), 0.5, 0, torch.quint8)
        >>> # two groups of two channels
        >>> GroupNorm(2, 4, None, None, 0.5, 100, affine=False)(x).dequantize()
        tensor([[-1.,  1., -1.,  1.]])
    """

    settings: ClassVar = ("num_groups", "num_channels", "weight", "bias", "eps", "affine")

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        form: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        check_flag("affine", affine)
        super().__init__(weight, bias, scale, zero_point, eps, affine, form)
        self.num_groups = check_size("num_groups", num_groups)
        self.num_channels = check_size("num_channels", num_channels)

    def _function(self, input: QTensor) -> QTensor:
        affine = in_float32(self.weight), in_float32(self.bias)
        return functional.group_norm(input, self.num_groups, *affine, self.eps, self.output, self.form)

    def _of_numbers(self, x: torch.Tensor) -> torch.Tensor:
        affine = in_float32(self.weight), in_float32(self.bias)
        return torch.nn.functional.group_norm(x, self.num_groups, *affine, self.eps)


class _InstanceNorm(GroupNorm):
    """Normalisation of each channel of each example: each channel is one group."""

    settings: ClassVar = ("num_features", "weight", "bias", "eps", "momentum", "affine", "track_running_stats")

    def __init__(
        self,
        num_features: int,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: float | torch.Tensor,
        zero_point: int | torch.Tensor,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        form: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        check_size("num_features", num_features)
        check_flag("affine", affine)
        check_flag("track_running_stats", track_running_stats)
        if track_running_stats:
            raise ValueError("track_running_stats=True; allowed is False: each example has its own statistics")
        given = affine or weight is not None
        super().__init__(num_features, num_features, weight, bias, scale, zero_point, eps, given, form=form)
        self.momentum = momentum


class InstanceNorm2d(_InstanceNorm):
    """`torch.nn.InstanceNorm2d` of quantized tensors: `GroupNorm` with one group for each channel.

    Args:
        num_features: the number of channels.
        momentum, track_running_stats: settings of the float layer; momentum is not used, track_running_stats is False.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([1.0, 3.0]).reshape(1, 1, 1, 2), 0.5, 0, torch.quint8)
        >>> InstanceNorm2d(1, None, None, 0.5, 100)(x).dequantize().flatten()
        tensor([-1.,  1.])
    """


class InstanceNorm1d(_InstanceNorm):
    """`InstanceNorm2d` of signals."""


class InstanceNorm3d(_InstanceNorm):
    """`InstanceNorm2d` of volumes."""


class _BatchNorm(FunctionLayer):
    """Normalisation by running statistics."""

    weight: torch.Tensor
    bias: torch.Tensor
    running_mean: torch.Tensor
    running_var: torch.Tensor
    _relu: ClassVar[bool] = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        *,
        form: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        super().__init__(form=form)
        self.num_features = check_size("num_features", num_features)
        self.eps, self.momentum = eps, momentum
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((num_features,), value))

    def _function(self, input: QTensor) -> QTensor:
        given = input, in_float32(self.weight), in_float32(self.bias), self.running_mean, self.running_var
        return functional.batch_norm(*given, self.eps, self.output, self.form, self._relu)

    def _of_numbers(self, x: torch.Tensor) -> torch.Tensor:
        affine = in_float32(self.weight), in_float32(self.bias)
        y = torch.nn.functional.batch_norm(x, self.running_mean, self.running_var, *affine, eps=self.eps)
        return torch.relu(y) if self._relu else y

    @classmethod
    def from_float(cls, mod: Any) -> Self:
        norm: Any = mod[0] if isinstance(mod, torch.nn.Sequential) else mod
        if norm.running_mean is None:
            raise ValueError("track_running_stats=False; allowed are batch norms with running statistics")
        scale, zero_point, form = output_of(mod)
        layer = cls(norm.num_features, norm.eps, norm.momentum, form=form)
        layer.scale, layer.zero_point = scale.clone(), zero_point.clone()
        for name in ("weight", "bias", "running_mean", "running_var"):
            if (value := _float32(name, getattr(norm, name))) is not None:
                setattr(layer, name, value)
        return layer


class BatchNorm2d(_BatchNorm):
    """`torch.nn.BatchNorm2d` of quantized tensors, by its running statistics (`qcore.affine.functional.batch_norm`).

    Args:
        num_features: the number of channels.
        eps: added to variances.
        momentum: a setting of the float layer; not used.
        form: the result's integers.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([1.0, 3.0]).reshape(1, 1, 1, 2), 0.5, 0, torch.quint8)
        >>> BatchNorm2d(1)(x).dequantize().flatten()
        tensor([1., 3.])
    """


class BatchNorm3d(_BatchNorm):
    """`BatchNorm2d` of volumes."""
