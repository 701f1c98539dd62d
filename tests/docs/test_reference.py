"""The API reference has every public name of the three packages."""

import enum
import importlib
import inspect
import pkgutil
import re
from types import ModuleType

import griffe
import pytest
from documents import COLUMN, ROOT

from website import reference
from website.parts import PARTS


def public_modules():
    for package in ("qcore", "qtorch", "qjax"):
        yield package
        place = importlib.import_module(package).__path__
        yield from (found.name for found in pkgutil.walk_packages(place, f"{package}.") if "._" not in found.name)


ALL = [*public_modules()]


def is_a_part(name):
    """Of a room that takes all its names: the one around it, or one beside it."""
    room = name.rpartition(".")[0]
    rooms = [one for one in ALL if room and room in (one, one.rpartition(".")[0])]
    sources = [inspect.getsource(importlib.import_module(one)) for one in rooms]
    return any(re.search(rf"^from {name} import \*$", source, re.M) for source in sources)


MODULES = [name for name in ALL if hasattr(importlib.import_module(name), "__all__") and not is_a_part(name)]


def test_public_modules_are_the_pages():
    assert set(reference.modules()) == set(MODULES)
    pages = [page for pages in reference.modules().values() for page in pages]
    assert len(pages) == len(set(pages))


@pytest.mark.parametrize("name", PARTS)
def test_parts_have_names_of_their_module(name):
    parts = [text for page, text in reference.modules()[name].items() if page != name]
    assert len(parts) == len(PARTS[name])
    assert all(text.count("\n::: ") > 1 for text in parts)


def text_of_reference(name):
    return "\n".join(reference.modules()[name].values())


@pytest.mark.parametrize("name", MODULES)
def test_every_name_is_described_once(name):
    """By a directive, or by a link to the page that has it."""
    module, text = importlib.import_module(name), text_of_reference(name)
    for public in module.__all__:
        described = re.findall(rf"^::: {name}\.{public}$|^- \[`{name}\.{public}`\][(\[]", text, re.M)
        assert len(described) == 1, public


@pytest.mark.parametrize("name", MODULES)
def test_links_to_pages_lead_somewhere(name):
    links = re.findall(r"\]\(((?:qcore|qtorch|qjax)[\w.-]*)\.md\)", text_of_reference(name))
    assert set(links) <= set(reference.pages())


@pytest.fixture(scope="module")
def described():
    """The packages as griffe describes them to mkdocstrings."""
    extensions = griffe.load_extensions(str(ROOT / "website" / "docstrings.py"))
    loader = griffe.GriffeLoader(search_paths=[str(ROOT)], extensions=extensions)
    for package in reference.PACKAGES:
        loader.load(package)
    return loader.modules_collection


@pytest.mark.parametrize("name", MODULES)
def test_every_function_is_shown_as_one(described, name):
    """With its parameters, docstring and source, also where it is a bound method, or has the name of a module."""
    module = importlib.import_module(name)
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isroutine(thing):
            shown = described[f"{name}.{public}"]
            assert shown.is_function, public
            assert [one.name for one in shown.parameters] == [*inspect.signature(thing).parameters], public
            assert shown.docstring.value.strip().replace("Examples:", "Example:") == inspect.getdoc(thing), public
            assert "def " in shown.source, public
            assert (ROOT / shown.relative_filepath).is_file(), public


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


def explaining(thing, seen=()):
    """A thing, and for a class those that its first paragraph names: a family's arguments are explained once.

    These are a class of its module, or of another one by its full name, such as torch's. A function has the arguments
    of another one of its module if it says so.
    """
    yield thing
    if inspect.isfunction(thing):
        for name in re.findall(r"(?:arguments|arguments and the result|result) of `(\w+)`", thing.__doc__ or ""):
            yield getattr(importlib.import_module(thing.__module__), name)
    words = (thing.__doc__ or "").partition("\n\n")[0] if inspect.isclass(thing) else ""
    for path in re.findall(r"`([\w.]+)`", words):
        module, _, name = path.rpartition(".")
        other = getattr(importlib.import_module(module or thing.__module__), name, None)
        if inspect.isclass(other) and other not in (thing, *seen):
            yield from explaining(other, (thing, *seen)) if "torch.nn." not in path[:9] else [other]


@pytest.mark.parametrize("name", MODULES)
def test_every_function_and_class_has_an_example(name):
    """In the docstring that the reference shows: that of functions with defined bits serves three packages."""
    for public, thing in functions_and_classes(name):
        shown = explaining(thing) if inspect.isclass(thing) else [thing]
        assert any(">>>" in (one.__doc__ or "") for one in shown), public


@pytest.mark.parametrize("name", MODULES)
def test_examples_fit_the_column(name):
    for public, thing in functions_and_classes(name):
        example = inspect.cleandoc((thing.__doc__ or "").partition("Example:\n")[2])
        assert [line for line in example.splitlines() if len(line) > COLUMN] == [], public


@pytest.mark.parametrize("name", MODULES)
def test_functions_say_what_they_return(name):
    things = [(public, thing) for public, thing in functions_and_classes(name) if not inspect.isclass(thing)]
    heading = re.compile(r"^ *Returns:$", re.M)
    missing = [
        public for public, thing in things if not any(heading.search(one.__doc__ or "") for one in explaining(thing))
    ]
    assert missing == []


# A layer that gets floats for integers is no wrong call of a function.
KINDS = r"an argument (has the wrong type|is not as above|is out of range)|\w+ is something else"
KINDS += r"|(?!it )\w+ is not an? (?!QTensor)[\w.`]+"
GENERIC = re.compile(rf"^ *(TypeError|ValueError|TypeError, ValueError): if ({KINDS})\.$", re.M)


@pytest.mark.parametrize("name", MODULES)
def test_what_all_functions_raise_stands_once(name):
    """In the docstring of qcore."""
    assert [public for public, thing in functions_and_classes(name) if GENERIC.search(thing.__doc__ or "")] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_parameter_is_explained(name):
    section = re.compile(r"^ *(Args|Attributes):$", re.M)
    things = [(public, thing) for public, thing in functions_and_classes(name) if own_parameters(thing)]
    assert [
        public for public, thing in things if not any(section.search(one.__doc__ or "") for one in explaining(thing))
    ] == []


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("qtorch.nn")])
def test_every_parameter_of_a_family_is_explained(name):
    """By name, in the docstring of a class or of one that it names, or in the signature of torch's layer."""
    for public, thing in functions_and_classes(name):
        texts = [one.__doc__ or "" for one in explaining(thing)]
        known = {parameter for one in explaining(thing) for parameter in torchs_parameters(one)}
        for parameter in own_parameters(thing):
            explained = any(re.search(rf"^ *[\w, ]*\b{parameter}\b[\w, ]*: ", text, re.M) for text in texts)
            assert explained or parameter in known, (public, parameter)


def torchs_parameters(thing):
    """Those of a class of torch; no others are explained in torch's documentation."""
    return inspect.signature(thing).parameters if thing.__module__.startswith("torch.") else ()
