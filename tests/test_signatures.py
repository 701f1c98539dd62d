"""Signatures of public functions, classes and methods name types: no argument or result is `Any`, or has none."""

import inspect
import re
from types import FunctionType
from typing import Any

import pytest

from website.reference import public_modules

MODULES = {module.__name__: module for module in public_modules()}
HOMES = {id(getattr(module, name)): module.__name__ for module in [*MODULES.values()][::-1] for name in module.__all__}
# Where arrays of any package, or trees of them, have no type of their own yet. The list may only become shorter.
UNTYPED = {
    # `encode` returns one array or, for formats of blocks, nested tuples. Groups and states of `OptimLP` are torch's:
    # dictionaries of Any.
    *("qcore", "qtorch", "qtorch.optim", "qjax"),
}


def unnamed(function):
    """The arguments of a function without a type, and "return" for the result; constructors have none."""
    signature = inspect.signature(function)
    types = {name: one.annotation for name, one in signature.parameters.items() if name not in ("self", "cls", "_cls")}
    if function.__name__ not in ("__init__", "__new__"):
        types["return"] = signature.return_annotation
    return [name for name, kind in types.items() if kind is inspect.Parameter.empty or re.search(r"\bAny\b", str(kind))]


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
        ours = (getattr(thing, "__module__", "") or "").startswith(("qcore", "qtorch", "qjax"))
        for method, function in functions_of(thing).items() if ours and HOMES[id(thing)] == module.__name__ else ():
            if names := unnamed(function):
                found[f"{name}.{method}" if method else name] = names
    return found


@pytest.mark.parametrize("name", sorted({*MODULES} - UNTYPED))
def test_types_are_named(name):
    assert untyped(MODULES[name]) == {}


def test_the_list_has_no_module_without_need():
    assert [name for name in sorted(UNTYPED) if not untyped(MODULES[name])] == []


def test_missing_types_are_found():
    def function(x, y: int, *z: Any) -> int:
        return 0

    assert unnamed(function) == ["x", "z"]
