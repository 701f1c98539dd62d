"""Models as trees of modules with dotted paths, whose branches may be shared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from qcore.arguments import check_flag, check_type, quoted
from qcore.names import joined, shown
from qtorch._classes import check_model
from qtorch.quantization.aliases import follow
from qtorch.quantization.computed import why_computed

Change = Callable[[str, torch.nn.Module], torch.nn.Module]
KeepsChildren = Callable[[str, torch.nn.Module], bool]
OBSERVING = {"activation_post_process", "weight_fake_quant"}  # the names of observers in layers
# The keys of users' dictionaries, a parameter since dictionaries are invariant in the type of their keys.
LayerType = TypeVar("LayerType", bound=type[torch.nn.Module])
NameOrType = TypeVar("NameOrType", bound=str | type[torch.nn.Module])


def check_mapping(name: str, entries: object) -> None:
    """Raises TypeError unless an argument is a dictionary."""
    check_type(name, entries, Mapping, "a dict")


def check_classes(name: str, mapping: object) -> None:
    """Raises TypeError unless an argument is a dictionary by types of layers."""
    check_mapping(name, mapping)
    for kind in mapping:  # type: ignore[attr-defined]
        check_type(f"the key {quoted(kind)} of {name}", kind, type, "a type of layers")


def check_state_dict(state_dict: Any) -> None:
    """Raises TypeError unless state_dict is a dictionary of tensors by their names."""
    check_mapping("state_dict", state_dict)
    for key, value in state_dict.items():
        check_type(f"the name {quoted(key)} of state_dict", key, str, "a str")
        check_type(f"state_dict[{quoted(key)}]", value, torch.Tensor, "a tensor")


def entry_of(name: str, config: Any, key: str) -> Mapping[Any, Any]:
    """An entry of an argument that is a dictionary of dictionaries, or None; {} if there is none. Raises TypeError."""
    config = {} if config is None else config
    check_mapping(name, config)
    entry = config.get(key, {})
    check_mapping(f"{name}[{quoted(key)}]", entry)
    return entry


def copied(model: torch.nn.Module, inplace: bool) -> torch.nn.Module:
    """The model, or a deep copy of it.

    Raises:
        TypeError: if the model is not a module.
        ValueError: if an attribute of a module is a tensor with a graph of gradients, which torch does not copy.
    """
    check_model("model", model)
    check_flag("inplace", inplace)
    if inplace:
        return model
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
                if computed := why_computed(module):
                    raise ValueError(f"{shown(path)}: {computed}")
                raise ValueError(
                    f"{joined(path, name)} is a tensor that depends on others by gradients, which cannot be copied; "
                    "detach() it, or pass inplace=True"
                )
    return copy.deepcopy(model)


def children(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The children of a module, by all their names; `named_children` gives only the first name of each."""
    return [(name, child) for name, child in module.named_modules(remove_duplicate=False) if name and "." not in name]


def rebuilt(model: torch.nn.Module, change: Change, keeps_children: KeepsChildren) -> torch.nn.Module:
    """The model after `change(path, module)` of each of its modules, children first.

    A module with several names is changed once, by its first, and all names then mean the result.

    Args:
        model: changed in place below its root.
        change: returns the module's replacement, or the module.
        keeps_children: true of a module whose children stay as they are.
    """
    done: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = {}  # the old modules stay, so that no id recurs

    def visit(path: str, module: torch.nn.Module) -> torch.nn.Module:
        if id(module) not in done:
            if not keeps_children(path, module):
                for name, child in children(module):
                    setattr(module, name, visit(joined(path, name), child))
            done[id(module)] = module, change(path, module)
        return done[id(module)][1]

    made = visit("", model)
    follow(made, done.values())
    return made


def walk(model: torch.nn.Module, keeps_children: KeepsChildren) -> Iterator[tuple[str, torch.nn.Module]]:
    """All modules by path, parents first, each once, without the children of modules that keep them."""
    seen: set[int] = set()

    def visit(path: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        yield path, module
        if not keeps_children(path, module):
            for name, child in module.named_children():
                yield from visit(joined(path, name), child)

    return visit("", model)


def is_leaf(module: torch.nn.Module) -> bool:
    """True for a module without children, except an observer."""
    return all(name == "activation_post_process" for name, _ in module.named_children())
