"""Subpackages that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType


def subpackages(package: str, names: Sequence[str]) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, whose subpackages have these names.

    Example:
        >>> get, _ = subpackages("qcore", ["random"])
        >>> get("random").__name__
        'qcore.random'
    """

    def get(name: str) -> ModuleType:
        if name in names:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, listed
