"""The API reference has every public name of the three packages."""

import enum
import importlib
import inspect
import pkgutil
import re
from types import ModuleType

import pytest
from documents import ROOT

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
def test_links_to_pages_lead_somewhere(name):
    pages = reference.pages()
    assert set(re.findall(r"\]\(((?:qcore|qtorch|qjax)[\w.]*)\.md\)", pages[name])) <= set(pages)


def test_functions_that_are_attributes_have_their_source():
    """mkdocstrings shows that of all others."""
    for name in ("qcore.numerics", "qtorch.reproducible", "qjax.reproducible"):
        found = dict(re.findall(rf"^::: {name}\.(\w+)\n\nIts source is in `(.*)`\.$", reference.pages()[name], re.M))
        assert len(found) > 40
        assert [public for public, file in found.items() if f"def {public}(" not in (ROOT / file).read_text()] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_name_has_a_docstring(name):
    module = importlib.import_module(name)
    things = {public: getattr(module, public) for public in module.__all__}
    # A constant's words stand behind it, where `inspect` does not look.
    callables = {public: thing for public, thing in things.items() if callable(thing) or isinstance(thing, ModuleType)}
    assert [public for public, thing in callables.items() if not thing.__doc__] == []


def functions_and_classes(name):
    """The public functions and classes of a module, by their names; what calls make, such as observers, is neither."""
    module = importlib.import_module(name)
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isroutine(inspect.unwrap(thing)):
            yield public, thing


def own_parameters(thing):
    """The parameters of a function, or of a class whose constructor is of these packages."""
    function = thing
    if inspect.isclass(thing):
        function = thing.__new__ if hasattr(thing, "_fields") else thing.__init__
        if issubclass(thing, enum.Enum) or getattr(function, "__module__", None) is None:
            return []
        if function.__module__.split(".")[0] not in reference.PACKAGES and not hasattr(thing, "_fields"):
            return []
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls", "_cls")]


@pytest.mark.parametrize("name", MODULES)
def test_every_function_and_class_has_an_example(name):
    """In the docstring that the reference shows: that of functions with defined bits serves three packages."""
    things = functions_and_classes(name)
    assert [public for public, thing in things if ">>>" not in (thing.__doc__ or "")] == []


# Without arguments, or for any argument
NEVER_RAISES = {f"{action}_{what}" for action in ("enable", "disable") for what in ("observer", "fake_quant")}
NEVER_RAISES |= {f"get_default_{which}_module_mappings" for which in ("static_quant", "dynamic_quant", "qat")}
NEVER_RAISES |= {"freeze_bn_stats", "update_bn_stats", "get_default_qconfig_propagation_list"}
UNSAID = {"dequantize"}  # qtorch's: an AttributeError for what is no tensor, a defect


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("section", ["Returns", "Raises"])
def test_functions_say_what_they_return_and_raise(name, section):
    things = [(public, thing) for public, thing in functions_and_classes(name) if not inspect.isclass(thing)]
    missing = {public for public, thing in things if not re.search(rf"^ *{section}:$", thing.__doc__, re.M)}
    assert missing <= (NEVER_RAISES | UNSAID if section == "Raises" else set())


@pytest.mark.parametrize("name", MODULES)
def test_every_parameter_is_explained(name):
    section = re.compile(r"^ *(Args|Attributes):$", re.M)
    things = [(public, thing) for public, thing in functions_and_classes(name) if own_parameters(thing)]
    assert [public for public, thing in things if not section.search(thing.__doc__ or "")] == []
