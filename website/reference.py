"""The pages of the API reference: one for each public module and part of one, with every name of its `__all__`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from website.parts import PARTS, part_of

_TORCH = "https://docs.pytorch.org/docs/stable/generated/torch.nn."
ROOT = Path(__file__).parent.parent
PACKAGES = ("qcore", "qtorch", "qjax")


def public_modules() -> Iterator[ModuleType]:
    """The modules with an `__all__` and no underscore in their names, packages before what is in them.

    A module whose names its package, or a room beside it, exports by `from module import *` is not among them: the
    page of the package, or the room, has them.
    """
    for package in map(import_module, PACKAGES):
        inside = sorted(found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
        for name in (package.__name__, *inside):
            if not any(part.startswith("_") for part in name.split(".")):
                module = import_module(name)
                if hasattr(module, "__all__") and not _is_a_part(module):
                    yield module


def _is_a_part(module: ModuleType) -> bool:
    """True if the package of a module, or a package in it, exports its public names by `from module import *`."""
    package = module.__name__.rpartition(".")[0]
    if not package:
        return False
    file = Path(str(import_module(package).__file__))
    texts = [one.read_text(encoding="utf-8") for one in (file, *file.parent.glob("*/__init__.py"))]
    return any(f"\nfrom {module.__name__} import *" in text for text in texts)


@cache
def modules() -> dict[str, dict[str, str]]:
    """The pages of each module by their names: the module's own page, and those of its parts.

    A name that several modules have is described where it is first.
    """
    homes: dict[int, str] = {}
    return {module.__name__: _pages(module, homes) for module in public_modules()}


def pages() -> dict[str, str]:
    """All pages by their names."""
    return {name: text for pages_of in modules().values() for name, text in pages_of.items()}


def names() -> str:
    """The page of all public names, by module: what versions promise to keep."""
    parts = ["# All public names", "Where a module is shown with a name of another, it is the same thing."]
    for module in public_modules():
        path = module.__name__
        found = sorted(
            (name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)), key=str.lower
        )
        parts.append(f"**[`{path}`]({path}.md)**: {', '.join(f'`{name}`' for name in found)}")
    return "\n\n".join(parts) + "\n"


def _pages(module: ModuleType, homes: dict[int, str]) -> dict[str, str]:
    """mkdocstrings' directives for a module; adds to homes what is described here."""
    path = module.__name__
    described: dict[str, list[str]] = {title: [] for title in (*PARTS.get(path, ()), "")}
    elsewhere = []
    for name in sorted(set(module.__all__), key=lambda name: (name.lower(), name)):
        thing = getattr(module, name)
        if isinstance(thing, ModuleType):
            elsewhere.append(f"- [`{path}.{name}`]({path}.{name}.md), a module")
        elif str(getattr(thing, "__module__", "")).startswith("torch."):
            elsewhere.append(f"- [`{path}.{name}`]({_TORCH}{thing.__qualname__}.html), PyTorch's own")
        elif id(thing) in homes:
            elsewhere.append(f"- [`{path}.{name}`][{homes[id(thing)]}], the same as `{homes[id(thing)]}`")
        else:
            homes[id(thing)] = f"{path}.{name}"
            described[part_of(path, name)].append(name)
    own = [
        f"::: {path}\n    options:\n      heading_level: 1\n      members: false\n      show_root_toc_entry: false\n"
    ]
    own += [_directive(path, name) for name in described.pop("")]
    found = {}
    for title, names in described.items():
        page = f"{path}.{title.replace(' ', '-')}"
        links = ", ".join(f"[`{name}`][{path}.{name}]" for name in names)
        own.append(f"## [{title.capitalize()}]({page}.md)\n\n{links}\n")
        found[page] = "\n".join([f"# [{path}]({path}.md): {title}\n", *(_directive(path, name) for name in names)])
    if elsewhere:
        own.append("## Described elsewhere\n\n" + "\n".join(elsewhere) + "\n")
    return {path: "\n".join(own)} | found


def _directive(path: str, name: str) -> str:
    return f"::: {path}.{name}\n"
