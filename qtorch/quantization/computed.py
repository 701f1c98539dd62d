"""Weights that layers compute at each call, by parametrizations or by hooks: folded into one tensor, or named.

`weight_norm`, `spectral_norm` and pruning give a layer other parameters than its weight. Layers in integers have one
weight, so it is computed once, as torch's own functions do that remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from qcore.names import shown
from qtorch._torch_internals import forward_hooks, hooked_name

# Forward pre-hooks that write a weight, with the function that leaves the weight and removes the hook.
_HOOKS: dict[type, tuple[str, Callable[..., nn.Module]]] = {
    WeightNorm: ("remove_weight_norm", remove_weight_norm),
    SpectralNorm: ("remove_spectral_norm", remove_spectral_norm),
    prune.BasePruningMethod: ("prune.remove", prune.remove),
}


def folded_copy(model: nn.Module) -> nn.Module:
    """A copy of a model in evaluation, in which each weight that a layer computes is computed once.

    A parametrization that gives another weight at each call stays.
    """
    made = copied_without_graphs(model)
    for layer in made.modules():
        training = layer.training
        layer.eval()  # spectral norms change their state in training
        for name, (_, remove) in _by_hooks(layer):
            remove(layer, name)
        for name in _parametrized(layer):
            with torch.no_grad():
                first, second = getattr(layer, name), getattr(layer, name)
            if torch.equal(first, second):
                _give_own_class(layer)
                parametrize.remove_parametrizations(layer, name)
        layer.train(training)
    return made


def _give_own_class(layer: nn.Module) -> None:
    """Gives a parametrized layer a class like its own: copies share theirs, from which torch removes the weight."""
    kind = type(layer)
    body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    layer.__class__ = type(kind)(kind.__name__, kind.__bases__, body)  # type: ignore[assignment]


def trainable_copy(model: nn.Module) -> nn.Module:
    """A copy of a model for training; ValueError if a hook computes a weight, as layers for training do that too."""
    for path, layer in model.named_modules():
        if _by_hooks(layer):
            raise ValueError(f"{shown(path)}: {why_computed(layer)}")
    return copied_without_graphs(model)


def copied_without_graphs(model: nn.Module) -> nn.Module:
    """A deep copy. Tensors that depend on others by gradients are detached in it, since torch does not copy them.

    Hooks have computed them, as weights, or a run of the model has stored them.
    """
    held = held_tensors([*map(vars, model.modules())])
    return deepcopy(model, {id(one): one.detach().clone() for one in held if not one.is_leaf})


def held_tensors(value: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    """The tensors that containers and objects hold, such as caches, but not those of modules."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and not isinstance(value, (str, bytes, type, nn.Module, ModuleType)):
        parts: Any = getattr(value, "__dict__", {}).values()
        if isinstance(value, Mapping):
            parts = [*parts, *value.values()]
        elif isinstance(value, (tuple, list, set)):
            parts = [*parts, *value]
        for part in parts:
            yield from held_tensors(part, depth - 1)


def why_computed(layer: nn.Module) -> str:
    """How a layer computes its weight, with the remedy; "" for a layer that has it."""
    for name in _parametrized(layer):
        remedy = f"torch.nn.utils.parametrize.remove_parametrizations(layer, '{name}')"
        return f"its {name} is computed at each call: {remedy} leaves the computed one"
    for name, (function, _) in _by_hooks(layer):
        return (
            f"its {name} is computed at each call: torch.nn.utils.{function}(layer, '{name}') leaves the computed one"
        )
    return ""


def _parametrized(layer: nn.Module) -> list[str]:
    return [*layer.parametrizations] if parametrize.is_parametrized(layer) else []  # type: ignore[union-attr, arg-type]


def _by_hooks(layer: nn.Module) -> list[tuple[str, tuple[str, Callable[..., nn.Module]]]]:
    """The names of weights that hooks compute, and the functions that remove the hooks."""
    found = []
    for hook, _ in forward_hooks(layer, True):
        remove = next((one for kind, one in _HOOKS.items() if isinstance(hook, kind)), None)
        if remove is not None:
            found.append((hooked_name(hook), remove))  # type: ignore[union-attr]
    return found
