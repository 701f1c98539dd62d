"""Models that are observed, for calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx

from qjax._models.tree import check_model, rebuilt
from qjax.nnx.workflow.layers import is_whole, why_float
from qjax.nnx.workflow.observing import FloatFunctional, Observed
from qjax.nnx.workflow.steps.dynamic import name_of_settings, needs_no_observer
from qjax.nnx.workflow.steps.rounding import has_weight
from qjax.nnx.workflow.steps.settings import check_effects, settings_of
from qjax.quantization import QConfig
from qjax.quantization.rounding import FormatRounding


def prepare(model: nnx.Module, qconfig: Any) -> nnx.Module:
    """A copy of a model whose layers are observed at their results.

    Then run it on calibration data, under `nnx.jit` if you like, and `convert` it. What is prepared already stays as
    it is, with all that was observed.

    Args:
        model: the float model; it stays as it is.
        qconfig: settings for the whole model; or a mapping of settings, or None for floats, for dotted names ("" is the
            model) and exact types of modules. The name precedes the type, and the type what the parent has.

    Returns:
        The prepared model.

    Raises:
        TypeError: if an argument, or settings, have the wrong type; or if settings of a recurrent layer have a format
            for weights and integers for what goes in.
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
    prepared, done = with_observers(model, settings_of(model, qconfig), make)
    check_effects(qconfig, model, done, "layer to observe")
    return prepared


def with_observers(model: nnx.Module, settings: Mapping[str, Any], make: Make) -> tuple[nnx.Module, set[str]]:
    """As `observed_model`, for settings of all modules by name; with the names of the layers."""
    done: set[str] = set()

    def change(name: str, module: Any) -> nnx.Module:
        wanted = settings[name_of_settings(name, module, settings)]
        if wanted is not None and needs_no_observer(name, module, wanted):
            done.add(name)
            module.qconfig = getattr(module, "qconfig", wanted)
            return module
        if settings[name] is None or why_float(module) or _rounds_nothing(module, settings[name]):
            return module
        done.add(name)
        if isinstance(module, Observed):
            return module
        made: Any = make(name, module, settings[name])
        if not isinstance(module, FloatFunctional):
            return made
        if module.activation_post_process is None:
            module.activation_post_process, module.qconfig = made.activation_post_process, settings[name]
        return module

    return rebuilt(model, change, is_whole), done


def _rounds_nothing(module: nnx.Module, settings: QConfig) -> bool:
    """True of a layer without a weight where settings leave results in floats."""
    rounding = settings.activation
    return isinstance(rounding, FormatRounding) and rounding.number is None and not has_weight(module)
