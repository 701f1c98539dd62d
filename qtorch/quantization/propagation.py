"""The settings of each module of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import torch

from qcore.arguments import quoted
from qcore.names import shown
from qcore.workflow.settings import check_settings
from qcore.workflow.tree import propagated
from qtorch._affine.qconfig import QConfig, QConfigDynamic
from qtorch._classes import check_model, plain_class
from qtorch.quantization.modules import Modules
from qtorch.quantization.tree import NameOrType, check_mapping
from qtorch.quantization.unsuited import check_shapes, why_unsuited

Types = Collection[type[torch.nn.Module]]
SETTINGS = QConfig, QConfigDynamic


def propagate_qconfig_(
    module: torch.nn.Module,
    qconfig_dict: Mapping[NameOrType, QConfig | QConfigDynamic | None] | None = None,
    white_list: Types | None = None,
    *,
    allow_list: Types | None = None,
) -> None:
    """Writes the most specific settings for a module to its attribute `qconfig`.

    These are its own attribute `qconfig`, else the entry of its name, else the entry of its exact type, else its
    parent's settings. None leaves a module and the modules in it unquantized.

    Args:
        module: the model, changed in place.
        qconfig_dict: a `QConfig`, `QConfigDynamic` or None for names ("features.0"; "" is the model) and for types.
        white_list: the only types whose `qconfig` is written; None for all.
        allow_list: another name of white_list.

    Returns:
        Nothing; the attributes `qconfig` are written.

    Raises:
        ValueError: if an entry names nothing in the model, so that it has no effect.

    Example:
        >>> from qtorch.quantization import default_qconfig
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> propagate_qconfig_(model, {"": default_qconfig, "1": None})
        >>> model[0].qconfig is default_qconfig, model[1].qconfig
        (True, None)
    """
    check_model("module", module)
    qconfig_dict = {} if qconfig_dict is None else qconfig_dict
    check_mapping("qconfig_dict", qconfig_dict)
    allowed = one_of("white_list", white_list, "allow_list", allow_list)

    def own(path: str, part: torch.nn.Module, settings: Any) -> Any:
        settings = getattr(part, "qconfig", settings)
        check_settings(shown(path), settings, SETTINGS)
        check_shapes(path, part)
        return settings

    tree = Modules()
    found = propagated(tree, module, qconfig_dict, SETTINGS, own)
    for path, part in reversed(tree.named(module)):  # a module with several names has the settings of the first
        if allowed is None or plain_class(part) in allowed:
            part.qconfig = found[path]
            if found[path] is not None and (reason := why_unsuited(part, found[path])):
                part.qconfig, part.left_because = None, reason  # type: ignore[assignment]


def one_of(name: str, value: Any, alias: str, other: Any) -> Any:
    """An argument that has two names: types of modules, or None; raises TypeError if both are given or one is wrong."""
    if value is not None and other is not None:
        raise TypeError(f"{name} and {alias} are two names of one argument; allowed is one of them")
    check_types(name, value)
    check_types(alias, other)
    return other if value is None else value


def check_types(name: str, types: Any) -> None:
    """Raises TypeError unless an argument is None, or a collection of types."""
    if types is None or (isinstance(types, (Sequence, Set, Mapping)) and all(isinstance(kind, type) for kind in types)):
        return
    raise TypeError(f"{name}={quoted(types)}; allowed are None, and a list of types of modules")
