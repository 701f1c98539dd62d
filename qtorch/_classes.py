"""Subclasses made for modules whose behaviour changes in place, so that `torch.compile` compiles them anew.

Compiled programs check the classes of modules, but not whether a module that had no hooks has one now. So a hook that
is added to a module of a compiled model would never run. A module that gets one gets a new class as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from qcore.arguments import check_type

Members = Callable[[type], dict[str, Any]]  # what the made class defines, from the class that it is made of


def no_members(base: type) -> dict[str, Any]:
    """The members of a class that behaves as its base."""
    return {}


def change_class(module: nn.Module, role: str, members: Members = no_members) -> None:
    """Gives a module a subclass of its class, one for each role, with members that pickles name.

    It is changed in place; copies and pickles of it have the new class too.
    """
    module.__class__ = _changed(type(module), lambda base: _subclass(base, role, members))


def restore_class(module: nn.Module, role: str) -> None:
    """Takes the class of a role away from a module; nothing happens where there is none."""
    if has_role(module, role):
        module.__class__ = _without(type(module), role)


def has_role(module: nn.Module, role: str) -> bool:
    """True if a module's class is made for a role."""
    return any(vars(class_).get("made_role") == role for class_ in type(module).__mro__)


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module before the first was made."""
    class_ = type(module)
    while "made_role" in vars(class_):
        class_ = vars(class_)["made_from"]
    return class_


def _changed(class_: type, change: Callable[[type], type]) -> Any:
    """The class of a change, which is made below the class that `torch.nn.utils.parametrize` makes for each module.

    `remove_parametrizations` gives a module the base of that class.
    """
    if class_.__module__ != "torch.nn.utils.parametrize":
        return change(class_)
    body = {name: value for name, value in vars(class_).items() if name not in ("__dict__", "__weakref__")}
    return type(class_)(class_.__name__, (change(class_.__bases__[0]),), body)


def _without(class_: type, role: str) -> Any:
    if vars(class_).get("made_role") == role:
        return vars(class_)["made_from"]
    if "made_role" in vars(class_):
        known = vars(class_)
        return _subclass(_without(known["made_from"], role), known["made_role"], known["made_members"].__func__)
    return _changed(class_, lambda base: _without(base, role))


@cache
def _subclass(base: type, role: str, members: Members) -> type:
    def reduce(self: nn.Module, protocol: Any) -> Any:
        function, arguments, *rest = super(made, self).__reduce_ex__(protocol)  # type: ignore[misc]
        # The innermost made class replaces the object's class by the plain one; each of them then adds its own.
        arguments = tuple(plain_class(self) if argument is type(self) else argument for argument in arguments)
        return _remade, (function, arguments, role, members), *rest

    made_as = {"made_from": base, "made_role": role, "made_members": staticmethod(members)}
    names = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(base)(base.__name__, (base,), {**members(base), **made_as, **names, "__reduce_ex__": reduce})
    return made


def _remade(function: Any, arguments: tuple[Any, ...], role: str, members: Members) -> nn.Module:
    """A module without its state, as copies and pickles make it first."""
    module = function(*arguments)
    change_class(module, role, members)
    return module


def check_model(name: str, model: object) -> None:
    """Raises TypeError unless an argument is a module whose parts are all of Python, and can be replaced."""
    check_type(name, model, nn.Module, "a torch.nn.Module")
    for path, part in model.named_modules():  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(
                f"{f'{name}.{path}' if path else name} is a {type(part).__name__}, a program of torch.jit; allowed is "
                "the torch.nn.Module that it was made of: torch.jit.trace(model, inputs) takes quantized models"
            )
