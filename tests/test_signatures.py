"""Signatures of public functions, classes and methods name types: no argument or result is `Any`, or has none."""

import inspect
import re
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from website.reference import public_modules

MODULES = {module.__name__: module for module in public_modules()}
HOMES = {id(getattr(module, name)): module.__name__ for module in [*MODULES.values()][::-1] for name in module.__all__}
OURS = ("qcore", "qtorch", "qjax")
# `Sizes` is a tuple of sizes, or of "flat" and a size; laws take it apart by position.
ALLOWED = ("Sizes",)


def has_any(kind, names):
    """True if an annotation is `Any`, or has it inside; names are looked up as the function sees them."""
    text = kind if isinstance(kind, str) else repr(kind)
    aliases = [names.get(name) for name in re.findall(r"\b[A-Za-z_]\w*", text) if name not in ALLOWED]
    texts = [text, *(repr(one) for one in aliases if not isinstance(one, type | FunctionType | ModuleType))]
    return any(re.search(r"\bAny\b", one) for one in texts)


def unnamed(function):
    """The arguments of a function without a type, and "return" for the result; constructors have none."""
    signature, names = inspect.signature(function), inspect.unwrap(function).__globals__
    types = {name: one.annotation for name, one in signature.parameters.items() if name not in ("self", "cls", "_cls")}
    if function.__name__ not in ("__init__", "__new__"):
        types["return"] = signature.return_annotation
    return [name for name, kind in types.items() if kind is inspect.Parameter.empty or has_any(kind, names)]


def foreign(thing, method):
    """The same of another library's method, or attribute, which a class replaces: its types stay that library's."""
    for base in getattr(thing, "__mro__", ())[1:]:
        if base is object or base.__module__.startswith(OURS):
            continue
        found = vars(base).get(method)
        if isinstance(found := getattr(found, "__func__", found), FunctionType):
            return unnamed(found)
        if method in getattr(getattr(base.__init__, "__code__", None), "co_names", ()):  # which `__init__` sets
            return ["return"]
    return []


def functions_of(thing):
    """The function itself, or the public methods and the constructor of a class, by name."""
    if not isinstance(thing, type):
        return {"": thing} if isinstance(thing, FunctionType) else {}
    names = [name for name in vars(thing) if not name.startswith("_") or name in ("__init__", "__new__")]
    inner = {name: getattr(vars(thing)[name], "fget", None) or vars(thing)[name] for name in names}
    inner = {name: getattr(one, "__func__", one) for name, one in inner.items()}
    return {name: one for name, one in inner.items() if isinstance(one, FunctionType)}


def untyped(module):
    """The functions and methods of a module with what `unnamed` finds; the first module that offers a name has it."""
    found = {}
    for name in module.__all__:
        thing = getattr(module, name)
        ours = (getattr(thing, "__module__", "") or "").startswith(OURS)
        for method, function in functions_of(thing).items() if ours and HOMES[id(thing)] == module.__name__ else ():
            if names := [one for one in unnamed(function) if one not in foreign(thing, method)]:
                found[f"{name}.{method}" if method else name] = names
    return found


@pytest.mark.parametrize("name", MODULES)
def test_types_are_named(name):
    assert untyped(MODULES[name]) == {}


def test_missing_types_are_found():
    def function(x, y: int, *z: Any) -> int:
        return 0

    assert unnamed(function) == ["x", "z"]


Hidden = tuple[Any, ...]


def test_types_behind_names_are_found():
    def function(x: "Hidden", y: "list[FunctionType]") -> "int":
        return 0

    assert unnamed(function) == ["x"]


def test_methods_of_other_libraries_keep_their_types():
    class Optimizer(torch.optim.SGD):
        def state_dict(self, more: "Any" = None) -> "dict[str, Any]":
            return {}

    assert [unnamed(Optimizer.state_dict), foreign(Optimizer, "state_dict")] == [["more", "return"], ["return"]]
    assert foreign(Optimizer, "param_groups") == ["return"]
    assert foreign(Optimizer, "no_such_method") == []
