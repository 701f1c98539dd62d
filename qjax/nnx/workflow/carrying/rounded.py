"""Layers that stay in floats and are rounded: those of `qtorch.nn.rounded` and of `qjax.nnx.rounded`."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import jax.numpy as jnp
from flax import nnx

from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.layouts import torch_weight
from qjax.nnx.quantized.weights import QuantizedWeight
from qjax.nnx.rounded import KEEPING_CODE, RoundedLayer, ScaledRounding
from qjax.nnx.workflow.carrying.entries import Entries, parameters_from, weight_from
from qjax.nnx.workflow.observing import FloatFunctional, Observed, Observer
from qjax.nnx.workflow.steps.rounding import has_weight, rounded_layer
from qjax.quantization import FakeQuantize, QConfig, QConfigDynamic
from qjax.quantization.qconfig import output_form, range_observer
from qjax.quantization.rounding import CodedArray, FormatRounding, rounds_to_format

Settings = QConfig | QConfigDynamic
_PARTS = "codes", "values", "integers.scale"
# What torch calls the weight and what rounds the result, in layers of our own and in those that keep their class.
_OWN, _KEPT = ("weight", "output"), ("rounded_weight", "activation_post_process")


def from_rounded(module: Any, entries: Entries, settings: Settings | None) -> RoundedLayer | None:
    """The rounded successor of a float module, where there are its codes, or None.

    Raises:
        ValueError: if there are no settings, which say the format, or an array is missing or has another shape.
    """
    layer = module.layer if isinstance(module, Fused) else module
    weight, output = (entries.of(name) for name in (_KEPT if isinstance(layer, KEEPING_CODE) else _OWN))
    if not has_weight(module) or not has_numbers(weight) or _rounds_input(settings, output):
        return None
    numbers, bias = numbers_from(torch_weight(layer).shape, weight, settings), entries.maybe("bias")
    activation: Any = getattr(settings, "activation", None)
    if isinstance(activation, FormatRounding):
        rounds: Any = Observer(activation)
    elif rounds_to_format(activation):
        rounds = _scaled(activation, output)
    else:
        rounds = quantized.Quantize(parameters_from(output), output_form(activation))
    return rounded_layer(module, layer, numbers, None if bias is None else jnp.asarray(bias), rounds)


def _rounds_input(settings: Settings | None, output: Entries) -> bool:
    """True of settings of a product that rounds what goes in, and not the result, which then has no scale."""
    rounding = getattr(settings, "activation", None)
    if isinstance(settings, QConfigDynamic):
        return getattr(rounding, "number", None) is not None
    return isinstance(rounding, FakeQuantize) and "scale" not in output


def embedding_from(module: nnx.Embed, entries: Entries, settings: Settings | None) -> quantized.Embed | None:
    """The table of a float module in integers or in a format, where there are its arrays, or None."""
    shape = module.embedding.shape
    if has_numbers(rounded := entries.of(_KEPT[0])):
        return quantized.Embed(numbers_from(shape, rounded, settings), module.dtype)
    if "weight.scale" not in entries:
        return None
    form = None if settings is None else range_observer(settings.weight).form
    return quantized.Embed(weight_from(shape, entries.of("weight"), form), module.dtype)


def has_numbers(entries: Entries) -> bool:
    """True if there are the arrays of a weight that is in a format, or of one that meets activations in a format."""
    return any(part in entries for part in _PARTS)


def numbers_from(shape: tuple[int, ...], entries: Entries, settings: Settings | None) -> Any:
    """A weight of a shape, as `rounded_weight` takes it."""
    if settings is None:
        raise ValueError("its weight has codes of a format; allowed is a qconfig, which says of which")
    description = settings.weight
    if "integers.scale" in entries:
        return weight_from(shape, entries.of("integers"), range_observer(description).form)
    if "values" in entries:
        return jnp.asarray(entries.take("values", size=prod(shape))).reshape(shape)
    if not isinstance(description, FormatRounding) or description.number is None:
        raise ValueError(f"its weight has codes of a format, and its settings {description}; allowed is the format")
    scales = [name for name in (f"scales{index}" for index in range(8)) if name in entries]
    arrays = [jnp.asarray(entries.take(name)) for name in ("codes", *scales)]
    return CodedArray(arrays[0], tuple(arrays[1:]), description.number, shape)


def arrays_of_rounded(module: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a module of ours by the names that it has in PyTorch.

    Args:
        module: any quantized module.
        arrays: by their names in the module.
    """
    kept = isinstance(module, RoundedLayer) and isinstance(module.layer, KEEPING_CODE)
    if not kept and not (isinstance(module, quantized.Embed) and not isinstance(module.weight, QuantizedWeight)):
        return arrays
    names = dict(zip(_OWN, _KEPT, strict=True))
    parts = ((*name.partition("."), array) for name, array in arrays.items())
    return {names.get(first, first) + dot + rest: array for first, dot, rest, array in parts}


def _scaled(description: Any, entries: Entries) -> ScaledRounding:
    """What rounds results with the scale that is in entries."""
    return ScaledRounding(description.number, jnp.asarray(entries.take("scale")), description.observer.axis or 0)


def rounds_results(names: Iterable[str]) -> bool:
    """True if a `state_dict` has a layer that stays in floats, so that those without arrays may round too."""
    endings = tuple(f"{weight}.{part}" for weight in (_OWN[0], _KEPT[0]) for part in _PARTS)
    return any(f".{name}".endswith(tuple(f".{ending}" for ending in endings)) for name in names)


def with_rounding(module: Any, settings: QConfig, entries: Entries) -> Any:
    """A layer without a quantized weight, whose results are rounded as its settings say."""
    if not rounds_to_format(settings.activation):
        return module
    made: Any = module if isinstance(module, FloatFunctional) else Observed(module, settings)
    made.qconfig = settings
    if isinstance(settings.activation, FormatRounding):
        made.activation_post_process = Observer(settings.activation)
    elif "activation_post_process.scale" in entries:
        made.activation_post_process = _scaled(settings.activation, entries.of("activation_post_process"))
    else:
        return module
    return made
