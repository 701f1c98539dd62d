"""Quantization of a whole model by one call, which fuses, observes, calibrates and converts its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from flax import nnx

from qcore.arguments import check_type
from qcore.names import shown
from qcore.workflow.flow import Bounds, Call, Flow
from qcore.workflow.settings import arguments_of, check_some, check_train, first_and_all, needs_data, warn_of_floats
from qjax._jaxprs import is_array
from qjax._models import Model, all_names, check_model, names_of, rebuilt
from qjax._rounding.inputs import PyTree
from qjax.nnx.activations import ReLU, ReLU6
from qjax.nnx.quantization.conversion import convert, unseen_layers
from qjax.nnx.quantization.flow import Arguments, first_arguments, record, takes_integers
from qjax.nnx.quantization.fusion import aliases, fuse_modules, why_not_fused
from qjax.nnx.quantization.observing import FloatFunctional, Observed
from qjax.nnx.quantization.one_call import quantize_dynamic
from qjax.nnx.quantization.preparation import trained_layer, with_observers
from qjax.nnx.quantization.propagation import SettingsOf, check_effects, settings_of
from qjax.nnx.quantization.quantization_mappings import keeps_children
from qjax.nnx.quantization.reasons import why_float, why_not_dynamic
from qjax.nnx.quantization.reporting import arrays_in, report
from qjax.nnx.quantization.rounding import rounds_layer
from qjax.nnx.quantization.stubs import DeQuantStub, QuantStub, QuantWrapper
from qjax.quantization import QConfig, QConfigDynamic, get_default_qat_qconfig, get_default_qconfig

Settings = dict[str, Any]


def quantize_model(
    model: Model,
    qconfig: SettingsOf[QConfig | QConfigDynamic] | None = None,
    calibrate: Iterable[PyTree] | Callable[[Model], object] | None = None,
    *,
    train: Callable[[Model], object] | None = None,
) -> nnx.Module:
    """A quantized copy of a float model.

    The model is traced once with the first calibration data, which shows the order of its layers; so it must run under
    `jax.jit`. Convolutions and linear layers are fused with the batch norms and ReLUs that follow them. If another
    function clamps their results, as ReLU6 does, their range is the clamped range. Layers in integers quantize floats
    at their inputs, and dequantize results for layers or functions of floats. Then the model is calibrated, or trained,
    and converted. `report` shows which layers of the result are quantized, and why others are in floats.

    Args:
        model: the float model; it is not changed.
        qconfig: the settings, or a mapping of settings by names and exact types of modules, where "" is the model and
            None leaves a part in floats. A `QConfig` of observers quantizes weights and activations, and a `QConfig` of
            formats rounds to them; with None as activation only weights are quantized. A `QConfigDynamic` quantizes
            activations by their own range at each call. None is `get_default_qconfig()`, and with train
            `get_default_qat_qconfig()`.
        calibrate: a list of inputs, each an array, a tuple of the model's arguments or a dictionary of them by name; or
            a function that runs the model that it gets. The function is called twice; the first time it ends at the
            first call of the model. None if the settings need no data.
        train: a function that trains the model that it gets, with the rounding of the result; it is called twice, too.
            It replaces calibrate, and requires settings of `FakeQuantize` and formats.

    Returns:
        The converted model, in evaluation.

    Raises:
        ValueError: if the settings need data and there are none, an entry names nothing, nothing is quantized, or a
            layer to quantize is called with more than its input.

    Warns:
        UserWarning: if a layer with a matrix as weight has settings but stays in floats, if a layer saw no data, or if
            a layer ran several times with one observer.

    Example:
        >>> from qjax.nnx import ReLU
        >>> rngs = nnx.Rngs(0)
        >>> layers = (
        ...     nnx.Conv(1, 4, (3, 3), rngs=rngs),
        ...     nnx.BatchNorm(4, rngs=rngs),
        ...     ReLU(),
        ...     nnx.Linear(4, 3, rngs=rngs),
        ... )
        >>> data = jax.random.normal(jax.random.key(0), (8, 4, 4, 1))
        >>> small = quantize_model(nnx.Sequential(*layers), calibrate=[data])
        >>> [row.path for row in report(small) if row.state == "quantized"]
        ['0.module', '0.quant', '3.dequant', '3.module']
    """
    check_model("model", model)
    check_train(train, calibrate)
    entries = _entries(qconfig, train)
    settings = settings_of(model, entries, QConfig, QConfigDynamic)
    dynamic = {key: one for key, one in entries.items() if isinstance(one, QConfigDynamic)}
    made = nnx.clone(model)
    if any(isinstance(one, QConfig) for one in entries.values()):
        static = {key: None if key in dynamic else one for key, one in entries.items()}
        own = {path: one if isinstance(one, QConfig) else None for path, one in settings.items()}
        made = _static(made, static, own, calibrate, train)
    made.eval()
    if dynamic:
        kinds = {type(module) for _, module in all_names(made)}
        off = {key: None for key, one in entries.items() if one is None and (isinstance(key, str) or key in kinds)}
        tables = {nnx.Embed: None} if nnx.Embed in kinds else {}  # tables are quantized only if an entry names them
        made = quantize_dynamic(made, tables | off | dynamic)
    _warn_of_floats(made, settings)
    return made


def _entries(qconfig: Any, train: Any) -> dict[Any, Any]:
    """The settings by names and types."""
    if qconfig is None:
        return {"": get_default_qconfig() if train is None else get_default_qat_qconfig()}
    if not isinstance(qconfig, Mapping):
        allowed = "a QConfig, a QConfigDynamic, or a mapping of them; data is calibrate="
        check_type("qconfig", qconfig, (QConfig, QConfigDynamic), allowed)
        return {"": qconfig}
    check_some(qconfig)
    return dict(qconfig)


def _static(model: nnx.Module, entries: Mapping[Any, Any], settings: Settings, calibrate: Any, train: Any) -> Any:
    """The model fused, observed or trained, and converted.

    `entries` are the settings as the user gave them, for errors; `settings` are those of all modules by name.
    """
    original, fused, bounds, make = model, set[str](), dict[str, Bounds](), _observed_layer
    if train is not None:
        arguments, run, make = first_arguments(model, train, "train"), train, trained_layer
    else:
        arguments, run = _calibration(model, calibrate)
    if run is not None:
        model.eval()
        flow = record(model, _marks(model, settings), arguments)
        if train is not None:
            model.train()
        model, fused = _fused(model, settings, flow)
        modules = names_of(model)
        without_stubs = not any(isinstance(module, (QuantStub, DeQuantStub)) for module in modules.values())
        if without_stubs:  # then sums and products are between floats, as all functions are
            settings |= {path: None for path, module in modules.items() if isinstance(module, FloatFunctional)}
        flow = record(model, _marks(model, settings), arguments)
        bounds = flow.clamped(_in_integers(model, settings))
        if without_stubs:
            model, settings = _with_stubs(model, settings, flow, arguments)
    prepared, done = with_observers(model, settings, make)
    check_effects(entries, original, done | fused, "layer to observe")
    modules = names_of(prepared)
    for path, ends in bounds.items():
        layer: Any = modules[path]
        observed: Any = layer.module if isinstance(layer, QuantWrapper) else layer
        observed.bounds = ends
    if run is not None:
        run(prepared)
    elif missing := unseen_layers(prepared)[0]:
        raise needs_data(missing[0])
    prepared.eval()
    return convert(prepared)


def _observed_layer(name: str, module: nnx.Module, settings: QConfig) -> nnx.Module:
    return Observed(module, settings)


def _calibration(model: nnx.Module, calibrate: Any) -> tuple[Any, Any]:
    """The arguments of the model's first call, and a function that runs a model on all data; None without data."""
    if calibrate is None:
        return None, None
    if callable(calibrate) and not isinstance(calibrate, nnx.Module):
        return first_arguments(model, calibrate, "calibrate"), calibrate
    first, batches = first_and_all(calibrate, is_array)

    def run(model: nnx.Module) -> None:
        for batch in batches:
            args, kwargs = arguments_of(batch)
            only_arrays = all(map(is_array, jax.tree.leaves((args, kwargs))))
            (_compiled if only_arrays else _call)(model, args, kwargs)

    return arguments_of(first), run


def _call(model: Any, args: Any, kwargs: Any) -> None:
    model(*args, **kwargs)


_compiled = nnx.jit(_call)


def _marks(model: nnx.Module, settings: Settings) -> dict[str, bool]:
    """The names of the layers that a flow needs, each with True if it has its own settings."""
    modules = all_names(model)
    own = {path: settings.get(path) is not None and not why_float(module) for path, module in modules}
    kinds = ReLU, ReLU6, nnx.Dropout, nnx.BatchNorm  # an Identity leaves no trace
    return {path: own[path] for path, module in modules if own[path] or isinstance(module, kinds)}


def _fused(model: nnx.Module, settings: Settings, flow: Flow) -> tuple[nnx.Module, set[str]]:
    """The model with fused layers, and the names of all fused layers; the first layer of a row gives the settings."""
    modules, names = names_of(model), aliases(model)

    def fused(row: list[str], function: Call | None) -> bool | None:
        """True if a row is fused with a function as its ReLU, False if without; None if it is not fused."""
        parts = [modules[path] for path in row]
        if settings.get(row[0]) is None:
            return None
        if function is not None and function.bounds == (0.0, None) and not why_not_fused(parts, True):
            return True
        return False if len(row) > 1 and not why_not_fused(parts, False) else None

    found = list(flow.rows(lambda path: len(names[id(modules[path])]) == 1, fused))
    for relu in (False, True):
        rows = [row for row, has_function in found if has_function == relu]
        model = fuse_modules(model, rows, relu) if rows else model
    return model, {path for row, _ in found for path in row}


def _in_integers(model: nnx.Module, settings: Settings) -> set[str]:
    """The names of layers that become layers in integers."""
    modules, marks = names_of(model), _marks(model, settings)
    return {path for path, own in marks.items() if own and not rounds_layer(modules[path], settings[path])}


def _with_stubs(model: nnx.Module, settings: Settings, flow: Flow, arguments: Arguments) -> tuple[nnx.Module, Settings]:
    """The model with stubs where floats enter and leave layers in integers, and the settings of all modules by name."""
    layers = _in_integers(model, settings)
    giving: list[Call] = []
    stubs = flow.stubs(layers, giving)

    def admit(calls: list[Call]) -> None:
        """Adds the calls that may return integers. If the model fails with all, each half is tried alone."""
        nonlocal giving, stubs
        more = flow.stubs(layers, [*giving, *calls])
        if more == stubs or takes_integers(model, {path: not ends[1] for path, ends in more.items()}, arguments):
            giving, stubs = [*giving, *calls], more
        elif len(calls) > 1:
            admit(calls[: len(calls) // 2])
            admit(calls[len(calls) // 2 :])

    admit([call for call in flow.calls if flow.in_integers(call, layers) or call.keeps])
    settings = dict(settings)
    for path in layers:
        settings |= {".".join(filter(None, (path, part))): settings[path] for part in ("quant", "dequant", "module")}

    def change(path: str, module: nnx.Module) -> nnx.Module:
        return QuantWrapper(module, *stubs[path]) if any(stubs.get(path, ())) else module

    return rebuilt(model, change, keeps_children), settings


def _warn_of_floats(model: nnx.Module, settings: Settings) -> None:
    """Warns of layers that have settings and matrices as weights, and stay in floats."""
    modules, left = names_of(model), []
    for row in report(model):
        layer, chosen = modules[row.path], settings.get(row.path)
        if row.state != "float" or chosen is None or all(value.ndim < 2 for _, value in arrays_in(layer)):
            continue
        reason = why_not_dynamic(layer) if isinstance(chosen, QConfigDynamic) else row.reason
        if reason:  # there is no reason for a table under dynamic settings, which has to be named
            left.append(f"{shown(row.path)} ({row.layer}): {reason}")
    remedy = "the settings None, and for any products prepare_fn of qjax.quantization"
    warn_of_floats(left, f"; allowed are flax's layers themselves, {remedy}")
