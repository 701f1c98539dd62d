"""Which type of layer takes the place of which."""

from __future__ import annotations

from typing import Any

from torch import nn

from qtorch._workflow.stubs import DeQuantStub
from qtorch.nn import qat, quantized
from qtorch.nn.intrinsic import qat as intrinsic_qat
from qtorch.quantization.fake_quantize import FakeQuantize
from qtorch.quantization.observers.base import ObserverBase

__all__ = [
    "get_default_qat_module_mappings",
    "get_default_qconfig_propagation_list",
    "get_default_static_quant_module_mappings",
]

Mapping = dict[type[nn.Module], Any]

FLOAT_FUNCTIONAL: tuple[type[nn.Module], ...] = ()

_QAT: Mapping = {
    made.floats: made
    for made in (
        *(qat.Linear, qat.Conv1d, qat.Conv2d, qat.Conv3d),
        *(intrinsic_qat.LinearReLU, intrinsic_qat.ConvReLU1d, intrinsic_qat.ConvReLU2d, intrinsic_qat.ConvReLU3d),
        *(intrinsic_qat.ConvBn1d, intrinsic_qat.ConvBn2d, intrinsic_qat.ConvBn3d),
        *(intrinsic_qat.ConvBnReLU1d, intrinsic_qat.ConvBnReLU2d, intrinsic_qat.ConvBnReLU3d),
    )
}
_STATIC: Mapping = {nn.Linear: quantized.Linear, qat.Linear: quantized.Linear}

# The results of these keep the scale of what goes in, or are floats.
UNOBSERVED: set[type[nn.Module]] = {DeQuantStub, nn.ReLU, nn.ReLU6, nn.Dropout, nn.Embedding}


def get_default_static_quant_module_mappings() -> Mapping:
    """What `convert` makes of observed layers.

    Example:
        >>> get_default_static_quant_module_mappings()[nn.Linear]
        <class 'qtorch.nn.quantized.linear.Linear'>
    """
    return dict(_STATIC)


def get_default_qat_module_mappings() -> Mapping:
    """What `prepare_qat` makes of float layers.

    Example:
        >>> get_default_qat_module_mappings()[nn.Conv2d]
        <class 'qtorch.nn.qat.layers.Conv2d'>
    """
    return dict(_QAT)


def get_default_qconfig_propagation_list() -> set[type[nn.Module]]:
    """The types of layers that `prepare` observes.

    Example:
        >>> nn.ReLU in get_default_qconfig_propagation_list()
        False
    """
    return {kind for kind in _STATIC if kind not in UNOBSERVED}


def is_made_for_quantization(module: nn.Module) -> bool:
    """True of observers, and of layers that compute in integers: what is quantized already."""
    return isinstance(module, (ObserverBase, FakeQuantize, *_STATIC.values()))
