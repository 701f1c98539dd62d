"""`convert`: observed or trained layers become layers that compute in integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from qcore.arguments import check_flag
from qcore.names import is_in, shown, some
from qcore.workflow.settings import allowed_names, check_seen, uncalibrated
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import RangeObserver
from qtorch._affine.qconfig import QConfig
from qtorch._affine.tensor import QTensor
from qtorch._classes import check_model, plain_class
from qtorch.nn.quantized import FloatFunctional
from qtorch.nn.quantized.base import LEFT_OUT
from qtorch.nn.quantized.quantize import DeQuantize
from qtorch.nn.quantized.weights import float_parameters
from qtorch.quantization.observing import NAME, check_repeats, detach, has_range, has_seen, stop_counting
from qtorch.quantization.pretrained import mark_quantized
from qtorch.quantization.quantization_mappings import (
    get_default_static_quant_module_mappings,
    is_unobserved,
    keeps_children,
)
from qtorch.quantization.reasons import why_float
from qtorch.quantization.reporting import ROUNDING, rounding_of
from qtorch.quantization.rounding import has_output, has_weight, rounded_layer, stays_in_floats, with_coded_stacks
from qtorch.quantization.stubs import DeQuantStub
from qtorch.quantization.swap import in_place_of, swap_module
from qtorch.quantization.ties import tie, ties_of
from qtorch.quantization.tree import LayerType, check_classes, copied, entry_of, is_leaf, rebuilt, walk


def convert(
    module: nn.Module,
    mapping: Mapping[LayerType, type[nn.Module]] | None = None,
    inplace: bool = False,
    remove_qconfig: bool = True,
    *,
    convert_custom_config_dict: Mapping[str, Mapping[LayerType, type[nn.Module]]] | None = None,
    allow_uncalibrated: bool | Collection[str] = False,
) -> nn.Module:
    """A copy of a prepared model whose layers compute in integers, with the scales that were observed.

    If the model itself is such a layer, it is converted too. A layer with several names stays one layer. A layer that
    saw no data is converted and raises when it is called, if other layers saw data.

    Args:
        module: a model that `prepare` or `prepare_qat` returned and that has run since.
        mapping: types of observed layers to classes with `from_float(module)`; None for the default.
        inplace: whether module itself is changed.
        remove_qconfig: whether settings and remaining observers are removed.
        convert_custom_config_dict: {"observed_to_quantized_custom_module_class": {Observed: Quantized}} replaces each
            module of type Observed by `Quantized.from_observed(module)`.
        allow_uncalibrated: True gives layers that saw no data an arbitrary scale, for a model that then loads a
            state_dict; names of modules allow this only for the layers in these modules.

    Returns:
        The converted model.

    Raises:
        ValueError: if a layer was not prepared, no layer saw data, a name in allow_uncalibrated is not in the model, or
            if inplace=True and the model itself is such a layer.

    Warns:
        UserWarning: of layers that ran more than once in a run of the model, and of layers that saw no data.

    Example:
        >>> from qtorch.quantization import QuantWrapper, default_qconfig, prepare
        >>> model = QuantWrapper(nn.Linear(2, 2))
        >>> model.qconfig = default_qconfig
        >>> observed = prepare(model)
        >>> y = observed(torch.randn(8, 2))
        >>> [type(layer).__name__ for layer in convert(observed).children()]
        ['Quantize', 'DeQuantize', 'Linear']
    """
    classes = get_default_static_quant_module_mappings() if mapping is None else mapping
    check_model("module", module)
    check_classes("mapping", classes)
    check_flag("remove_qconfig", remove_qconfig)
    custom = entry_of(
        "convert_custom_config_dict", convert_custom_config_dict, "observed_to_quantized_custom_module_class"
    )
    allowed = allowed_names(allow_uncalibrated, {name for name, _ in module.named_modules(remove_duplicate=False)})
    model = copied(module, inplace)
    check_repeats(model)
    unused = _check_calibrated(model, classes, custom, allowed)
    return converted(model, classes, custom, inplace, remove_qconfig, unused)


def converted(
    model: nn.Module,
    mapping: Mapping[Any, Any],
    custom: Mapping[Any, Any],
    inplace: bool,
    remove_qconfig: bool,
    unused: Collection[str] = (),
) -> nn.Module:
    """The model with every layer of the mappings swapped; see `convert`. Layers in unused raise if called."""
    in_integers = any(
        plain_class(layer) in mapping
        and not is_unobserved(layer, mapping)
        and _is_on(layer)
        and not stays_in_floats(layer)
        for _, layer in walk(model, keeps_children)
    )

    ties = ties_of(model)
    floats = (tensor.dtype for tensor in model.parameters() if tensor.is_floating_point())
    dtype = next(floats, torch.float32)

    def change(path: str, layer: nn.Module) -> nn.Module:
        rounded = _is_rounded(layer, mapping)
        observer = getattr(layer, NAME, None)
        made: Any = with_coded_stacks(layer)
        own = any(True for _ in layer.parameters(recurse=False))
        if rounded:
            made = rounded_layer(layer)
            made = made if made is layer else in_place_of(made, layer, path)
        elif in_integers or not isinstance(layer, DeQuantStub):
            made = swap_module(layer, mapping, custom, path=path)
        if made is layer and (is_leaf(layer) or own) and not rounded:
            _explain(path, layer, mapping, in_integers)
        elif (made is not layer or rounded) and observer is not None:
            made.observed_by = rounding_of(observer).name
        if isinstance(made, DeQuantize):
            made.dtype = dtype
        if path in unused:
            made.register_forward_pre_hook(RefuseCalls(path))
            setattr(made, "is_uncalibrated", True)  # noqa: B010  # for modules that are called by other methods
        return made

    made = rebuilt(model, change, keeps_children)
    if inplace and made is not model:
        raise ValueError("inplace=True cannot put another layer in the place of the model itself; allowed is False")
    tie(made, ties)
    for layer in made.modules() if remove_qconfig else ():
        _clean(layer)
    mark_quantized(made)
    return made


class RefuseIntegers:
    """A forward pre-hook of a layer that is left in floats.

    Args:
        path: the layer's, for messages.
        reason: why it is in floats.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if any(isinstance(value, QTensor) for value in inputs):
            raise TypeError(
                f"{shown(self.path)} gets a QTensor and is in floats, since {self.reason}; insert a DeQuantStub before "
                "it and a QuantStub after it, or quantize it too"
            )


class RefuseCalls:
    """A forward pre-hook of a layer that saw no data in calibration.

    Args:
        path: the layer's, for messages.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise uncalibrated(shown(self.path), LEFT_OUT)


def _explain(path: str, layer: Any, mapping: Mapping[Any, Any], in_integers: bool) -> None:
    """Notes for reports why a layer is in floats; a layer with parameters gets a hook for errors."""
    layer.float_because = why_float(layer, mapping)
    # Code of a container may hand integers on to its children, and use its own parameters for their results.
    if in_integers and is_leaf(layer) and any(True for _ in layer.parameters(recurse=False)):
        layer.register_forward_pre_hook(RefuseIntegers(path, layer.float_because))


def _clean(layer: nn.Module) -> None:
    """Removes settings and remaining observers; modules that round stay."""
    layer.__dict__.pop("qconfig", None)
    if isinstance(getattr(layer, NAME, None), ROUNDING):
        return stop_counting(layer)
    if isinstance(layer, FloatFunctional):
        layer.activation_post_process = nn.Identity()
    else:
        detach(layer)
    stop_counting(layer)


def _is_rounded(layer: nn.Module, mapping: Mapping[Any, Any]) -> bool:
    """True of a layer that stays in floats with rounded numbers: of any class with a weight where a `QConfig` asks."""
    if not _is_on(layer):
        return False
    known = plain_class(layer) in mapping or (isinstance(layer.qconfig, QConfig) and has_weight(layer))
    return known and stays_in_floats(layer)


def _is_on(layer: nn.Module) -> bool:
    return getattr(layer, "qconfig", None) is not None


def _check_calibrated(
    model: nn.Module, mapping: Mapping[Any, Any], custom: Mapping[Any, Any], allowed: Collection[str]
) -> set[str]:
    """The layers that saw no data; they get an arbitrary range. Raises if no layer saw data."""
    unprepared, unseen, empty, known, seen = list[str](), list[str](), list[Any](), False, False
    for path, layer in walk(model, keeps_children):
        known |= _is_on(layer) and (plain_class(layer) in mapping or _is_rounded(layer, mapping))
        observed = plain_class(layer) in mapping and not is_unobserved(layer, mapping)
        if not _is_on(layer) or not (observed or (has_output(layer) and hasattr(layer, NAME))):
            continue
        if getattr(layer, NAME, None) is None:
            unprepared.append(path)
            continue
        without = [name for name in (NAME, "weight_fake_quant") if not has_seen(getattr(layer, name, None))]
        seen |= not without and has_range(getattr(layer, NAME))
        excused = any(is_in(path, name) for name in allowed) or (
            isinstance(layer, FloatFunctional) and layer.has_scalars
        )
        unseen += [path] if without and not excused else []
        empty += [(layer, name) for name in without]
    if not known and not any(plain_class(layer) in custom and _is_on(layer) for layer in model.modules()):
        raise ValueError("module has no layer to convert; call prepare(model) or prepare_qat(model) first")
    if unprepared:
        raise ValueError(f"{_listed(unprepared)} no observer; call prepare(model) or prepare_qat(model) before convert")
    check_seen(unseen, seen, LEFT_OUT)
    for layer, name in empty:
        setattr(layer, name, _with_some_scale(layer, name))
    return set(unseen)


def _listed(paths: list[str]) -> str:
    return f"{some(list(map(shown, paths)))} {'has' if len(paths) == 1 else 'have'}"


def _with_some_scale(layer: Any, name: str) -> nn.Module:
    """A copy of an observer after it observed the range of its integers, or the layer's weight."""
    observer = deepcopy(getattr(layer, name)).train()
    inner: RangeObserver = observer.activation_post_process if isinstance(observer, FakeQuantize) else observer
    ends = [0.0, float(inner.rule.form.qmax - inner.rule.form.qmin)]
    observer(torch.tensor(ends, device=inner.eps.device) if name == NAME else float_parameters(layer)[0])
    return observer
