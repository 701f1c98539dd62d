"""Layers whose settings have a format that is no range of integers: they stay in floats, and are rounded."""

from __future__ import annotations

from typing import Any

from torch import nn

from qtorch._workflow.observing import NAME
from qtorch.nn.intrinsic import Fused
from qtorch.nn.qat.layers import QATLayer
from qtorch.nn.quantized.common.observed import float_parameters, weight_of
from qtorch.nn.quantized.common.weights import QuantizedWeight
from qtorch.nn.quantized.quantize import Quantize
from qtorch.nn.rounded import CodedWeight, Dequantized, RoundedLayer
from qtorch.quant import Quantizer
from qtorch.quantization.fake_quantize import FakeQuantize
from qtorch.quantization.observers.base import RangeObserver

_WEIGHTED = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Fused, QATLayer


def stays_in_floats(layer: nn.Module) -> bool:
    """True if a layer's output, or its weight, is in no range of integers."""
    observer = getattr(layer, NAME, None)
    if observer is not None and _rounds(observer):
        return True
    return has_weight(layer) and _rounds(_weight_maker(layer))


def rounds_only(layer: Any) -> bool:
    """True if the settings of a layer that is not prepared yet have a format for results, or for the weight."""
    return _rounds(layer.qconfig.activation()) or (has_weight(layer) and _rounds(_weight_maker(layer)))


def has_weight(layer: nn.Module) -> bool:
    """True of layers that `rounded_layer` takes."""
    return isinstance(layer, _WEIGHTED)


def rounded_layer(layer: nn.Module) -> RoundedLayer:
    """The layer with its weight rounded for good, and an output that is rounded as its settings say.

    Args:
        layer: a linear layer or convolution, fused or not, observed or trained; with batch norms in its weights.
    """
    plain: Any = layer.without_norm() if isinstance(layer, Fused) else layer
    numbers, bias = float_parameters(plain)
    maker = _weight_maker(layer)
    if isinstance(maker, Quantizer) and (number := maker.quantization.forward_number) is not None:
        weight: nn.Module = CodedWeight(numbers, number, maker.quantization.forward_rounding)
    elif _rounds(maker):
        weight = Dequantized(numbers.clone())
    else:
        weight = Dequantized(QuantizedWeight(weight_of(plain, numbers)))
    observer = getattr(layer, NAME, nn.Identity())
    output = Quantize.from_float(layer) if isinstance(observer, (FakeQuantize, RangeObserver)) else observer
    inner = plain[0] if isinstance(plain, nn.Sequential) else plain
    return RoundedLayer(inner, weight, bias, getattr(layer, "has_relu", False), output)


def _rounds(module: Any) -> bool:
    return isinstance(module, (Quantizer, nn.Identity))


def _weight_maker(layer: Any) -> nn.Module:
    trained = getattr(layer, "weight_fake_quant", None)
    return layer.qconfig.weight() if trained is None else trained
