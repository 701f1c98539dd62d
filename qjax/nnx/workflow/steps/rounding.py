"""Layers whose settings have a format that is no range of integers: they stay in floats, and are rounded."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.rounded import CodedWeight, Dequantized, RoundedLayer, ScaledRounding
from qjax.nnx.workflow.layers import WEIGHTED
from qjax.nnx.workflow.observing import FloatFunctional, Observed, Observer
from qjax.quantization import FakeQuantize
from qjax.quantization.rounding import CodedArray, FormatRounding, rounds_to_format


def stays_in_floats(module: nnx.Module) -> bool:
    """True if an observed layer's result, or its weight, is in no range of integers."""
    if isinstance(module, FloatFunctional):
        observer = module.activation_post_process
        return observer is not None and rounds_to_format(observer.description)
    if not isinstance(module, Observed):
        return False
    return rounds_to_format(module.qconfig.activation) or (
        has_weight(module.module) and rounds_to_format(module.qconfig.weight)
    )


def has_weight(module: Any) -> bool:
    """True of layers, fused or not, that become a `RoundedLayer`."""
    return type(module.layer if isinstance(module, Fused) else module) in WEIGHTED


def rounded_weight(weight: Any) -> nnx.Module:
    """The module that holds a weight: codes, integers, or floats."""
    return CodedWeight(weight) if isinstance(weight, CodedArray) else Dequantized(weight)


def rounded_layer(module: Any, layer: Any, weight: Any, bias: jax.Array | None, output: nnx.Module) -> RoundedLayer:
    """An observed layer, its weight rounded for good.

    Args:
        module: the layer, or a fused one, that says whether a ReLU follows.
        layer: the linear layer or convolution.
        weight: what `rounded_weight` takes, in torch's layout.
        bias: float32, or None.
        output: what rounds the result.
    """
    relu = isinstance(module, Fused) and module.has_relu
    return RoundedLayer(layer, rounded_weight(weight), bias, relu, output)


def rounding_output(observer: Observer, qparams: Any) -> nnx.Module:
    """What rounds a layer's result: the observer, or a `Quantize` of the parameters that `qparams` returns."""
    description = observer.description
    if isinstance(description, FakeQuantize) and description.number is not None:
        return ScaledRounding(description.number, observer.qparams().scale, description.observer.axis or 0)
    return observer if isinstance(description, FormatRounding) else quantized.Quantize(*qparams())
