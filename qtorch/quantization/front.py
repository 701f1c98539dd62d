"""A whole model quantized by one call: layers are found, fused, observed, calibrated and converted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.utils import skip_init

from qcore.arguments import check_type, quoted
from qcore.names import shown
from qcore.workflow.flow import Bounds, Flow
from qcore.workflow.settings import arguments_of, check_some, check_train, first_and_all, needs_data, warn_of_floats
from qtorch._affine.qconfig import QConfig, QConfigDynamic, get_default_qat_qconfig, get_default_qconfig
from qtorch._classes import check_model, plain_class
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization.conversion import convert
from qtorch.quantization.flow import leaves, record
from qtorch.quantization.fusion import fuse_modules, has_fused_layer
from qtorch.quantization.observing import has_seen, observe_within
from qtorch.quantization.one_call import quantize_dynamic
from qtorch.quantization.preparation import prepare, prepare_qat
from qtorch.quantization.propagation import check_settings, propagate_qconfig_
from qtorch.quantization.quantization_mappings import (
    get_default_static_quant_module_mappings,
    is_unobserved,
    keeps_children,
)
from qtorch.quantization.reasons import is_conv1d
from qtorch.quantization.reporting import report
from qtorch.quantization.rounding import rounds_only
from qtorch.quantization.stubs import DeQuantStub, QuantStub, QuantWrapper
from qtorch.quantization.subclasses import base_of, taken_apart
from qtorch.quantization.swap import take_hooks
from qtorch.quantization.tree import NameOrType, rebuilt

Inputs = torch.Tensor | Sequence[object] | Mapping[str, object]  # of one call of a model


def quantize_model(
    model: nn.Module,
    qconfig: QConfig | QConfigDynamic | Mapping[NameOrType, QConfig | QConfigDynamic | None] | None = None,
    calibrate: Iterable[Inputs] | Callable[[nn.Module], object] | None = None,
    *,
    train: Callable[[nn.Module], object] | None = None,
) -> nn.Module:
    """A quantized copy of a float model.

    A `Conv1D` of GPT-2, a linear layer with its weight the other way round, becomes a `torch.nn.Linear`. The model runs
    once on the first calibration data, which shows the order of its layers. A layer of a subclass, such as a
    convolution that pads, becomes torch's layer with other layers before or behind it, if both have equal bits on this
    data. Convolutions and linear layers are fused with batch norms and ReLUs behind them; if another layer clamps their
    results, as ReLU6 does, they get the range of the clamped results. Layers in integers quantize float inputs, and
    dequantize results that go to float layers or functions. Then the model is calibrated, or trained, and converted.
    `report` of the result lists quantized layers, and float layers with the reason.

    Args:
        model: the float model; it stays as it is.
        qconfig: the settings, or a dictionary of settings by names and types of modules, where "" is the model and None
            leaves a part in floats. A `QConfig` of observers quantizes weights and activations; a `QConfig` of formats
            rounds to them; with None as activation only weights are quantized. A `QConfigDynamic` quantizes activations
            by their own range at each call. None is `get_default_qconfig()`, and with train
            `get_default_qat_qconfig()`.
        calibrate: inputs: each is a tensor, a tuple of the model's arguments, or a dictionary of them by name; or a
            function that runs its argument, a model. It is called twice, the first time until the model has run once.
            None where the settings need no data.
        train: a function that trains its argument, a model with the rounding of the result; it is called twice as well.
            It replaces calibrate, and the settings are of `FakeQuantize` and formats.

    Returns:
        The converted model, in evaluation.

    Raises:
        ValueError: if the settings need data and none are given, an entry names nothing in the model, or nothing is
            quantized.

    Warns:
        UserWarning: of layers with matrices as weights that stay in floats though they have settings, of layers that
            saw no data, and of layers that ran several times with one observer.

    Example:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
        ... )
        >>> small = quantize_model(model, calibrate=[torch.randn(8, 1, 4, 4)])
        >>> small(torch.randn(2, 1, 4, 4)).shape
        torch.Size([2, 3])
        >>> [row.path for row in report(small) if row.state == "quantized"]
        ['0.quant', '0.module', '4.dequant', '4.module']
    """
    check_model("model", model)
    check_train(train, calibrate)
    entries = _entries(qconfig, train)
    dynamic = {key: one for key, one in entries.items() if isinstance(one, QConfigDynamic)}
    static = {key: None if key in dynamic else one for key, one in entries.items()}
    model = rebuilt(deepcopy(model), lambda _, layer: _as_linear(layer), keeps_children)
    if any(isinstance(one, QConfig) for one in static.values()):
        model = _static(model, static, calibrate, train)
    if dynamic:
        model = quantize_dynamic(model.eval(), _spec(model, dynamic, entries), inplace=False)
    _warn_of_floats(model)
    return model.eval()


def _entries(qconfig: Any, train: Any) -> dict[Any, Any]:
    """The settings by names and types."""
    if qconfig is None:
        return {"": get_default_qconfig() if train is None else get_default_qat_qconfig()}
    if not isinstance(qconfig, Mapping):
        allowed = "a QConfig, a QConfigDynamic, or a mapping of them; data is calibrate="
        check_type("qconfig", qconfig, (QConfig, QConfigDynamic), allowed)
        return {"": qconfig}
    for key, one in qconfig.items():
        check_settings(f"the entry {quoted(key)} of qconfig", one)
    check_some(qconfig)
    return dict(qconfig)


def _as_linear(layer: Any) -> nn.Module:
    """A linear layer in the place of transformers' Conv1D; other layers as they are."""
    if not is_conv1d(layer):
        return layer
    inputs, outputs = layer.weight.shape
    made = skip_init(nn.Linear, inputs, outputs, device=layer.weight.device, dtype=layer.weight.dtype)
    made.weight = nn.Parameter(layer.weight.detach().T.contiguous(), layer.weight.requires_grad)
    made.bias = layer.bias
    if hasattr(layer, "qconfig"):
        made.qconfig = layer.qconfig
    take_hooks(made, layer, layer)
    return made.train(layer.training)


def _static(model: nn.Module, entries: Mapping[Any, Any], calibrate: Any, train: Any) -> nn.Module:
    """The model fused, observed or trained, and converted."""
    propagate_qconfig_(model, entries)
    first, rest = (train, train) if train is not None else _runs(calibrate)
    model.train(train is not None)
    bounds = dict[str, Bounds]()
    if first is not None:
        flow, inputs = record(model, first, base_of)
        if inputs:
            model = taken_apart(model, inputs, _in_integers)
            flow, _ = record(model, first)
        model = _fused(model, flow)
        flow, _ = record(model, first)
        bounds = flow.clamped([path for path, layer in leaves(model) if _in_integers(layer)])
        if not any(isinstance(module, (QuantStub, DeQuantStub)) for module in model.modules()):
            model = _with_stubs(model, flow)
    prepared = prepare_qat(model) if train is not None else prepare(model, inplace=True)
    for path, ends in bounds.items():
        layer = prepared.get_submodule(path)
        observe_within(layer.module if isinstance(layer, QuantWrapper) else layer, ends)  # type: ignore[arg-type]
    if rest is not None:
        with torch.set_grad_enabled(train is not None):
            rest(prepared)
    elif missing := [path for path, layer in prepared.named_modules() if not has_seen(layer)]:
        raise needs_data(missing[0].rpartition(".")[0])
    return convert(prepared.eval())


def _runs(calibrate: Any) -> tuple[Any, Any]:
    """Two functions: one runs a model on the first data, the other on all data."""
    if calibrate is None:
        return None, None
    if isinstance(calibrate, Callable) and not isinstance(calibrate, nn.Module):
        return calibrate, calibrate
    first, batches = first_and_all(calibrate, lambda one: isinstance(one, (torch.Tensor, nn.Module)))

    def run(model: nn.Module, some: Iterable[Any]) -> None:
        for batch in some:
            args, kwargs = arguments_of(batch)
            model(*args, **kwargs)

    return lambda model: run(model, [first]), lambda model: run(model, batches)


def _fused(model: nn.Module, flow: Flow) -> nn.Module:
    """The model with fused layers; a fused layer has the settings of the first layer in its row."""
    names = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))

    def fused(row: list[str], _: Any) -> bool | None:
        layers = [model.get_submodule(path) for path in row]
        return True if len(row) > 1 and has_fused_layer(layers) and layers[0].qconfig is not None else None

    rows = [row for row, _ in flow.rows(lambda path: names[id(model.get_submodule(path))] == 1, fused)]
    for first, *others in rows:
        for path in others:
            model.get_submodule(path).qconfig = model.get_submodule(first).qconfig
    return fuse_modules(model, rows, inplace=True) if rows else model


def _in_integers(layer: nn.Module) -> bool:
    """True if `convert` makes the layer an integer layer."""
    mapping = get_default_static_quant_module_mappings()
    known = plain_class(layer) in mapping and not is_unobserved(layer, mapping)
    return known and getattr(layer, "qconfig", None) is not None and not rounds_only(layer)


def _with_stubs(model: nn.Module, flow: Flow) -> nn.Module:
    """The model whose integer layers quantize float inputs, and dequantize results that float code reads."""
    layers = dict[str, nn.Module]()
    for path, layer in leaves(model):
        if isinstance(layer, FloatFunctional):
            layer.qconfig = None  # type: ignore[assignment]  # between floats, as in a model without stubs all functions are
        elif _in_integers(layer):
            layers[path] = layer

    wrapped = {id(layers[path]): ends for path, ends in flow.stubs(layers).items()}

    def change(path: str, layer: nn.Module) -> nn.Module:
        stubs = wrapped.get(id(layer), (False, False))
        return QuantWrapper(layer, *stubs) if any(stubs) else layer

    return rebuilt(model, change, lambda path, layer: path in layers)


def _spec(model: nn.Module, dynamic: Mapping[Any, Any], entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """The argument of `quantize_dynamic` for the other layers; embeddings are quantized only if they are named."""
    present = {plain_class(module) for module in model.modules()}
    off = {key: None for key, one in entries.items() if one is None and (isinstance(key, str) or key in present)}
    return ({nn.Embedding: None} if nn.Embedding in present else {}) | off | dict(dynamic)


def _warn_of_floats(model: nn.Module) -> None:
    """Warns of layers that have settings and matrices as weights, and stay in floats."""
    left = []
    for row in report(model):
        layer = model.get_submodule(row.path)
        has_matrix = any(parameter.dim() > 1 for parameter in layer.parameters(recurse=False))
        if has_matrix and row.state == "float" and row.reason not in ("its qconfig is None", "it has no qconfig"):
            left.append(f"{shown(row.path)} ({row.layer}): {row.reason}")
    warn_of_floats(left)
