"""`prepare` and `prepare_qat`: models with observers for calibration, and for training with simulated quantization."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from qcore.names import full_name, shown
from qcore.workflow.fusion import warn_of_unfused
from qcore.workflow.preparation import Preparation
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._classes import check_model, plain_class
from qtorch.nn.intrinsic import Fused
from qtorch.nn.qat import QATLayer
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization.modules import Modules
from qtorch.quantization.observing import attach, count_forwards, is_prepared
from qtorch.quantization.propagation import check_types, one_of, propagate_qconfig_
from qtorch.quantization.quantization_mappings import (
    get_default_qat_module_mappings,
    get_default_qconfig_propagation_list,
)
from qtorch.quantization.rounding import check_rounded, has_output, has_weight, rounds_only
from qtorch.quantization.swap import maker, swap_module
from qtorch.quantization.tree import LayerType, check_mapping, copied, entry_of, is_leaf, rebuilt

Types = Collection[type[nn.Module]]
_CONVOLUTIONS = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}


def prepare(
    model: nn.Module,
    inplace: bool = False,
    allow_list: Types | None = None,
    observer_non_leaf_module_list: Types | None = None,
    prepare_custom_config_dict: Mapping[str, Mapping[LayerType, type[nn.Module]]] | None = None,
    *,
    white_list: Types | None = None,
) -> nn.Module:
    """A copy of a model with observers at the outputs of layers, made by the layers' settings.

    A layer's settings are its attribute `qconfig`, else that of the nearest module around it. Then run the model on
    calibration data, and `convert` it. A prepared model stays as it is, with the observed ranges.

    Args:
        model: the float model; its `qconfig`, or those of modules in it, make the observers.
        inplace: whether model itself is changed.
        allow_list: types of layers without children that are observed; None for the types that `convert` converts.
        observer_non_leaf_module_list: types of modules with children that are observed as a whole.
        prepare_custom_config_dict: {"float_to_observed_custom_module_class": {Float: Observed}} replaces each module of
            type Float by `Observed.from_float(module)`.
        white_list: another name of allow_list.

    Returns:
        The prepared model.

    Raises:
        ValueError: if nothing would be observed.

    Example:
        >>> from qtorch.quantization import default_qconfig
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> model.qconfig = default_qconfig
        >>> [name for name, _ in prepare(model).named_modules() if name.endswith("process")]
        ['0.activation_post_process']
    """
    check_model("model", model)
    allowed = one_of("allow_list", allow_list, "white_list", white_list)
    check_types("observer_non_leaf_module_list", observer_non_leaf_module_list)
    custom = entry_of("prepare_custom_config_dict", prepare_custom_config_dict, "float_to_observed_custom_module_class")
    model = copied(model, inplace)
    propagate_qconfig_(model)
    model = rebuilt(model, lambda _, module: _observed_custom(module, custom), lambda _, module: False)
    return _observed(model, allowed, tuple(observer_non_leaf_module_list or ()) + tuple(custom.values()))


def prepare_qat(
    model: nn.Module, mapping: Mapping[LayerType, type[nn.Module]] | None = None, inplace: bool = False
) -> nn.Module:
    """A copy of a model for training with the rounding of its quantized form.

    Layers with weights become layers of `qtorch.nn.qat` and `qtorch.nn.intrinsic.qat`, and outputs are fake-quantized.
    Ranges are observed in training; `eval()` freezes existing ranges, and without ranges evaluation calibrates. A
    prepared model stays as it is.

    Args:
        model: the float model, in training; its batch norms fused with `fuse_modules`.
        mapping: types of float layers to types of layers for training; None for the default.
        inplace: whether model itself is changed.

    Returns:
        The prepared model.

    Raises:
        ValueError: if the model is not in training, was prepared for calibration, or nothing would be quantized.

    Warns:
        UserWarning: where a convolution stands before a batch norm that is not fused with it.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> model.qconfig = default_qat_qconfig
        >>> type(prepare_qat(model)[0])
        <class 'qtorch.nn.qat.Linear'>
    """
    check_model("model", model)
    if not model.training:
        raise ValueError("model is in evaluation; allowed is one in training: model.train()")
    classes: Mapping[Any, Any] = get_default_qat_module_mappings() if mapping is None else mapping
    check_mapping("mapping", classes)
    calibrated = [
        path for path, module in model.named_modules() if plain_class(module) in classes and is_prepared(module)
    ]
    if calibrated:
        raise ValueError(f"{shown(calibrated[0])} was prepared for calibration; allowed is the float model")
    model = copied(model, inplace)
    propagate_qconfig_(model)
    warn_of_unfused(Modules(), model, _is_unfused)
    trained = Modules().rebuilt(model, lambda path, module: swap_module(module, classes, path=path))
    if inplace and trained is not model:
        raise ValueError("inplace=True cannot put another layer in the place of the model itself; allowed is False")
    _observed(trained, None, tuple(classes.values()))
    for module in trained.modules():
        if isinstance(module, FakeQuantize):
            module.observes_in_eval = False
    return trained


def _observed_custom(module: nn.Module, custom: Mapping[Any, Any]) -> nn.Module:
    if plain_class(module) not in custom or getattr(module, "qconfig", None) is None:
        return module
    observed = maker("prepare_custom_config_dict", custom, module, "from_float")(module)
    observed.qconfig = module.qconfig
    return observed


def _observed(model: nn.Module, allowed: Types | None, leaves: tuple[type[nn.Module], ...]) -> nn.Module:
    """The model with observers, and a count of its runs; types in leaves are observed as one."""
    _, done = _Preparation(allowed, leaves).prepared(model)
    if not done:
        raise ValueError(
            "model has no layer to observe: either no module has a qconfig (model.qconfig = get_default_qconfig()), or "
            f"none with one is of a type that can be quantized; there are {_types(model)}"
        )
    count_forwards(model)
    return model


class _Preparation(Modules, Preparation):
    """Layers that get an observer; see `qcore.workflow.preparation`.

    Args:
        allowed: types of layers without children that are observed; None for the types that `convert` converts, and
            formats for all.
        leaves: types that are observed as one.
    """

    def __init__(self, allowed: Types | None, leaves: tuple[type[nn.Module], ...]) -> None:
        self._rounds, self._leaves = allowed is None, leaves
        self._allowed = get_default_qconfig_propagation_list() if allowed is None else allowed

    def keeps_children(self, path: str, module: nn.Module) -> bool:
        return plain_class(module) in self._leaves or super().keeps_children(path, module)

    def settings(self, path: str, layer: nn.Module) -> Any:
        return None if plain_class(layer) is nn.Dropout else getattr(layer, "qconfig", None)

    def needs_no_observer(self, path: str, layer: nn.Module, settings: Any) -> bool:
        if not self._in_format(layer) or has_output(layer) or plain_class(layer) in self._leaves:
            return False
        check_rounded(path, layer)
        return True

    def is_observed(self, layer: nn.Module, settings: Any) -> bool:
        if isinstance(layer, (FloatFunctional, Fused, QATLayer)) or plain_class(layer) in self._leaves:
            return True
        return self._in_format(layer) or (is_leaf(layer) and plain_class(layer) in self._allowed)

    def is_prepared(self, layer: nn.Module) -> bool:
        return is_prepared(layer)

    def observed(self, path: str, layer: nn.Module, settings: Any) -> nn.Module:
        attach(path, layer, settings, by_hook=not isinstance(layer, FloatFunctional))
        return layer

    def _in_format(self, layer: nn.Module) -> bool:
        """True if a layer's weight, or its result, is rounded to a format that is no range of integers."""
        return self._rounds and has_weight(layer) and rounds_only(layer)


def _types(model: nn.Module) -> str:
    return ", ".join(sorted({full_name(plain_class(module), nn) for module in model.modules()})[:12])


def _is_unfused(path: str, first: Any, second: Any) -> bool:
    """True of a convolution with settings, and a batch norm for it."""
    return (
        _CONVOLUTIONS.get(plain_class(first)) is plain_class(second)
        and first.out_channels == second.num_features
        and getattr(first, "qconfig", None) is not None
    )
