"""The API reference has every public name of the three packages."""

import importlib
import pkgutil
import re
from types import ModuleType

import pytest

from website import reference


def public_modules():
    for package in ("qcore", "qtorch", "qjax"):
        yield package
        place = importlib.import_module(package).__path__
        yield from (found.name for found in pkgutil.walk_packages(place, f"{package}.") if "._" not in found.name)


MODULES = [name for name in public_modules() if hasattr(importlib.import_module(name), "__all__")]


def test_public_modules_are_the_pages():
    assert set(reference.pages()) == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_every_name_is_described_once(name):
    """By a directive, or by a link to the page that has it."""
    module, text = importlib.import_module(name), reference.pages()[name]
    for public in module.__all__:
        described = re.findall(rf"^::: {name}\.{public}$|^- \[`{name}\.{public}`\][(\[]", text, re.M)
        assert len(described) == 1, public


@pytest.mark.parametrize("name", MODULES)
def test_every_name_has_a_docstring(name):
    module = importlib.import_module(name)
    things = {public: getattr(module, public) for public in module.__all__}
    # A constant's words stand behind it, where `inspect` does not look.
    callables = {public: thing for public, thing in things.items() if callable(thing) or isinstance(thing, ModuleType)}
    assert [public for public, thing in callables.items() if not thing.__doc__] == []
