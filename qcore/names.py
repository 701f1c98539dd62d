"""Names of modules in a model, where "" is the model itself; and of functions and classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import cleandoc
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MOST = 12  # names in a message


def joined(path: str, name: str) -> str:
    """The path of a child, whose name is "" where paths leave it out.

    Example:
        >>> joined("", "features"), joined("features", "0"), joined("features", "")
        ('features', 'features.0', 'features')
    """
    return f"{path}.{name}" if path and name else path or name


def is_in(path: str, root: str) -> bool:
    """True if a module is another, or is in it.

    Example:
        >>> is_in("features.0", "features"), is_in("features2", "features")
        (True, False)
    """
    return not root or path == root or path.startswith(f"{root}.")


def shown(path: str) -> str:
    """A path in the form that messages use."""
    return f"layer '{path}'" if path else "the model itself"


def some(names: Sequence[str]) -> str:
    """The first names of many, as messages list them."""
    return ", ".join(names[:MOST]) + (", ..." if len(names) > MOST else "")


def full_name(class_: type, library: object) -> str:
    """The name of a class of layers, with its module if it is not the class of this name in a library.

    Example:
        >>> (
        ...     full_name(int, object()),
        ...     full_name(type("Linear", (), {"__module__": "mine"}), type("nn", (), {"Linear": int})),
        ... )
        ('int', 'mine.Linear')
    """
    is_other = getattr(library, class_.__name__, class_) is not class_
    return f"{class_.__module__}.{class_.__name__}" if is_other else class_.__name__


def in_dimensions(dimensions: int, function: F) -> F:
    """The member of a family for one, two or three dimensions: its name, and its docstring, a template with that name.

    The docstring has {name}, {sizes} for the names of the sizes, and {ones} for the sizes of 1 before the last one.
    """
    name = f"{function.__name__}{dimensions}d"
    sizes = ("length", "height, width", "depth, height, width")[dimensions - 1]
    function.__doc__ = cleandoc(function.__doc__ or "").format(name=name, sizes=sizes, ones="1, " * (dimensions - 1))
    function.__name__ = function.__qualname__ = name
    return function
