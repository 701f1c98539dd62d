"""The replacement of one layer by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qcore.arguments import quoted
from qcore.names import shown
from qtorch._classes import check_model, plain_class
from qtorch._torch_internals import drop_forward_hooks, forward_hooks
from qtorch.nn.intrinsic import Fused
from qtorch.nn.qat import QATLayer
from qtorch.nn.quantized.base import KeepsMade
from qtorch.nn.quantized.weights import Weight
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization.computed import why_computed
from qtorch.quantization.observing import NAME, CountCalls, ObserveOutput
from qtorch.quantization.stubs import QuantWrapper
from qtorch.quantization.tree import LayerType, check_mapping

_OURS = {"qconfig", "call_count"}  # attributes of layers that the workflow writes


def swap_module(
    mod: nn.Module,
    mapping: Mapping[LayerType, type[nn.Module]],
    custom_module_class_mapping: Mapping[LayerType, type[nn.Module]] | None = None,
    *,
    path: str = "",
) -> nn.Module:
    """A module of the class that a mapping has for a module's exact type, or the module itself.

    The new module gets users' forward hooks and pre-hooks, the mode (training or evaluation) and the device.

    Args:
        mod: a module; without a `qconfig` it is returned as it is.
        mapping: types to classes with a method `from_float(module)`.
        custom_module_class_mapping: types to classes with a method `from_observed(module)`, which come first.
        path: the module's name in messages.

    Returns:
        A new module, of the class that the mapping has; or mod itself.

    Raises:
        TypeError: if an argument has the wrong type, or the class has no such method.
        ValueError: if the module's tensors are on several devices.
        TypeError, ValueError: as the class does, with the module's name.

    Example:
        >>> from qtorch.nn import qat
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = nn.Linear(2, 2)
        >>> layer.qconfig = default_qat_qconfig
        >>> type(swap_module(layer, {nn.Linear: qat.Linear}))
        <class 'qtorch.nn.qat.Linear'>
    """
    check_model("mod", mod)
    check_mapping("mapping", mapping)
    custom = {} if custom_module_class_mapping is None else custom_module_class_mapping
    check_mapping("custom_module_class_mapping", custom)
    if getattr(mod, "qconfig", None) is None or (plain_class(mod) not in mapping and plain_class(mod) not in custom):
        return mod
    _device(mod, path)
    try:
        made: Any = (
            maker("custom_module_class_mapping", custom, mod, "from_observed")(mod)
            if plain_class(mod) in custom
            else _made(mod, mapping)
        )
    except (TypeError, ValueError) as error:
        raise type(error)(f"{shown(path)}: {error}") from error
    return in_place_of(made, mod, path)


def in_place_of(made: nn.Module, mod: nn.Module, path: str) -> nn.Module:
    """A new module with users' hooks, the mode, the device and the name of the module that it replaces."""
    try:
        take_hooks(made, mod, mod)
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}") from None
    if (device := _device(mod, path)) is not None:
        made.to(device)
    dtypes = {tensor.dtype for tensor in mod.parameters()}
    dtype = next((tensor.dtype for tensor in mod.parameters()), torch.float32)
    for part in made.modules():
        if hasattr(type(part), "layer_name"):
            part.layer_name = path  # type: ignore[assignment]
        if isinstance(part, Weight):
            part.dtype = dtype
        if dtypes and isinstance(part, (Weight, KeepsMade)):
            part.stand_for(dtype, device)
    if isinstance(made, (KeepsMade, RoundedLayer)) and len(dtypes) == 1:
        made.take_dtype(dtype)
    _take_attributes(made, mod[0] if isinstance(mod, nn.Sequential) else mod)  # type: ignore[index]
    return made.train(mod.training)


def _take_attributes(made: nn.Module, layer: nn.Module) -> None:
    """Gives a new layer the settings of the old one that it lacks, since code of models reads `conv.stride`."""
    for name, value in vars(layer).items():
        if not name.startswith("_") and name not in _OURS and not hasattr(made, name):
            setattr(made, name, value)


def _device(mod: nn.Module, path: str) -> torch.device | None:
    """Where a module's tensors are.

    Raises:
        ValueError: if they are on several devices.
    """
    observing = [*getattr(mod, NAME, nn.Identity()).buffers()]  # in memory also where the module is on meta
    own = [one for one in mod.buffers() if all(one is not other for other in observing)]
    devices = {tensor.device for tensor in [*mod.parameters(), *own] or observing}
    if len(devices) > 1:
        raise ValueError(f"{shown(path)} is on the devices {sorted(map(str, devices))}; allowed is one")
    return next(iter(devices), None)


def maker(name: str, mapping: Mapping[Any, Any], mod: nn.Module, method: str) -> Any:
    """The method of the class that a user's dictionary has for a module.

    Raises:
        TypeError: if there is no such method.
    """
    target = mapping[plain_class(mod)]
    if not hasattr(target, method):
        raise TypeError(
            f"{name} has {quoted(target)} for {type(mod).__name__}; allowed is a class with {method}(module)"
        )
    return getattr(target, method)


def _made(mod: nn.Module, mapping: Mapping[Any, Any]) -> nn.Module:
    target, make = mapping[plain_class(mod)], maker("mapping", mapping, mod, "from_float")
    trains = isinstance(target, type) and issubclass(target, QATLayer)  # they have batch norms of their own
    return make(mod._without_norm() if isinstance(mod, Fused) and not trains else mod)


def take_hooks(made: nn.Module, first: nn.Module, last: nn.Module) -> None:
    """Gives a new module users' forward pre-hooks of one module, and the forward hooks of another.

    Raises:
        ValueError: if a hook computes the weight, which the new module has already.
    """
    if computed := why_computed(first):
        raise ValueError(computed)
    for hook, settings in forward_hooks(first, True):
        if not isinstance(hook, CountCalls):
            made.register_forward_pre_hook(hook, **settings)
    for hook, settings in forward_hooks(last, False):
        if not isinstance(hook, ObserveOutput):
            made.register_forward_hook(hook, **settings)


def wrapped(layer: nn.Module, quant: bool, dequant: bool) -> QuantWrapper:
    """A layer in a `QuantWrapper` that has the layer's hooks, since these take and change floats."""
    made = QuantWrapper(layer, quant, dequant)
    take_hooks(made, layer, layer)
    for before in (True, False):
        drop_forward_hooks(layer, before, bool)
    return made
