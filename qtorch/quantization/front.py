"""A whole model quantized by one call: layers are found, fused, observed, calibrated and converted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize, skip_init

from qcore.affine.observers import lies_in
from qcore.names import shown
from qcore.report import LayerReport
from qcore.workflow.flow import Bounds, Call, Flow
from qcore.workflow.front import Noises, Workflow
from qcore.workflow.settings import Arguments
from qtorch._affine.observer import HistogramObserver, PerChannelMinMaxObserver, RangeObserver
from qtorch._affine.qconfig import QConfig, QConfigDynamic, get_default_qat_qconfig, get_default_qconfig
from qtorch._classes import check_model, plain_class
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization.computed import copied_without_graphs, folded_copy, trainable_copy
from qtorch.quantization.conversion import Conversion, convert
from qtorch.quantization.flow import copied_tensors, leaves, record, results, stopping, way, with_same_parameters
from qtorch.quantization.fusion import fuse_modules, has_fused_layer
from qtorch.quantization.observing import NAME, has_range, observe_within
from qtorch.quantization.one_call import quantize_dynamic
from qtorch.quantization.preparation import prepare, prepare_qat
from qtorch.quantization.propagation import SETTINGS, propagate_qconfig_
from qtorch.quantization.quantization_mappings import get_default_static_quant_module_mappings, is_unobserved
from qtorch.quantization.reasons import is_conv1d
from qtorch.quantization.reporting import report
from qtorch.quantization.rounding import becomes_rounded, has_weight, rounds_only
from qtorch.quantization.stubs import DeQuantStub, QuantStub, QuantWrapper
from qtorch.quantization.subclasses import base_of, check_trusted, is_known, taken_apart
from qtorch.quantization.swap import take_hooks, wrapped
from qtorch.quantization.tree import NameOrType
from qtorch.quantization.twins import noises

Inputs = torch.Tensor | Sequence[object] | Mapping[str, object]  # of one call of a model


def quantize_model(
    model: nn.Module,
    qconfig: QConfig | QConfigDynamic | Mapping[NameOrType, QConfig | QConfigDynamic | None] | None = None,
    calibrate: Iterable[Inputs] | Callable[[nn.Module], object] | None = None,
    *,
    train: Callable[[nn.Module], object] | None = None,
    trusted: Iterable[str | type[nn.Module]] = (),
) -> nn.Module:
    """A quantized copy of a float model.

    Weights that layers compute (`weight_norm`, `spectral_norm`, pruning) are computed once, unless the model trains.
    A `Conv1D` of GPT-2, a linear layer with its weight the other way round, becomes a `torch.nn.Linear`. The model runs
    once on the first calibration data, which shows the order of its layers. A layer of a known subclass, such as timm's
    convolution that pads, becomes torch's layer with other layers before or behind it, if both have equal bits on this
    data. Convolutions and linear layers are fused with batch norms and ReLUs behind them; if another layer clamps their
    results, as ReLU6 does, they get the range of the clamped results. Layers in integers quantize float inputs, and
    dequantize results that go to float layers or functions. Then the model is calibrated, or trained, and converted.
    `report` of the result lists quantized layers, and float layers with the reason.

    Args:
        model: the float model; it stays as it is. One on the device meta, with data there, is converted without scales
            and numbers, which `load_state_dict(state_dict, assign=True)` then brings.
        qconfig: the settings, or a dictionary of settings by names and types of modules, where "" is the model and None
            leaves a part in floats. A `QConfig` of observers quantizes weights and activations; a `QConfig` of formats
            rounds to them; with None as activation only weights are quantized. A `QConfigDynamic` quantizes activations
            by their own range at each call, in linear layers that of each row. None is `get_default_qconfig("exact")`,
            and with train `get_default_qat_qconfig("exact")`: activations have all 256 integers. With None the ranges
            are those of histograms, or the whole ones: the results of the first inputs decide.
        calibrate: inputs: each is a tensor, a tuple of the model's arguments, or a dictionary of them by name; or a
            function that runs its argument, a model. It is called twice, the first time until it calls the model.
            None where the settings need no data.
        train: a function that trains its argument, a model with the rounding of the result; it is called twice as well.
            It replaces calibrate, and the settings are of `FakeQuantize` and formats.
        trusted: classes or names of layers of other subclasses that are to be taken as known ones. Calibration does not
            reach all of a layer's code; layers of subclasses that are not listed here stay in floats.

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
    check_trusted(trusted, model)
    return _Workflow(model, trusted, qconfig, calibrate, train).quantized()


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


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """True for equal results; on the device meta, which has no numbers, for equal shapes."""
    return x.shape == y.shape and (x.is_meta or bool(((x == y) | (x.isnan() & y.isnan())).all()))


class _Workflow(Workflow):
    """The steps for modules of torch; see `qcore.workflow.front`."""

    module, settings, defaults = nn.Module, SETTINGS, (get_default_qconfig, get_default_qat_qconfig)
    table, functional, stubs, wrapper = nn.Embedding, FloatFunctional, (QuantStub, DeQuantStub), staticmethod(wrapped)
    tree, library = Conversion(get_default_static_quant_module_mappings(), {}), nn
    report, results = staticmethod(report), staticmethod(results)
    model: nn.Module
    _examines = True
    _float: nn.Module  # the copy before it is fused
    _fused: nn.Module  # and before it is observed

    def __init__(self, model: nn.Module, trusted: Iterable[str | type[nn.Module]], *others: Any) -> None:
        self.user_model, self.trusted = model, set(trusted)
        super().__init__(*others)

    def modules(self) -> list[tuple[str, Any]]:
        return list(self.model.named_modules(remove_duplicate=False))

    def switch_off(self, layers: Iterable[str]) -> None:
        for path in layers:
            self.model.get_submodule(path).qconfig = None  # type: ignore[assignment]

    def observer_of(self, module: Any) -> RangeObserver | None:
        observer = getattr(module, NAME, None)
        return observer if isinstance(observer, RangeObserver) else None

    @property
    def no_layer(self) -> str:  # type: ignore[override]
        """The reason of the first layer in floats, which has a remedy."""
        rows = (row for row in report(self.model) if row.state == "float" and self.why_float(row))
        return next((f"; {shown(row.path)}: {row.reason}" for row in rows), "")

    def make(self) -> nn.Module:
        copied = trainable_copy(self.user_model) if self.trains else folded_copy(self.user_model)
        return self.tree.rebuilt(copied, lambda _, layer: _as_linear(layer))

    def propagate(self, entries: Mapping[Any, Any]) -> None:
        propagate_qconfig_(self.model, entries)
        self._examines = True
        if self._data is not None:
            self._float = self.as_is()

    def is_one(self, data: Any) -> bool:
        return isinstance(data, (torch.Tensor, nn.Module))

    def stopping(self) -> nn.Module:
        return stopping(self.model.train(self.trains))

    def call(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        model(*args, **kwargs)

    def way(self, arguments: Arguments) -> Hashable:
        return way(self._float, arguments)

    def held(self, arguments: Arguments) -> Arguments:
        return copied_tensors(arguments)

    def as_is(self) -> nn.Module:
        return with_same_parameters(self.model)

    def replaced(self) -> list[str]:
        return [
            path
            for path, layer in leaves(self.model)
            if _in_integers(layer) or self._is_trusted(path, layer) or becomes_rounded(layer)
        ]

    def equal(self, found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
        return len(found) == len(expected) and all(map(_equal, found, expected))

    def record(self, arguments: Arguments) -> Flow:
        self.model.train(self.trains)
        flow, inputs = record(self.model, arguments, self._is_trusted)
        self._examines = False  # once is enough
        if not inputs:
            return flow
        self.model = taken_apart(self.model, inputs, _in_integers)
        return self.record(arguments)

    def _is_trusted(self, path: str, layer: nn.Module) -> bool:
        """True of a layer of a subclass that may be torch's layer and others."""
        if not self._examines or base_of(layer) is None:
            return False
        return path in self.trusted or plain_class(layer) in self.trusted or is_known(layer)

    def fuses(self, row: list[str], function: Call | None) -> bool | None:
        layers = [self.named[path] for path in row]
        return True if len(row) > 1 and has_fused_layer(layers) and layers[0].qconfig is not None else None

    def fuse(self, rows: list[tuple[list[str], Any]]) -> None:
        for (first, *others), _ in rows:
            for path in others:
                self.named[path].qconfig = self.named[first].qconfig
        self.model = fuse_modules(self.model, [row for row, _ in rows], inplace=True)

    def dynamic_of(self, path: str) -> QConfigDynamic | None:
        settings: Any = self.named[path].qconfig
        observer = settings.activation()
        if plain_class(self.named[path]) is not nn.Linear or not isinstance(observer, RangeObserver):
            return None
        rows = PerChannelMinMaxObserver.with_args(dtype=observer.rule.form)
        return QConfigDynamic(activation=rows, weight=settings.weight)

    def integers(self) -> list[str]:
        return [path for path, layer in leaves(self.model) if _in_integers(layer)]

    def observe(self, bounds: Mapping[str, Bounds]) -> None:
        if self.known and not self.trains:
            self._fused = self.as_is()
        self.model.train(self.trains)
        done = {path for path, layer in self.modules() if _has_effect(layer)} | {*self.replaced()}
        if not done and not self.has_stubs():
            self.check_effects(done)  # says more than what prepares a model without settings
        self.model = prepare_qat(self.model) if self.trains else prepare(self.model, inplace=True)
        self.check_effects(done | {path for path, module in self.modules() if hasattr(module, NAME)})
        for path, ends in bounds.items():
            layer: Any = self.model.get_submodule(path)
            observe_within(layer.module if isinstance(layer, QuantWrapper) else layer, ends)

    def execute(self, run: Callable[[nn.Module], object]) -> None:
        calls = list[Any]()

        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            calls.append(None)
            if len(calls) > 1:
                self.note((args, kwargs))

        hook = self.model.register_forward_pre_hook(note, with_kwargs=True) if self.notes_calls() else None
        with torch.set_grad_enabled(self.trains):
            run(self.model)
        if hook is not None:
            hook.remove()

    def share_range(self, own: Any, other: Any) -> None:
        if own.rule == other.rule and lies_in(own, other):
            own.load_state_dict(other.state_dict())

    def has_counts(self, observer: Any) -> bool:
        return isinstance(observer, HistogramObserver)

    def convert(self) -> None:
        # A model without memory is made for a state_dict, which has the scales.
        on_meta = any(parameter.is_meta for parameter in self.model.parameters())
        model = copied_without_graphs(self.model) if self.trains else self.model
        self.model = convert(model.eval(), allow_uncalibrated=on_meta)

    def noises(self, models: list[nn.Module]) -> list[Noises]:
        has_numbers = not any(tensor.is_meta for tensor in self.model.buffers())
        return [noises(self._fused, one, self.known[0]) for one in models] if has_numbers else []

    def by_rows(self, settings: QConfigDynamic) -> QConfigDynamic:
        if settings.activation is not nn.Identity or not has_range(settings.weight()):
            return settings
        return QConfigDynamic(activation=PerChannelMinMaxObserver, weight=settings.weight)

    def quantize_dynamically(self, entries: Mapping[Any, Any]) -> None:
        for module in self.model.modules() if self.repeated else ():
            module.__dict__.pop("qconfig", None)  # of layers that were not observed; it has priority over entries
        self.model = quantize_dynamic(self.model, entries, inplace=False)

    def why_float(self, row: LayerReport) -> str:
        layer = self.model.get_submodule(row.path)
        parameters = layer.parameters(recurse=parametrize.is_parametrized(layer))
        wanted = row.reason not in ("its qconfig is None", "it has no qconfig")
        return row.reason if wanted and any(parameter.dim() > 1 for parameter in parameters) else ""


def _has_effect(layer: nn.Module) -> bool:
    """True of layers of any class whose weight a format rounds."""
    return getattr(layer, "qconfig", None) is not None and has_weight(layer) and rounds_only(layer)


def _in_integers(layer: nn.Module) -> bool:
    """True if `convert` makes the layer an integer layer."""
    mapping = get_default_static_quant_module_mappings()
    known = plain_class(layer) in mapping and not is_unobserved(layer, mapping)
    return known and getattr(layer, "qconfig", None) is not None and not rounds_only(layer)
