"""griffe's extension: what it must be told of our docstrings, and of functions that no `def` of their name makes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import griffe

from qcore.affine.rows import OPERATIONS
from website import reference


class Docstrings(griffe.Extension):
    """Sections "Example" are programs, as its "Examples" are; and what is called is a function, whatever made it."""

    def on_object(self, *, obj: griffe.Object, **_others: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _with_examples(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_others: Any) -> None:
        for module in reference.public_modules():
            package, _, inside = module.__name__.partition(".")
            if package == pkg.path:
                members = pkg[inside] if inside else pkg
                for name in module.__all__:
                    thing = getattr(module, name)
                    # A bound method is a package's own, also where only another package's file names it.
                    if inspect.ismethod(thing) or (inspect.isroutine(thing) and not _is_function(members[name])):
                        members.set_member(name, Made(name, thing))
                    elif inspect.isfunction(thing) or getattr(thing, "law", None) in OPERATIONS:
                        _complete(members[name], inspect.getdoc(thing) or "")


class Made(griffe.Function):
    """A function as Python sees it when it runs: a bound method, or what a function returned.

    Args:
        name: its public name.
        thing: the function.
    """

    def __init__(self, name: str, thing: Callable[..., Any]) -> None:
        signature = inspect.signature(thing)
        parameters = griffe.Parameters(*map(_parameter, signature.parameters.values()))
        super().__init__(name, parameters=parameters, returns=_annotation(signature.return_annotation))
        self.docstring = griffe.Docstring(_with_examples(inspect.getdoc(thing) or ""), parent=self)
        self._made_by = inspect.unwrap(thing)

    @property
    def source(self) -> str:
        return dedent(inspect.getsource(self._made_by))

    @property
    def relative_filepath(self) -> Path:
        return Path(inspect.getfile(self._made_by)).relative_to(reference.ROOT)


def _complete(member: griffe.Object | griffe.Alias, text: str) -> None:
    """Gives a function or a layer the document that it gets of a row (`qcore.affine.rows`)."""
    with suppress(griffe.AliasResolutionError):  # from another package, which completes it
        member.docstring = griffe.Docstring(_with_examples(text), parent=member)  # type: ignore[arg-type]


def _is_function(member: griffe.Object | griffe.Alias) -> bool:
    """False of an attribute, and of a module that has the function's name."""
    try:
        return member.is_function
    except griffe.AliasResolutionError:  # from another package, where it has a `def`
        return True


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    default = None if one.default is one.empty else getattr(one.default, "__name__", repr(one.default))
    kind = griffe.ParameterKind(one.kind.description)
    return griffe.Parameter(one.name, annotation=_annotation(one.annotation), kind=kind, default=default)


def _annotation(found: Any) -> str | None:
    if found is inspect.Signature.empty:
        return None
    return found if isinstance(found, str) else inspect.formatannotation(found)


def _with_examples(text: str) -> str:
    return re.sub(r"^Example:$", "Examples:", text, flags=re.M)
