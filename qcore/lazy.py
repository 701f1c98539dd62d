"""Subpackages, and names of theirs, that are imported when they are first used; what completion offers (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def subpackages(
    package: str, names: Sequence[str], members: Mapping[str, Sequence[str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        names: those of its subpackages.
        members: the names that the package has of other modules, by the name of the module.

    Example:
        >>> get, _ = subpackages("qcore", ["random"], {"qcore.linalg": ["Product"]})
        >>> get("random").__name__, get("Product").__name__
        ('qcore.random', 'Product')
    """
    owners = {name: module for module, found in (members or {}).items() for name in found}

    def get(name: str) -> Any:
        if name in names:
            return import_module(f"{package}.{name}")
        if name in owners:
            found = getattr(import_module(owners[name]), name)
            setattr(sys.modules[package], name, found)
            return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, public_names(package, *names, *owners)


def public_names(module: str, *names: str) -> Callable[[], list[str]]:
    """The `__dir__` of a module: what completion offers are its public names, and not what it imports.

    Args:
        module: its name.
        names: what it has besides the names of its `__all__`, such as subpackages.

    Example:
        >>> import qcore.recipes
        >>> [name for name in public_names("qcore.recipes", "rules")() if not name.startswith("__")]
        ['Entry', 'RECIPES', 'Recipe', 'rules']
    """

    def listed() -> list[str]:
        known = vars(sys.modules[module])
        return sorted({*known.get("__all__", ()), *names, *(name for name in known if name.startswith("__"))})

    return listed
