"""Models of flax as trees of modules, with the dotted names that the same model has in PyTorch.

It needs flax, and imports nothing else of qjax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

import jax
from flax import nnx

from qcore.names import joined, shown
from qcore.notices import running

Model = TypeVar("Model", bound=nnx.Module)
Path = tuple[Any, ...]

# Attributes that PyTorch's names leave out: a Sequential's list, and the inner module of a wrapper.
_UNNAMED: dict[type, str] = {nnx.Sequential: "layers"}


def unnamed(class_: type[nnx.Module], attribute: str) -> type[nnx.Module]:
    """Registers an attribute of a class of modules that names leave out."""
    _UNNAMED[class_] = attribute
    return class_


def check_model(name: str, model: Any) -> None:
    """Raises TypeError unless an argument is a module."""
    if not isinstance(model, nnx.Module):
        raise TypeError(
            f"{name} is a {type(model).__name__}; allowed is a flax.nnx.Module; prepare_fn of qjax.quantization "
            "quantizes the products of any other model, as a function of its parameters"
        )


def children_of(module: nnx.Module) -> list[tuple[str, nnx.Module]]:
    """The modules in a module, in flax's order of its attributes, by name; "" where names leave one out.

    Plain lists and dictionaries of modules, as `nnx.data` admits them, are a part of the name.
    """
    unnamed = _UNNAMED.get(type(module))

    def inside(value: Any, name: str) -> Iterator[tuple[str, nnx.Module]]:
        if isinstance(value, nnx.Module):
            yield name, value
        elif isinstance(value, (list, tuple, dict)):
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                yield from inside(one, joined(name, str(key)))

    attributes = enumerate(module) if isinstance(module, nnx.List) else vars(module).items()
    return [child for key, value in attributes for child in inside(value, "" if key == unnamed else str(key))]


def modules_of(model: nnx.Module) -> dict[Path, nnx.Module]:
    """All modules by path, parents first, each by its first path."""
    found = {tuple(path): module for path, module in nnx.iter_modules(model)}
    return dict(sorted(found.items(), key=lambda item: len(item[0])))


def name_of(path: Path, modules: dict[Path, nnx.Module]) -> str:
    """The dotted name of a path."""
    parts = []
    for end, part in enumerate(path):
        if _UNNAMED.get(type(modules.get(path[:end]))) != part:
            parts.append(str(part))
    return ".".join(parts)


def all_names(model: nnx.Module) -> list[tuple[str, nnx.Module]]:
    """The names of all modules but lists, with the modules, outer ones first; several may have one name."""
    modules = modules_of(model)
    return [(name_of(path, modules), module) for path, module in modules.items() if not isinstance(module, nnx.List)]


def names_of(model: nnx.Module) -> dict[str, nnx.Module]:
    """All modules but lists by name; of several with one name the outermost."""
    return dict(reversed(all_names(model)))


def places_of(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """For each module's name its place: places sort modules as PyTorch lists them, in the order of definition.

    `nnx.iter_modules` lists attributes by name instead. So does `vars` of a model that `nnx.merge` or `nnx.clone` made.
    """
    modules = modules_of(model)

    def position(module: nnx.Module | None, part: Any) -> int:
        if isinstance(part, int):
            return part
        return list(vars(module)).index(part) if module is not None and part in vars(module) else 0

    return {
        name_of(path, modules): tuple(position(modules.get(path[:end]), part) for end, part in enumerate(path))
        for path in reversed(modules)  # of several modules with one name the outermost
    }


def rebuilt(
    model: nnx.Module, change: Callable[[str, nnx.Module], nnx.Module], keeps_children: Callable[[nnx.Module], bool]
) -> nnx.Module:
    """A copy of a model after `change(name, module)` of each of its modules, children first.

    `change` returns a module that replaces the argument, or the argument. Children stay in a module for which
    `keeps_children` is true. A module with several names is changed once, by its first, and all names then mean the
    result.

    Raises:
        TypeError: if a module is in a tuple, which flax cannot change.
    """
    copy = nnx.clone(model)
    modules = modules_of(copy)
    for path, module in modules.items():
        for name, value in vars(module).items():
            if isinstance(value, tuple) and any(isinstance(one, nnx.Module) for one in value):
                place = joined(name_of(path, modules), name)
                raise TypeError(f"{place} is a tuple of modules, which flax cannot change; allowed is nnx.List")
    inside = [path for path, module in modules.items() if keeps_children(module)]

    def visit(path: Path, node: Any) -> Any:
        if not isinstance(node, nnx.Module) or isinstance(node, nnx.List):
            return node
        path = tuple(path)
        if any(len(path) > len(outer) and path[: len(outer)] == outer for outer in inside):
            return node
        return change(name_of(path, modules), node)

    return nnx.recursive_map(visit, copy)


def run_in_scopes(model: nnx.Module, prefix: str) -> None:
    """Makes each module of a model run in a scope of its name, behind a prefix; its class then is another."""
    for name, module in names_of(model).items():
        object.__setattr__(module, "__class__", _scoped(type(module), f"{prefix}{name}"))


@cache
def _scoped(class_: type[nnx.Module], scope: str) -> type[nnx.Module]:
    """A class of modules that run in a scope."""

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with jax.named_scope(scope):
            return class_.__call__(self, *arguments, **options)  # type: ignore[operator]

    return type(class_.__name__, (class_,), {"__call__": call})


def running_layer() -> str:
    """The innermost module whose code runs, as errors begin with it: "layer 'fc': "; "" where no module's does.

    Its name is that in the outermost module around it.

    Example:
        >>> running_layer()
        ''
    """
    modules = list(_running_modules())
    for model in reversed(modules):
        names = {id(module): name for name, module in reversed(all_names(model))}
        if id(modules[0]) in names:
            return f"{shown(names[id(modules[0])])}: "
    return ""


def _running_modules() -> Iterator[nnx.Module]:
    """The modules whose methods run, innermost first: what each function on the stack got as its first argument.

    flax keeps no record of the module that runs, and wrappers around all calls would change every model for the sake of
    an error. So the stack is read, and only when there is an error to write.
    """
    return running(nnx.Module)
