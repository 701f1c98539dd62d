"""Layers that stay in floats and are rounded: those of `qtorch.nn.rounded` and of `qjax.nnx.rounded`."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import jax.numpy as jnp

from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.rounded import RoundedLayer, ScaledRounding
from qjax.nnx.workflow.carrying.entries import Entries
from qjax.nnx.workflow.carrying.weights import parameters_from, torch_shape, weight_from
from qjax.nnx.workflow.observing import FloatFunctional, Observed, Observer
from qjax.nnx.workflow.steps.rounding import has_weight, rounded_layer
from qjax.quantization import QConfig
from qjax.quantization.qconfig import output_form, range_observer
from qjax.quantization.rounding import CodedArray, FormatRounding, rounds_to_format

_PARTS = "weight.codes", "weight.values", "weight.integers.scale"


def from_rounded(module: Any, entries: Entries, settings: QConfig | None) -> RoundedLayer | None:
    """The rounded successor of a float module, where there are its codes, or None.

    Raises:
        ValueError: if there are no settings, which say the format, or an array is missing or has another shape.
    """
    if not has_weight(module) or not any(part in entries for part in _PARTS):
        return None
    if settings is None:
        raise ValueError("its weight has codes of a format; allowed is a qconfig, which says of which")
    layer = module.layer if isinstance(module, Fused) else module
    weight, output = _weight(layer, entries.of("weight"), settings.weight), entries.of("output")
    if isinstance(settings.activation, FormatRounding):
        rounds: Any = Observer(settings.activation)
    elif rounds_to_format(settings.activation):
        rounds = _scaled(settings.activation, output)
    else:
        rounds = quantized.Quantize(parameters_from(output), output_form(settings.activation))
    bias = entries.maybe("bias")
    return rounded_layer(module, layer, weight, None if bias is None else jnp.asarray(bias), rounds)


def _scaled(description: Any, entries: Entries) -> ScaledRounding:
    """What rounds results with the scale that is in entries."""
    return ScaledRounding(description.number, jnp.asarray(entries.take("scale")), description.observer.axis or 0)


def _weight(layer: Any, entries: Entries, description: Any) -> Any:
    if "integers.scale" in entries:
        return weight_from(layer.kernel, entries.of("integers"), range_observer(description).form)
    shape = torch_shape(layer.kernel[...])
    if "values" in entries:
        return jnp.asarray(entries.take("values", size=prod(shape))).reshape(shape)
    if not isinstance(description, FormatRounding) or description.number is None:
        raise ValueError(f"its weight has codes of a format, and its settings {description}; allowed is the format")
    scales = [name for name in (f"scales{index}" for index in range(8)) if name in entries]
    arrays = [jnp.asarray(entries.take(name)) for name in ("codes", *scales)]
    return CodedArray(arrays[0], tuple(arrays[1:]), description.number, shape)


def rounds_results(names: Iterable[str]) -> bool:
    """True if a `state_dict` has a layer that stays in floats, so that those without arrays may round too."""
    return any(name == part or name.endswith(f".{part}") for name in names for part in _PARTS)


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
