"""Which settings each module of a model gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import nnx

from qcore.arguments import quoted
from qjax._models import all_names, is_in, modules_of, name_of, shown
from qjax.quantization import QConfig


def settings_of(model: nnx.Module, entries: Any, *kinds: type) -> dict[str, Any]:
    """The settings of all modules by name: those of the name, else of the exact type, else the parent's.

    Args:
        model: the model.
        entries: settings for all of the model, or a mapping of settings, or None, for names ("" is the model) and
            types.
        kinds: what settings are, of `QConfig` and `QConfigDynamic`; none means `QConfig`.

    Raises:
        TypeError: if entries or settings have the wrong type.
        ValueError: if an entry names nothing that is in the model, so that it would do nothing.
    """
    entries = entries if isinstance(entries, Mapping) else {"": entries}
    modules = {path: module for path, module in modules_of(model).items() if not isinstance(module, nnx.List)}
    names = {path: name_of(path, modules) for path in modules}
    check_entries(entries, all_names(model), *(kinds or (QConfig,)))
    found: dict[str, Any] = {}
    for path, module in modules.items():
        outer = next((names[path[:end]] for end in range(len(path) - 1, -1, -1) if path[:end] in names), None)
        inherited = found.get(outer) if outer is not None else None
        found[names[path]] = entries.get(names[path], entries.get(type(module), inherited))
    return found


def check_entries(entries: Mapping[Any, Any], modules: list[tuple[str, nnx.Module]], *kinds: type) -> None:
    """Raises unless each entry is of settings, and names a module of the model or the type of one.

    Raises:
        TypeError, ValueError: if one does not.
    """
    types = {type(module) for _, module in modules}
    names = {name for name, _ in modules}
    name = "qconfig" if kinds[0] is QConfig else "qconfig_spec"
    for key, settings in entries.items():
        if settings is not None and not isinstance(settings, kinds):
            allowed = ", ".join(kind.__name__ for kind in kinds)
            raise TypeError(
                f"{name}: the entry {quoted(key)} is a {type(settings).__name__}; allowed are {allowed} and None"
            )
        if isinstance(key, str) and key not in names:
            raise ValueError(f"the entry {quoted(key)} names no module; there are {_some(sorted(names)[1:])}")
        if isinstance(key, type) and key not in types:
            derived = [name for name, module in modules if isinstance(module, key)]
            more = f"; {shown(derived[0])} is of a subclass, which needs an entry of its own" if derived else ""
            others = _some(sorted({one.__name__ for one in types}))
            raise ValueError(f"the entry {key.__name__} is the exact type of no module; there are {others}{more}")
        if not isinstance(key, (str, type)):
            raise TypeError(
                f"{name}: the entry {quoted(key)} is a {type(key).__name__}; allowed are names and types of modules"
            )


def check_effects(entries: Any, model: nnx.Module, done: set[str], what: str) -> None:
    """Raises unless each entry with settings has changed a layer.

    Args:
        entries: as for `settings_of`.
        model: the model before it was changed.
        done: the names of the layers that were changed.
        what: the layers that could have been, as a message has them.

    Raises:
        ValueError: if an entry has changed none.
    """
    entries = entries if isinstance(entries, Mapping) else {"": entries}
    for key, settings in entries.items():
        roots = [name for name, module in all_names(model) if key in (name, type(module))]
        if settings is None or any(is_in(name, root) for name in done for root in roots):
            continue
        if key == "":
            kinds = ", ".join(sorted({type(module).__name__ for _, module in nnx.iter_modules(model)}))
            raise ValueError(f"model has no {what}; there are {kinds}")
        raise ValueError(f"the entry {key if isinstance(key, str) else key.__name__} has no {what}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
