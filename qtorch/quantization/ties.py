"""Weights that several layers share, such as the embeddings at both ends of a language model: one matrix stays one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import nn

from qtorch.nn.quantized.weights import Weight
from qtorch.quantization.quantization_mappings import keeps_children
from qtorch.quantization.tree import walk

Ties = list[list[str]]  # the paths of the layers that share a parameter, one list for each parameter


def ties_of(model: nn.Module) -> Ties:
    """The layers of a float model that share parameters."""
    users = defaultdict[Any, list[str]](list)
    for path, layer in walk(model, keeps_children):
        for parameter in layer.parameters(recurse=keeps_children(path, layer)):
            users[_key(parameter)].append(path)
    return [paths for paths in users.values() if len(paths) > 1]


def _key(parameter: torch.Tensor) -> Any:
    """What parameters that are one matrix have in common: they may be two tensors in one memory."""
    if parameter.is_meta or type(parameter) is not nn.Parameter:
        return id(parameter)
    return parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.dtype


def untie(model: nn.Module, ties: Ties) -> None:
    """Gives each layer parameters of its own."""
    for path in {path for _, *others in ties for path in others}:
        for module in model.get_submodule(path).modules():
            for name, old in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(old.detach().clone(), old.requires_grad))


def tie(model: nn.Module, ties: Ties) -> None:
    """Makes equal weights of layers that shared a parameter one module again.

    Other settings, or a training in which the layers parted, made other weights, which stay apart.
    """
    for paths in ties:
        made: list[Weight] = []
        for path in paths:
            _share(model.get_submodule(path), made)


def _share(owner: nn.Module, made: list[Weight]) -> None:
    for name, part in list(owner.named_children()):
        if not isinstance(part, Weight):
            continue
        twin = next((one for one in made if _equal(one, part)), None)
        if twin is not None:
            setattr(owner, name, twin)
        else:
            made.append(part)
            _share(part, made)


def _equal(first: Weight, second: Weight) -> bool:
    """True if weights have the same settings and the same bits; unknown on the device meta."""
    if (repr(first), first.dtype) != (repr(second), second.dtype):  # classes and settings
        return False
    mine, others = first.state_dict(), second.state_dict()
    return mine.keys() == others.keys() and all(
        not (one.is_meta or other.is_meta) and one.shape == other.shape and torch.equal(one, other)
        for one, other in ((value, others[name]) for name, value in mine.items())
    )
