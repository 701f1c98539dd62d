"""Subpackages, and names of theirs, that are imported when they are first used; what completion offers (PEP 562).

A process that is forked during an import in another thread would have the import's lock, and nobody to open it. So a
fork waits until the imports of other threads are over.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

_LONGEST = 30  # seconds that a fork waits: the thread that forks may hold what another one needs for its import
_turn = threading.Condition()
_importing: list[int] = []  # the thread of each import that is under way


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
            return _imported(f"{package}.{name}")
        if name in owners:
            found = getattr(_imported(owners[name]), name)
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


def _imported(module: str) -> Any:
    """A module. Imports of several threads do not wait for each other, or two that import in turn could hang."""
    thread = threading.get_ident()
    with _turn:
        _importing.append(thread)
    try:
        return import_module(module)
    finally:
        with _turn:
            _importing.remove(thread)
            _turn.notify_all()


def _wait_for_imports() -> None:
    """Keeps the lock until the process is forked, so that no import begins."""
    _turn.acquire()
    _turn.wait_for(lambda: set(_importing) <= {threading.get_ident()}, _LONGEST)


def _forget_imports() -> None:
    """The other threads are not in the forked process."""
    _importing[:] = [thread for thread in _importing if thread == threading.get_ident()]
    _turn.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_parent=_turn.release, after_in_child=_forget_imports)
