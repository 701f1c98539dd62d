"""Layers that stay in floats whatever the settings, since no integers, or no format, can stand for their numbers."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from qcore.names import shown
from qtorch._affine.qconfig import QConfig
from qtorch.nn.quantized.weights import rounds


def why_unsuited(layer: nn.Module, settings: Any) -> str:
    """Why a layer cannot have these settings; "" if it can.

    Example:
        >>> from qtorch.quantization import default_qconfig
        >>> why_unsuited(nn.BatchNorm1d(2, track_running_stats=False), default_qconfig)
        'it has no running statistics, and the layer in integers needs them: track_running_stats=True'
    """
    if any(parameter.is_complex() for parameter in layer.parameters(recurse=False)):
        return "its numbers are complex"
    weight = layer._parameters.get("weight")
    if weight is not None and weight.numel() == 0:
        return "its weight has no elements"
    integers = isinstance(settings, QConfig) and not rounds(settings.activation())
    if isinstance(layer, _InstanceNorm):
        if layer.track_running_stats and integers:
            return "it has running statistics, and the layer in integers takes those of its input"
    elif isinstance(layer, _BatchNorm) and not layer.track_running_stats and integers:
        return "it has no running statistics, and the layer in integers needs them: track_running_stats=True"
    return ""


def check_shapes(path: str, layer: nn.Module) -> None:
    """Raises ValueError for a lazy layer whose parameters have no shape yet."""
    if any(map(is_lazy, layer.parameters(recurse=False))):
        raise ValueError(
            f"{shown(path)} is a {type(layer).__name__} whose parameters have no shape yet; call the model once on data"
        )
