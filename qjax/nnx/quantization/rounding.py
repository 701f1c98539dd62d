"""Layers whose settings have a format that is not a range of integers: they stay in floats, and are rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qjax.nnx import quantized
from qjax.nnx.flattened import Flattened, flattened
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantization.observing import FloatFunctional, Observed, Observer
from qjax.nnx.quantization.quantization_mappings import GENERAL, UNTRAINED, WEIGHTED
from qjax.nnx.quantized.weights import rounded_weight
from qjax.nnx.rounded import RoundedLayer, ScaledRounding
from qjax.quantization import FakeQuantize, QConfig, quantize_affine
from qjax.quantization.qconfig import range_observer
from qjax.quantization.rounding import FormatRounding, rounds_to_format


def stays_in_floats(module: nnx.Module) -> bool:
    """True if an observed layer's result, or its weight, is in no range of integers."""
    if isinstance(module, FloatFunctional):
        observer = module.activation_post_process
        return observer is not None and rounds_to_format(observer.description)
    if not isinstance(module, Observed):
        return False
    return rounds_layer(module.module, module.qconfig)


def rounds_layer(layer: Any, settings: QConfig) -> bool:
    """True if settings have a format that is not a range of integers for a layer's result, or its weight."""
    return rounds_to_format(settings.activation) or (has_weight(layer) and rounds_to_format(settings.weight))


def has_weight(module: Any) -> bool:
    """True for layers, fused or not, that become a `RoundedLayer`."""
    layer = module.layer if isinstance(module, Fused) else module
    return type(layer) in WEIGHTED or type(layer) in UNTRAINED or type(layer) in GENERAL


def rounded_layer(module: Any, layer: Any, weight: Any, bias: jax.Array | None, output: nnx.Module) -> RoundedLayer:
    """The rounded form of an observed layer.

    `module` is the layer or the fused layer, `layer` the layer with the weight, `weight` the argument of
    `rounded_weight` in torch's layout, and `output` rounds the result.
    """
    relu = isinstance(module, Fused) and module.has_relu
    return RoundedLayer(layer, rounded_weight(weight), bias, relu, output)


def quantized_weight(numbers: Any, description: Any) -> Any:
    """A weight in torch's layout with the parameters of its fake quantization, or that settings choose for it.

    Returns:
        A QTensor; or what `FormatRounding.coded` returns.
    """
    numbers = numbers.astype(jnp.float32)
    rounding = getattr(description, "description", description)
    if isinstance(rounding, FormatRounding):
        return rounding.coded(numbers)
    if isinstance(description, Observer):
        return quantize_affine(numbers, description.qparams(), range_observer(description.description).form)
    observer = range_observer(description)
    qparams = observer.qparams(observer.update(observer.init(numbers.shape), numbers))
    return quantize_affine(numbers, qparams, observer.form)


def rounding_output(observer: Observer, qparams: Any) -> nnx.Module:
    """The module that rounds a layer's result: the observer, or a `Quantize` with the result of `qparams`."""
    description = observer.description
    if isinstance(description, FakeQuantize) and description.number is not None:
        return ScaledRounding(description.number, observer.qparams().scale, description.observer.axis or 0)
    return observer if isinstance(description, FormatRounding) else quantized.Quantize(*qparams())


def take_attributes(made: nnx.Module, module: Any) -> None:
    """Gives a layer the settings of the float layer that it lacks, since code of models reads `conv.strides`."""
    for name, value in vars(module.layer if isinstance(module, Fused) else module).items():
        if not name.startswith("_") and isinstance(value, _SETTINGS) and not hasattr(made, name):
            setattr(made, name, value)


_SETTINGS = int, float, str, tuple, type(None)


def around_linear(name: str, layer: Any, make: Callable[[nnx.Linear], nnx.Module]) -> Flattened:
    """A `LinearGeneral` or `Einsum` whose product is what `make` returns for it as an `nnx.Linear`."""
    made, linear = flattened(layer)
    made.module, made.layer_name = make(linear), name
    take_attributes(made, layer)
    return made
