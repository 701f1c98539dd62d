"""Parameters become integers, halves or codes of a format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qcore.affine import QParams
from qjax.quant import quantizer
from qjax.quantization.functional.dynamic import ACTIVATIONS, halves
from qjax.quantization.integer.packed import PackedTensor, packs
from qjax.quantization.layers import LayerState, LayerWeight, Use, inverse
from qjax.quantization.observer import NoopObserver, RangeObserver
from qjax.quantization.qconfig import QConfigDynamic, input_rounding, output_form, range_observer
from qjax.quantization.rounding import FormatRounding, rounds_to_format
from qjax.quantization.tensor import QTensor, quantize_affine


def has_not_seen(settings: Any, own: LayerState) -> bool:
    """True if a layer's observer has no range yet."""
    if isinstance(settings, QConfigDynamic):
        return False
    seen = getattr(own.input, "activation_post_process", own.input)
    return hasattr(seen, "min_val") and bool((seen.min_val > seen.max_val).any())


def converted(settings: Any, leaf: Any, own: LayerState) -> LayerWeight:
    """The quantized form of a parameter.

    Raises:
        TypeError: if an observer chooses no parameters.
        ValueError: if the weight has scales along another axis than its outputs.
    """
    weight = _weight(settings.weight, leaf, own)
    if isinstance(settings, QConfigDynamic):
        if (rounding := input_rounding(settings)) is None:
            in_integers = isinstance(weight, (QTensor, PackedTensor))
            rounding = ACTIVATIONS if in_integers else _PASSING
        return LayerWeight(weight, None, rounding, own.use, leaf.dtype.name)
    if isinstance(settings.activation, FormatRounding):
        return LayerWeight(weight, None, settings.activation, own.use, leaf.dtype.name)
    qparams = _stacked(partial(type(settings.activation).qparams, settings.activation), own.use)(own.input)
    if rounds_to_format(settings.activation):
        return LayerWeight(weight, qparams, settings.activation, own.use, leaf.dtype.name)
    return LayerWeight(weight, qparams, output_form(settings.activation), own.use, leaf.dtype.name)


_PASSING = FormatRounding(quantizer())


def _weight(description: Any, leaf: Any, own: LayerState) -> Any:
    use = own.use
    if isinstance(description, NoopObserver) and description.dtype == "float16":
        return halves(leaf)
    if isinstance(description, FormatRounding):
        if description.number is None:
            return leaf
        return _stacked(lambda weight: description.coded(_numbers(weight, use)), use)(leaf)
    observer: RangeObserver = range_observer(description)
    if observer.axis not in (None, 0):
        raise ValueError(f"weight has {description}; allowed is one scale, or ch_axis=0, for outputs")

    def quantized(weight: Any, state: Any) -> QTensor | PackedTensor:
        numbers = _numbers(weight, use)
        if state is None:
            qparams = observer.qparams(observer.update(observer.init(numbers.shape), numbers))
        else:
            qparams = description.qparams(state)
        q = quantize_affine(numbers, qparams, observer.form)
        if packs(q.form):
            return PackedTensor.of(q)
        axis = None if qparams.axis is None else use.order[0]
        values = jnp.transpose(q.values, inverse(use.order))
        return QTensor(values, QParams(qparams.scale, qparams.zero_point, axis), q.form)

    return _stacked(quantized, use)(leaf, own.weight)


def _numbers(weight: jax.Array, use: Use) -> jax.Array:
    """One weight in float32, its outputs first."""
    return jnp.transpose(weight, use.order).astype(jnp.float32)


def _stacked(function: Callable[..., Any], use: Use) -> Callable[..., Any]:
    """A function of one weight, for stacked ones."""
    for _ in range(use.stacked):
        function = jax.vmap(function)
    return function
