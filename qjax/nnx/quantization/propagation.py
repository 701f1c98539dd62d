"""Propagation of settings to the modules of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from flax import nnx

from qcore.names import joined, shown
from qcore.workflow import settings
from qcore.workflow.tree import propagated
from qjax._models import all_names
from qjax.nnx.quantization.modules import Modules
from qjax.quantization import QConfig

One = TypeVar("One")
Type = type[nnx.Module]
# By dotted names and exact types of modules; None leaves a part in floats. Mappings are invariant in their keys: the
# last one alone would refuse a dictionary of names.
ByPart = Mapping[str, One | None] | Mapping[Type, One | None] | Mapping[str | Type, One | None]
SettingsOf = One | ByPart[One]
OTHERS = "; functions and layers of linen and equinox are quantized by prepare_fn of qjax.quantization"
_COMPUTING = nnx.WeightNorm, nnx.SpectralNorm


def settings_of(model: nnx.Module, entries: Any, *classes: type) -> dict[str, Any]:
    """The settings of all modules by name: from the entry of the name, else of the exact type, else of the parent.

    Args:
        model: the model.
        entries: settings for all of the model, or a mapping of settings, or None, for names ("" is the model) and
            types.
        classes: the allowed types of settings, `QConfig` and `QConfigDynamic`; none means `QConfig`.

    Raises:
        TypeError: if entries or settings have the wrong type.
        ValueError: if an entry names nothing that is in the model, so that it would do nothing.
    """
    entries = entries if isinstance(entries, Mapping) else {"": entries}
    found = propagated(Modules(), model, entries, classes or (QConfig,))
    for name, module in all_names(model):
        if isinstance(module, _COMPUTING) and found.get(joined(name, "layer_instance")) is not None:
            raise ValueError(
                f"{shown(name)} is a {type(module).__name__}, which computes its layer's weights at each call; allowed "
                f"is the layer: after a call in evaluation put {joined(name, 'layer_instance')} in its place"
            )
    return found


def check_effects(entries: Any, model: nnx.Module, done: set[str], what: str) -> None:
    """Raises ValueError unless each entry for `settings_of` has changed a layer of a model; `done` are their names."""
    entries = entries if isinstance(entries, Mapping) else {"": entries}
    settings.check_effects(entries, all_names(model), type, nnx, done, what, OTHERS)
