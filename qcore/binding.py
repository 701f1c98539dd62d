"""How functions that are written once become those of a package, with docstrings whose examples run there."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from types import FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# What takes the place of NumPy's names in the examples of a package.
NUMPY: dict[str, str] = {}
TORCH = {"import numpy as np": "import torch", "np.float32(": "torch.tensor(", "np.array(": "torch.tensor("}
TORCH |= {"np.": "torch.", "qcore": "qtorch"}
JAX = {"import numpy as np": "import jax.numpy as jnp", "np.": "jnp.", "qcore": "qjax"}

_IMPORTS = """Example:
    >>> import numpy as np
    >>> from qcore import {room}
"""


def public(function: F) -> F:
    """Marks a public function. Its docstring, with NumPy's example, is the pattern for the docstrings of all packages.

    The imports of the example are added, because they are the same in all functions.
    """
    function.__dict__["pattern"], function.__doc__ = cleandoc(function.__doc__ or ""), None
    return function


def bind(cls: type, package: str, words: dict[str, str]) -> None:
    """Gives the class of a package copies of all public functions; `words` replace NumPy's names in examples."""
    for name in dir(cls):
        function = getattr(cls, name)
        pattern = getattr(function, "pattern", None)
        if pattern is not None:
            setattr(cls, name, _of_package(function, pattern, package, words))


def _of_package(function: Any, pattern: str, package: str, words: dict[str, str]) -> Any:
    """A copy of a function with a docstring of its own."""
    text = pattern.replace("Example:\n", _IMPORTS.format(room=package.rpartition(".")[2]))
    for word, other in words.items():
        text = text.replace(word, other)
    found = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    found.__kwdefaults__, found.__annotations__ = function.__kwdefaults__, function.__annotations__
    found.__doc__, found.__module__, found.__qualname__ = text, package, function.__name__
    return found
