"""Dynamic quantization: weights are quantized at once, and inputs by their own range at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
from flax import nnx

from qcore.affine import AffineInteger
from qcore.arguments import quoted
from qcore.names import joined, shown
from qcore.workflow.settings import dynamic_entries
from qcore.workflow.tree import tie, ties_of
from qjax._models import check_model, rebuilt
from qjax.nnx.intrinsic import LinearReLU
from qjax.nnx.layouts import torch_weight
from qjax.nnx.quantization.modules import Modules
from qjax.nnx.quantization.propagation import ByPart, check_effects, settings_of
from qjax.nnx.quantization.quantization_mappings import CELLS, GENERAL, RECURRENT, keeps_children, parts_of
from qjax.nnx.quantization.reasons import why_not_dynamic
from qjax.nnx.quantization.rounding import around_linear, quantized_weight, rounded_layer, take_attributes
from qjax.nnx.quantization.stubs import Identity
from qjax.nnx.quantized import Embed, dynamic
from qjax.quantization import (
    MinMaxObserver,
    NoopObserver,
    QConfig,
    QConfigDynamic,
    default_dynamic_qconfig,
    float16_dynamic_qconfig,
)
from qjax.quantization.functional.dynamic import ACTIVATIONS
from qjax.quantization.observer import RangeObserver
from qjax.quantization.qconfig import input_rounding
from qjax.quantization.rounding import FormatRounding

_BY_DTYPE = {"qint8": default_dynamic_qconfig, "float16": float16_dynamic_qconfig}


def quantize_dynamic(
    model: nnx.Module,
    qconfig_spec: ByPart[QConfigDynamic | QConfig] | Iterable[str | type[nnx.Module]] | None = None,
    dtype: str | AffineInteger = "qint8",
) -> nnx.Module:
    """A copy of a model whose layers have quantized weights, and quantize inputs by their own range.

    The layers are exactly `nnx.Linear`, also fused with its ReLU, `nnx.LinearGeneral` and `nnx.Einsum` of one matrix,
    so also those of an `nnx.MultiHeadAttention`, `qjax.nnx.LSTM`, `qjax.nnx.GRU`, `nnx.OptimizedLSTMCell`,
    `nnx.LSTMCell`, `nnx.GRUCell`, `nnx.SimpleCell`, `nnx.RNN` of these cells, and where qconfig_spec has them the
    tables of `nnx.Embed`. Layers over sequences quantize their input once, by the range of
    all steps. All take floats and return floats of the same dtype, so that nothing else of the model changes. Integers
    are those of `qtorch.quantization.quantize_dynamic`.

    Args:
        model: the float model; it stays as it is.
        qconfig_spec: settings, `QConfigDynamic` or `QConfig`, by dotted name or exact type of modules, or a set of
            names and types; what is in a named module is meant as well. None for all of these layers but tables. With a
            format as activation, the inputs of products are rounded to it; without, a format as weight leaves them in
            floats, and makes an `nnx.Linear` a `qjax.nnx.rounded.RoundedLayer`.
        dtype: of weights where qconfig_spec has no settings: "qint8", integers of other widths, or "float16".

    Returns:
        The model, in evaluation.

    Raises:
        ValueError: if dtype is none of these, an entry quantizes nothing, or no layer is quantized.

    Example:
        >>> type(quantize_dynamic(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
        <class 'qjax.nnx.quantized.dynamic.product.Linear'>
    """
    check_model("model", model)
    default = _settings_for(dtype)
    tables = qconfig_spec is not None
    qconfig_spec = dynamic_entries({"": default} if qconfig_spec is None else qconfig_spec, default)
    settings = settings_of(model, qconfig_spec, QConfigDynamic, QConfig)
    done: set[str] = set()

    def change(name: str, module: nnx.Module) -> nnx.Module:
        place = name_of_settings(name, module, settings)
        wanted = settings[place]
        if wanted is None or why_not_dynamic(module) or (type(module) is nnx.Embed and not tables):
            return module
        if type(module) is nnx.Embed and isinstance(wanted.weight, NoopObserver):  # halves are for products
            return module
        done.add(place)
        if type(module) in GENERAL:
            return around_linear(name, module, lambda linear: quantized_layer(name, linear, wanted))
        quantized = quantized_layer(name, module, wanted)
        take_attributes(quantized, module)
        return quantized

    made: Any = rebuilt(model, change, keeps_children)
    check_effects(qconfig_spec, model, done, f"layer that is quantized dynamically; allowed are exactly {_NAMES}")
    tie(Modules(), made, ties_of(Modules(), model))
    made.eval()
    return made


def _settings_for(dtype: Any) -> QConfigDynamic:
    if isinstance(dtype, AffineInteger):
        return QConfigDynamic(MinMaxObserver(dtype=dtype, qscheme="per_tensor_symmetric"))
    if dtype not in _BY_DTYPE:
        raise ValueError(f"dtype={quoted(dtype)}; allowed are {', '.join(_BY_DTYPE)} and an AffineInteger")
    return _BY_DTYPE[dtype]


def name_of_settings(name: str, module: Any, settings: Mapping[str, Any]) -> str:
    """The key of a layer's settings: the name of the layer inside it, if settings contain it, else its own name."""
    part = "cell" if isinstance(module, nnx.RNN) else "layer" if type(module) is LinearReLU else ""
    inner = joined(name, part)
    return inner if inner in settings else name


def needs_no_observer(name: str, module: nnx.Module, settings: Any) -> bool:
    """True for layers that `convert` changes by their settings alone: tables, and recurrent layers in formats.

    Raises:
        TypeError: if settings have a format for a recurrent layer's weights, and integers for what goes in.
    """
    if type(module) is nnx.Embed:
        return True
    recurrent = not isinstance(module, (nnx.Linear, LinearReLU, *GENERAL)) and not why_not_dynamic(module)
    return recurrent and _input_rounding(name, settings) is not None


def _input_rounding(name: str, settings: Any) -> FormatRounding | None:
    try:
        return input_rounding(settings)
    except TypeError as error:
        raise TypeError(f"{shown(name)}: {error}") from None


def quantized_layer(name: str, module: Any, settings: Any) -> Any:
    """The form with quantized weights of a float layer."""
    if isinstance(module, nnx.RNN):
        return with_cell(name, module, quantized_layer(name, module.cell, settings))
    if type(module) is nnx.Embed:
        return _named(Embed(quantized_weight(torch_weight(module), settings.weight), module.dtype), name)
    make, weights = parts_of(module)
    rounding = _input_rounding(name, settings)
    quantized = [(_weight(weight, settings), bias) for weight, bias in weights]
    activations, rows = input_range(settings)
    if not isinstance(module, (nnx.Linear, LinearReLU)):
        products = [_named(dynamic.Linear(*one, rounding=rounding), name) for one in quantized]
        for one in products:
            _set_range(one, activations, False)
        return _named(make(*products), name)
    ((weight, bias),) = quantized
    if rounding is None or rounding.number is not None:
        made = _named(make(weight, bias, rounding=rounding), name)
        _set_range(made, activations, rows)
        return made
    layer = module.layer if isinstance(module, LinearReLU) else module
    return _named(rounded_layer(module, layer, weight, bias, Identity()), name)


def input_range(settings: Any) -> tuple[AffineInteger, bool]:
    """The integers of a layer's input, and whether each row has a range of its own, as settings say."""
    observer = settings.activation if isinstance(settings, QConfigDynamic) else None
    if not isinstance(observer, RangeObserver):
        return ACTIVATIONS, False
    return observer.form, observer.axis is not None


def _set_range(product: dynamic.Linear, activations: AffineInteger, rows: bool) -> None:
    if product.rounding is None and not product.is_half:
        product.set_range(activations, rows)


def _weight(weight: jax.Array, settings: Any) -> Any:
    if isinstance(settings.weight, NoopObserver):
        if settings.weight.dtype != "float16":
            raise ValueError(f"weight is observed by {settings.weight}; allowed is dtype='float16', or a range")
        return weight
    return quantized_weight(weight, settings.weight)


def with_cell(name: str, rnn: Any, cell: Any) -> dynamic.RNN:
    """The dynamic layer of an `nnx.RNN` with a dynamic cell."""
    names = ("time_major", "return_carry", "reverse", "keep_order", "unroll")
    return _named(dynamic.RNN(cell, **{one: getattr(rnn, one) for one in names}), name)


def _named(module: Any, name: str) -> Any:
    module.layer_name = name
    return module


_NAMES = (
    ", ".join(kind.__name__ for kind in (nnx.Linear, LinearReLU, *GENERAL, nnx.Embed, *RECURRENT, *CELLS))
    + " and RNN of these cells"
)
