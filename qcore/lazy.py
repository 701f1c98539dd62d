"""Subpackages, and names of theirs, that are imported when they are first used (PEP 562)."""

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

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *owners})

    return get, listed
