"""Models as trees of modules: what the steps of the workflow ask of PyTorch's modules and flax's alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from qcore.workflow.settings import check_entries

Change = Callable[[str, Any], Any]  # of a path and a module: what takes the module's place
Ties = Sequence[Sequence[str]]  # the paths of the layers that share a parameter, one list for each parameter


class Tree(Protocol):
    """The modules of a framework, and what the workflow asks of them.

    A layer that is quantized as one is a leaf here, whatever modules it consists of.
    """

    def class_of(self, module: Any) -> type: ...  # with which it was made
    def named(self, model: Any) -> list[tuple[str, Any]]: ...  # all modules by name, outer ones first
    def walk(self, model: Any) -> Iterable[tuple[str, Any]]: ...  # each by its first name, and none in leaves
    def children(self, module: Any) -> Sequence[tuple[str, Any]]: ...  # by name; a leaf has none
    def rebuilt(self, model: Any, change: Change) -> Any: ...  # a change of each module but of those in leaves
    def parameters(self, module: Any) -> Iterable[Hashable]: ...  # what identifies each; not those of children
    def weights(self, module: Any) -> Iterable[tuple[Any, str, Any]]: ...  # quantized, with the owners and attributes
    def same(self, weight: Any, other: Any) -> bool: ...  # quantized weights with equal settings and bits


def propagated(
    tree: Tree,
    model: Any,
    entries: Mapping[Any, Any],
    classes: Sequence[type],
    own: Callable[[str, Any, Any], Any] = lambda path, module, settings: settings,
) -> dict[str, Any]:
    """The settings of all modules by name: the entry of the name, else of the exact type, else those of the parent.

    Args:
        tree, model: the modules.
        entries: settings, or None, by names ("" is the model) and types.
        classes: of settings.
        own: the settings of a module by its path, given what it got.

    Raises:
        TypeError, ValueError: as `check_entries` does.
    """
    modules = tree.named(model)
    check_entries(entries, modules, tree.class_of, classes)
    found: dict[str, Any] = {}
    for path, module in modules:
        parts = path.split(".")
        outer = (".".join(parts[:end]) for end in range(len(parts), -1, -1))  # one of the same name may be around it
        inherited = next((found[one] for one in outer if one in found), None)
        found[path] = own(path, module, entries.get(path, entries.get(tree.class_of(module), inherited)))
    return found


def ties_of(tree: Tree, model: Any) -> Ties:
    """The layers of a float model that share parameters."""
    users = defaultdict[Hashable, list[str]](list)
    for path, module in tree.walk(model):
        for parameter in tree.parameters(module):
            users[parameter].append(path)
    return [paths for paths in users.values() if len(paths) > 1]


def tie(tree: Tree, model: Any, ties: Ties) -> None:
    """Makes equal weights of layers that shared a parameter one module again.

    Other settings, or a training in which the layers parted, made other weights, which stay apart.
    """
    layers = dict(reversed(tree.named(model)))  # of several with one name the outermost
    for paths in ties:
        made: list[Any] = []
        for owner, name, weight in _weights(tree, (layers[path] for path in paths if path in layers)):
            twin = next((one for one in made if tree.same(one, weight)), None)
            if twin is None:
                made.append(weight)
            else:
                setattr(owner, name, twin)


def _weights(tree: Tree, layers: Iterable[Any]) -> Iterator[tuple[Any, str, Any]]:
    for layer in layers:
        yield from tree.weights(layer)
