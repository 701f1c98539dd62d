"""Preparation of models: observers for calibration, and fake quantization for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx

from qcore.names import joined, shown
from qcore.workflow.fusion import warn_of_unfused
from qcore.workflow.preparation import Preparation
from qjax._models import all_names, check_model, children_of
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantization.modules import Modules
from qjax.nnx.quantization.observing import OBSERVER, FloatFunctional, Observed
from qjax.nnx.quantization.one_call import name_of_settings, needs_no_observer
from qjax.nnx.quantization.propagation import SettingsOf, check_effects, settings_of
from qjax.nnx.quantization.quantization_mappings import GENERAL, WEIGHTED
from qjax.nnx.quantization.reasons import IN_ATTENTION, why_float
from qjax.nnx.quantization.rounding import around_linear, has_weight, rounds_layer
from qjax.nnx.quantization.training import Trained
from qjax.quantization import FakeQuantize, QConfig
from qjax.quantization.rounding import FormatRounding


def prepare(model: nnx.Module, qconfig: SettingsOf[QConfig]) -> nnx.Module:
    """A copy of a model with observers of its layers' results.

    Run the copy on calibration data, under `nnx.jit` if you like, and `convert` it. Layers that are prepared already
    are kept with their observations.

    Args:
        model: the float model; it is not changed.
        qconfig: settings for the whole model; or a mapping of settings, or None for floats, by dotted names ("" is the
            model) and exact types of modules. A name takes precedence over a type, and a type over the parent's
            settings.

    Returns:
        The prepared model.

    Raises:
        TypeError: if an argument, or settings, have the wrong type; or if settings of a recurrent layer have a format
            for weights and integers for inputs.
        ValueError: if an entry names nothing, or nothing would be observed.

    Example:
        >>> from qjax.quantization import default_qconfig
        >>> model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.relu)
        >>> type(prepare(model, default_qconfig).layers[0]).__name__
        'Observed'
    """
    check_model("model", model)
    return observed_model(model, qconfig, lambda name, module, settings: Observed(module, settings))


Make = Callable[[str, nnx.Module, QConfig], nnx.Module]


def observed_model(model: nnx.Module, qconfig: Any, make: Make) -> nnx.Module:
    """A copy of a model in which `make(name, layer, settings)` takes the place of each layer that has settings."""
    model, settings = nnx.clone(model), settings_of(model, qconfig)
    leave_attention(model, settings)
    prepared, done = with_observers(model, settings, make)
    check_effects(qconfig, model, done, "layer to observe")
    if not done:
        raise ValueError("model has no layer to observe: all settings are None; allowed is a QConfig for some layer")
    return prepared


def leave_attention(model: nnx.Module, settings: Mapping[str, Any]) -> None:
    """Leaves flax's attention in floats where settings ask for integers in it: its code has no place for stubs."""
    for path, module in all_names(model):
        for name, layer in children_of(module) if isinstance(module, nnx.MultiHeadAttention) else ():
            chosen: Any = settings.get(joined(path, name))
            if chosen is not None and not why_float(layer) and not rounds_layer(layer, chosen):
                layer.left_because = IN_ATTENTION  # type: ignore[attr-defined]


def with_observers(model: nnx.Module, settings: Mapping[str, Any], make: Make) -> tuple[nnx.Module, set[str]]:
    """As `observed_model`, for settings of all modules by name; also returns the names of the replaced layers."""
    return _Preparation(settings, make).prepared(model)


class _Preparation(Modules, Preparation):
    """Layers that get an observer; see `qcore.workflow.preparation`.

    Args:
        settings: of all modules by name.
        make: `make(name, layer, settings)` takes the place of a layer.
    """

    def __init__(self, settings: Mapping[str, Any], make: Make) -> None:
        self._settings, self._make = settings, make

    def settings(self, path: str, layer: nnx.Module) -> Any:
        return self._settings[path if isinstance(layer, Fused) else name_of_settings(path, layer, self._settings)]

    def needs_no_observer(self, path: str, layer: nnx.Module, settings: Any) -> bool:
        return needs_no_observer(path, layer, settings)

    def is_observed(self, layer: nnx.Module, settings: QConfig) -> bool:
        rounding = settings.activation
        nothing = isinstance(rounding, FormatRounding) and rounding.number is None and not has_weight(layer)
        return not (nothing or why_float(layer))

    def is_prepared(self, layer: Any) -> bool:
        return isinstance(layer, Observed) or getattr(layer, OBSERVER, None) is not None

    def keep(self, layer: Any, settings: Any) -> None:
        layer.qconfig = getattr(layer, "qconfig", settings)

    def observed(self, path: str, layer: Any, settings: QConfig) -> nnx.Module:
        if type(layer) in GENERAL:
            return around_linear(path, layer, lambda linear: self._make(path, linear, settings))
        made: Any = self._make(path, layer, settings)
        if not isinstance(layer, FloatFunctional):
            return made
        layer.activation_post_process, layer.qconfig = made.activation_post_process, settings
        return layer


def prepare_qat(model: nnx.Module, qconfig: SettingsOf[QConfig]) -> nnx.Module:
    """A copy of a model for quantization-aware training: it trains with the rounding of its quantized form.

    Weights of Linear and Conv layers, also of fused ones, and all results are fake-quantized. Ranges are observed in
    training. `model.eval()` keeps existing ranges, and calibrates ranges that do not exist yet. Gradients pass straight
    through. All of it works under `nnx.jit` and `nnx.grad`.

    Args:
        model: the float model, in training, with batch norms fused by `fuse_modules`; it is not changed.
        qconfig: as for `prepare`, of `FakeQuantize` or of formats.

    Returns:
        The prepared model.

    Raises:
        ValueError: if all batch norms and Dropouts are in evaluation, an entry names nothing, or nothing would be
            quantized.

    Warns:
        UserWarning: where a convolution stands before a batch norm that is not fused with it.

    Example:
        >>> from qjax.quantization import default_qat_qconfig
        >>> model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.relu)
        >>> type(prepare_qat(model, default_qat_qconfig).layers[0]).__name__
        'Trained'
    """
    check_model("model", model)
    _check_training(model)
    prepared, settings = observed_model(model, qconfig, trained_layer), settings_of(model, qconfig)

    def trains(path: str, first: Any, second: Any) -> bool:
        adjacent = isinstance(first, nnx.Conv) and isinstance(second, nnx.BatchNorm)
        return adjacent and settings.get(path) is not None and first.out_features == second.num_features

    warn_of_unfused(Modules(), model, trains)
    return prepared


def trained_layer(name: str, module: Any, settings: QConfig) -> nnx.Module:
    """The form of a layer in training; raises TypeError if its settings do not fake-quantize."""
    for part, description in (("activation", settings.activation), ("weight", settings.weight)):
        if not isinstance(description, (FakeQuantize, FormatRounding)):
            raise TypeError(
                f"{shown(name)} has a QConfig whose {part} is {type(description).__name__}; allowed are "
                "FakeQuantize, as in get_default_qat_qconfig(), and formats"
            )
    layer = module.layer if isinstance(module, Fused) else module
    return (Trained if type(layer) in WEIGHTED else Observed)(module, settings)


def _check_training(model: nnx.Module) -> None:
    """Raises if all layers with an evaluation mode are in it, as after `model.eval()`."""
    modes = {
        name: mode
        for name, module in all_names(model)
        for flag in ("use_running_average", "deterministic")
        if isinstance(mode := getattr(module, flag, None), bool)
    }
    if modes and all(modes.values()):
        raise ValueError(
            f"model is in evaluation, as {shown(next(iter(modes)))} is; allowed is one in training: call "
            "model.train(), and freeze_bn_stats afterwards where statistics should stay"
        )
