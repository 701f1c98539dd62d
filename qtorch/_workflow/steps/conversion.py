"""Layers that were observed or trained become layers that compute in integers."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from qtorch._workflow.mappings import (
    UNOBSERVED,
    get_default_static_quant_module_mappings,
    is_made_for_quantization,
)
from qtorch._workflow.observing import NAME, CountCalls, detach, has_seen, warn_of_repeats
from qtorch._workflow.steps.swap import swap_module
from qtorch._workflow.tree import copied, rebuilt, shown, walk
from qtorch.nn.intrinsic import Fused
from qtorch.nn.qat.layers import QATLayer
from qtorch.quantization.fake_quantize import FakeQuantize
from qtorch.quantization.observers.base import RangeObserver

__all__ = ["convert"]


def convert(
    module: nn.Module,
    mapping: Mapping[Any, Any] | None = None,
    inplace: bool = False,
    remove_qconfig: bool = True,
    convert_custom_config_dict: Mapping[str, Any] | None = None,
    *,
    allow_uncalibrated: bool = False,
) -> nn.Module:
    """A copy of a prepared model whose layers compute in integers, with the scales that were observed.

    The model itself is converted, too, where it is such a layer. A layer with several names stays one layer.

    Args:
        module: a model that `prepare` or `prepare_qat` returned and that has run since.
        mapping: types of observed layers to classes with `from_float(module)`; None for the default.
        inplace: whether module itself is changed.
        remove_qconfig: whether settings and what is left of observers go.
        convert_custom_config_dict: {"observed_to_quantized_custom_module_class": {Observed: Quantized}} puts
            `Quantized.from_observed(module)` in the place of each module of type Observed.
        allow_uncalibrated: whether layers may be converted that have seen nothing, with a scale of 1: for a model that
            a state_dict is then loaded into.

    Returns:
        The converted model.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if a layer was not prepared or has seen nothing, or if inplace=True and the model itself is such a
            layer.

    Warns:
        UserWarning: of layers that ran more than once each time that the model ran.

    Example:
        >>> from qtorch.quantization import default_qconfig, prepare
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> model.qconfig = default_qconfig
        >>> observed = prepare(model)
        >>> y = observed(torch.randn(8, 2))
        >>> type(convert(observed)[0])
        <class 'qtorch.nn.quantized.linear.Linear'>
    """
    mapping = get_default_static_quant_module_mappings() if mapping is None else mapping
    custom = (convert_custom_config_dict or {}).get("observed_to_quantized_custom_module_class", {})
    model = copied(module, inplace)
    warn_of_repeats(model)
    _check_calibrated(model, mapping, allow_uncalibrated)
    return converted(model, mapping, custom, inplace, remove_qconfig)


def converted(
    model: nn.Module, mapping: Mapping[Any, Any], custom: Mapping[Any, Any], inplace: bool, remove_qconfig: bool
) -> nn.Module:
    """The model with every layer swapped that a mapping knows; see `convert`."""
    made = rebuilt(model, lambda path, layer: swap_module(layer, mapping, custom, path=path), _is_whole)
    if inplace and made is not model:
        raise ValueError("inplace=True cannot put another layer in the place of the model itself; allowed is False")
    for layer in made.modules() if remove_qconfig else ():
        layer.__dict__.pop("qconfig", None)
        detach(layer)
        for key, hook in list(layer._forward_pre_hooks.items()):
            if isinstance(hook, CountCalls):
                del layer._forward_pre_hooks[key]
    return made


def _is_whole(path: str, module: nn.Module) -> bool:
    return isinstance(module, (Fused, QATLayer, nn.MultiheadAttention)) or is_made_for_quantization(module)


def _check_calibrated(model: nn.Module, mapping: Mapping[Any, Any], allowed: bool) -> None:
    """Raises for all layers that have no range; gives them one if that is allowed."""
    unprepared, unseen = [], []
    for path, layer in walk(model, _is_whole):
        if type(layer) not in mapping or type(layer) in UNOBSERVED or getattr(layer, "qconfig", None) is None:
            continue
        observer = getattr(layer, NAME, None)
        if observer is None:
            unprepared.append(path)
        elif not has_seen(observer):
            unseen.append(path)
            if allowed:
                setattr(layer, NAME, _with_unit_scale(observer))
    if unprepared:
        raise ValueError(f"{_listed(unprepared)} no observer; call prepare(model) or prepare_qat(model) before convert")
    if unseen and not allowed:
        raise ValueError(
            f"{_listed(unseen)} an observer that has seen nothing; run the prepared model on calibration data, switch "
            "the layer off before prepare (qconfig = None), or pass allow_uncalibrated=True and load a state_dict"
        )


def _listed(paths: list[str]) -> str:
    names = ", ".join(map(shown, paths[:12])) + (", ..." if len(paths) > 12 else "")
    return f"{names} {'has' if len(paths) == 1 else 'have'}"


def _with_unit_scale(observer: Any) -> Any:
    """A copy of an observer that has seen the range of its integers."""
    observer = deepcopy(observer)
    inner: RangeObserver = observer.activation_post_process if isinstance(observer, FakeQuantize) else observer
    form = inner.rule.form
    observer.train()(torch.tensor([0.0, float(form.qmax - form.qmin)], device=inner.eps.device))
    return observer
