"""Converted models from a float model and the state_dict of a converted model, without calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qcore.affine import AffineInteger
from qcore.arguments import quoted
from qcore.names import shown
from qcore.workflow.tree import Ties, tie, ties_of
from qtorch._affine.observer import MinMaxObserver
from qtorch._affine.qconfig import QConfig, QConfigDynamic, float16_dynamic_qconfig
from qtorch.quantization.conversion import convert
from qtorch.quantization.modules import Modules
from qtorch.quantization.observing import NAME
from qtorch.quantization.one_call import quantize_dynamic
from qtorch.quantization.preparation import prepare
from qtorch.quantization.propagation import propagate_qconfig_
from qtorch.quantization.quantization_mappings import keeps_children
from qtorch.quantization.rounding import has_weight
from qtorch.quantization.stubs import DeQuantStub
from qtorch.quantization.tree import check_state_dict, copied, is_leaf, walk

_INTEGERS = "weight.int_repr", "weight.packed"
_ROUNDED = {NAME, "weight", "rounded_weight"}
_SYMMETRIC = torch.per_tensor_symmetric


def load_converted(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> nn.Module:
    """The converted model that a state_dict was saved from, made of the float model: the entries' names say what became
    integers.

    A `qconfig` in the model sets the integers of outputs and weights; without one, outputs are torch.quint8, and
    weights have the width of their entries.

    A state_dict does not say where `quantize_model` fused layers and dequantized results: call `quantize_model` again,
    with the same settings and any inputs, and the result's `load_state_dict`.

    Args:
        model: the float model, with the same layers fused as in the saved one; its numbers are not used, so that it may
            be on the device meta.
        state_dict: of a model that `convert` or `quantize_dynamic` returned; of torch.ao's after `from_torch_ao`.

    Returns:
        A converted copy of the model, in evaluation.

    Raises:
        TypeError: if model is not a module, or state_dict not a dictionary.
        ValueError: if no entry is a quantized layer's, or entries and layers do not fit.

    Example:
        >>> from qtorch.quantization import quantize_dynamic
        >>> saved = quantize_dynamic(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).state_dict()
        >>> type(load_converted(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), saved)[0])
        <class 'qtorch.nn.quantized.dynamic.product.Linear'>
    """
    check_state_dict(state_dict)
    model = copied(model, False).eval()
    _check_wrappers(model, state_dict)
    ties = ties_of(Modules(), model)
    _untie(model, ties)  # the saved layers may have parted
    propagate_qconfig_(model)
    dynamic, static = dict[str, Any](), False
    layers: list[tuple[str, Any]] = list(walk(model, keeps_children))
    for path, layer in layers:
        settings = getattr(layer, "qconfig", None)
        layer.qconfig = None
        if not is_leaf(layer) and not keeps_children(path, layer) and not has_weight(layer):
            continue
        prefix = f"{path}." if path else ""
        own = {name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)}
        if "zero_point" in own and "scale" in own:
            layer.qconfig, static = settings or _static(path, state_dict), True
        elif found := _dynamic(path, own, state_dict):
            dynamic[path] = settings if isinstance(settings, QConfigDynamic) else found
        elif any(_ROUNDED.intersection(name.split(".")[:-1]) for name in own) or any(
            f"{name}.codes" in own for name, _ in layer.named_parameters(recurse=False)
        ):  # rounded modules, and stacks of matrices
            if settings is None:
                raise ValueError(
                    f"state_dict has rounded numbers of {shown(path)}, and does not say their format; allowed is a "
                    "model with the settings of the saved one: model.qconfig = QConfig(..)"
                )
            if isinstance(settings, QConfigDynamic):
                dynamic[path] = settings
            else:
                layer.qconfig, static = settings, True
    if not static and not dynamic:
        raise ValueError("state_dict has no quantized layer; allowed is that of a converted model, or load_state_dict")
    for _, layer in layers:
        if isinstance(layer, DeQuantStub) and static:
            layer.qconfig = _static("", {})
    if static:
        model = convert(prepare(model, inplace=True), allow_uncalibrated=True)
    for module in model.modules():
        module.__dict__.pop("qconfig", None)  # settings of None have priority over entries
    if dynamic:
        model = quantize_dynamic(model, dynamic)
    try:
        # A model on the device meta has no memory to copy to.
        model.load_state_dict(state_dict, assign=any(one.is_meta for one in model.state_dict().values()))
    except RuntimeError as error:
        raise ValueError(
            f"state_dict does not fit model; allowed is the float model with the same layers fused: {error}"
        ) from error
    tie(Modules(), model, ties)
    return model


def _untie(model: nn.Module, ties: Ties) -> None:
    """Gives each layer parameters of its own."""
    for path in {path for _, *others in ties for path in others}:
        for module in model.get_submodule(path).modules():
            for name, old in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(old.detach().clone(), old.requires_grad))


def _check_wrappers(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Raises if a state_dict has the layers of a `QuantWrapper` where the model has none."""
    names = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for entry in state_dict:
        path, found, _ = entry.partition(".module.")
        if found and path in names and f"{path}.module" not in names:
            raise ValueError(
                f"state_dict has {quoted(entry)}, and {shown(path)} of model no module: it is of a model that "
                "quantize_model returned; allowed is quantize_model(model, ..) with its settings and any inputs, and "
                "the result's load_state_dict"
            )


def _static(path: str, state_dict: Mapping[str, torch.Tensor]) -> QConfig:
    """Settings of 8-bit outputs, and of weights with the width of the entry."""
    dtype: Any = torch.qint8
    layer = f"{path}." if path else ""
    if (weight := state_dict.get(f"{layer}{_INTEGERS[0]}")) is not None and weight.element_size() == 2:
        dtype = AffineInteger.of_width(16)
    elif f"{layer}{_INTEGERS[1]}" in state_dict:
        dtype = AffineInteger.of_width(4)
    return QConfig(MinMaxObserver, MinMaxObserver.with_args(dtype=dtype, qscheme=_SYMMETRIC))


def _dynamic(path: str, own: set[str], state_dict: Mapping[str, torch.Tensor]) -> QConfigDynamic | None:
    """Settings of a layer whose weights, or weights of its products, are quantized or in float16; else None."""
    layer = f"{path}." if path else ""
    for product in ("", "ih.", "ih.0."):
        if any(product + name in own for name in _INTEGERS):
            settings = _static(f"{layer}{product}".removesuffix("."), state_dict)
            return QConfigDynamic(weight=settings.weight)
        weight = state_dict.get(f"{layer}{product}weight")
        if weight is not None and weight.dtype is torch.float16:
            return float16_dynamic_qconfig
    return None
