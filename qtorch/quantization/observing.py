"""Observers at the outputs of layers, and checks of the observed data."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from qcore.names import shown
from qcore.workflow.settings import check_settings
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import RangeObserver
from qtorch._affine.qconfig import QConfigDynamic
from qtorch._classes import change_class, check_model, plain_class, restore_class
from qtorch._torch_internals import drop_forward_hooks, forward_hooks, is_recomputed
from qtorch.nn.qat import QATLayer
from qtorch.quantization.propagation import SETTINGS, check_types
from qtorch.quantization.tree import is_leaf, walk

NAME = "activation_post_process"


class ObserveOutput:
    """A forward hook that passes a layer's output through the layer's observer.

    Args:
        path: the layer's, for messages.

    Attributes:
        bounds: the output is clamped to these first; None for no bound.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.bounds: tuple[float | None, float | None] = (None, None)

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> torch.Tensor:
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"{shown(self.path)} returns a {type(output).__name__}; allowed is a tensor, which observers see: "
                "switch the layer off (qconfig = None)"
            )
        observer: Any = getattr(module, NAME, None)
        if observer is None:
            return output
        return observer(output if self.bounds == (None, None) else torch.clamp(output, *self.bounds))


class CountCalls:
    """A forward pre-hook that counts a module's runs, but not under `torch.compile`, and a checkpoint's run once.

    Args:
        path: the name that messages give the module.
    """

    def __init__(self, path: str) -> None:
        self.path, self.calls = path, 0

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling() and not is_recomputed():
            self.calls += 1


def is_prepared(module: torch.nn.Module) -> bool:
    """True if an observer was added to the module."""
    return calls_of(getattr(module, NAME, None)) is not None


def calls_of(module: Any) -> CountCalls | None:
    """The hook that counts a module's calls."""
    return getattr(module, "call_count", None)


def attach(path: str, module: torch.nn.Module, settings: Any, by_hook: bool = True, device: Any = None) -> None:
    """Adds the observer that a module's settings make.

    Args:
        path: the module's.
        module: changed in place.
        settings: its qconfig.
        by_hook: whether a hook calls the observer, before users' hooks; else the module's methods do.
        device: the observer's; None for the device of the module's parameters.

    Raises:
        TypeError: if the settings do not make a module, or are for dynamic quantization.
    """
    check_settings(shown(path), settings, SETTINGS)
    if isinstance(settings, QConfigDynamic):
        raise TypeError(f"{shown(path)} has a QConfigDynamic; allowed is a QConfig here, or quantize_dynamic(model)")
    observer = settings.activation()
    if not isinstance(observer, torch.nn.Module):
        raise TypeError(f"{shown(path)}: qconfig.activation made a {type(observer).__name__}; allowed are modules")
    device = next((tensor.device for tensor in module.parameters()), None) if device is None else device
    has_memory = device is not None and torch.device(device).type != "meta"  # observers keep theirs
    module.add_module(NAME, observer.to(device) if has_memory else observer)
    _count_calls(path, observer)
    if by_hook and type(module).forward is not nn.Sequential.forward:  # it only calls its children
        module.register_forward_hook(ObserveOutput(path), prepend=True)
        if not isinstance(module, QATLayer):  # which no program of the float model has
            change_class(module, NAME)


def observe_within(module: torch.nn.Module, bounds: tuple[float | None, float | None]) -> None:
    """Clamps a layer's results before its observer sees them, since a layer behind it clamps them."""
    for hook, _ in forward_hooks(module, False):
        if isinstance(hook, ObserveOutput):
            hook.bounds = bounds


def detach(module: torch.nn.Module) -> None:
    """Removes an observer and its hook."""
    if hasattr(module, NAME):
        delattr(module, NAME)
    drop_forward_hooks(module, False, lambda hook: isinstance(hook, ObserveOutput))
    restore_class(module, NAME)


def stop_counting(module: torch.nn.Module) -> None:
    """Removes the count of a module's calls."""
    module.__dict__.pop("call_count", None)
    drop_forward_hooks(module, True, lambda hook: isinstance(hook, CountCalls))


def _count_calls(path: str, module: Any) -> None:
    module.call_count = CountCalls(path)
    module.register_forward_pre_hook(module.call_count)


def count_forwards(model: torch.nn.Module) -> None:
    """Adds a count of the whole model's runs."""
    if calls_of(model) is None:
        _count_calls("", model)


def has_range(observer: Any) -> bool:
    """True for an observer of ranges, and for a module that contains one."""
    return isinstance(observer, (FakeQuantize, RangeObserver))


def has_seen(observer: Any) -> bool:
    """True unless an observer, or the observer of a fake quantization, saw no data yet."""
    return observer._has_seen if has_range(observer) else True


def add_observer_(
    module: torch.nn.Module,
    non_leaf_module_list: Collection[type[torch.nn.Module]] | None = None,
    device: torch.device | str | None = None,
    *,
    allow_list: Collection[type[torch.nn.Module]] | None = None,
) -> None:
    """Adds an observer to each layer without children whose qconfig is not None.

    Args:
        module: changed in place; `propagate_qconfig_` wrote the settings.
        non_leaf_module_list: types of modules with children that get one observer for their output.
        device: the observers'; None for the device of each layer's parameters.
        allow_list: the only types of layers that get an observer; None for all.

    Returns:
        Nothing; each such layer gets the module `activation_post_process`, and a hook that calls it.

    Raises:
        TypeError: if an argument has the wrong type, or settings make no module or are for dynamic quantization.

    Example:
        >>> from qtorch.quantization import default_qconfig
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        >>> model[0].qconfig = default_qconfig
        >>> add_observer_(model)
        >>> type(model[0].activation_post_process).__name__
        'MinMaxObserver'
    """
    check_model("module", module)
    check_types("non_leaf_module_list", non_leaf_module_list)
    check_types("allow_list", allow_list)
    whole = tuple(non_leaf_module_list or ())
    for path, layer in list(walk(module, lambda _, layer: plain_class(layer) in whole)):
        observed = plain_class(layer) in whole or (
            is_leaf(layer) and (allow_list is None or plain_class(layer) in allow_list)
        )
        if observed and getattr(layer, "qconfig", None) is not None and not is_prepared(layer):
            attach(path, layer, layer.qconfig, device=device)
