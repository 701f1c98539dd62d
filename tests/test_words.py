"""Each word of the glossary has one sense in the code, in names of parameters, fields, functions, classes and files."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]


class Sense(NamedTuple):
    """Of a parameter or field: the annotations that its word has, and the rooms where it may have Any or none."""

    types: str
    rooms: tuple[str, ...] = ()


# Laws have arrays of any package as arguments, which are Any.
PARAMETERS = {
    "form": Sense("AffineInteger", ("qcore/affine", "qtorch/_affine", "qtorch/export", "qjax/export")),
    "geometry": Sense("(Convolution|Matrix)?Geometry", ("qcore/linalg", "qtorch/linalg")),
    "whole": Sense("nothing"),
    "narrow": Sense("bool"),
    "wide": Sense("bool"),
    "kind": Sense("str|Kind"),
    "kinds": Sense("str|Kind|np.ndarray"),  # arrays of kinds of rows
    "place": Sense("int", ("qcore", "qtorch")),
    "places": Sense("int|Shape|Places|Value|Symbol|np.ndarray|jax.Array|torch.Tensor", ("qcore", "qtorch")),
    "site": Sense("str|Site|LayerSite"),
    "sites": Sense("str|Site"),
    "constant": Sense("int|torch.Tensor", ("qcore/namespace.py",)),
    "grid": Sense("Grid"),
    "carrier": Sense("Carrier|str", ("qcore/formats",)),
    "design": Sense("Design", ("qcore/linalg",)),
    "recipe": Sense("Recipe", ("qcore/recipes",)),
    "plain": Sense("bool"),
    "usual": Sense("bool|Kernel"),
    "word": Sense("int", ("qcore", "qtorch", "qjax")),
    "trace": Sense("(Affine|Array)?Trace|Reading"),
}
# What users, standards and files call so.
OTHERS = {
    "qcore/cli/layers.py: form": "the key of a header, in files that users have",
    "qtorch/linalg/call.py: geometry": "a geometry's text",
    "qtorch/linalg/native.py: geometry": "a geometry's text",
    "qtorch/reproducible/functions.py: geometry": "a geometry's text",
    "qtorch/reproducible/product.py: geometry": "a geometry's text",
    "qtorch/export/expansion.py: form": "the fields of the integers",
    "qtorch/export/hardware.py: form": "the fields of the integers",
    "qcore/exchange/qonnx.py: narrow": "the attribute of QONNX's nodes",
    "qcore/exchange/operators/qonnx.py: narrow": "the attribute of QONNX's nodes",
    "qcore/insight/choosing.py: wide": "results in high precision",
    "qcore/formats/text.py: kind": "the class of a kind of formats",
    "qcore/formats/text.py: kinds": "functions by the names of kinds",
}
# Methods of array namespaces, and what writes programs.
FUNCTIONS = {
    "form": ("qjax/quantization/observer.py",),
    "take": (
        "qcore/namespace.py",
        "qcore/trace.py",
        "qcore/reproducible",
        "qtorch/_namespace.py",
        "qjax/_namespace.py",
    ),
    "constant": ("qcore/exchange/graph.py", "qjax/export", "qtorch/_rounding/paths/inductor.py", "qtorch/reproducible"),
    "narrow": ("qcore/law/carrier.py", "qcore/reproducible/moves.py"),  # the second is torch's name
    "wide": (),
    "whole": (),
    "kind": (),
    "places": ("qcore/reproducible/moves.py",),
    "place": (),
    "lower": ("qtorch/recipes/__init__.py", "qjax/recipes/__init__.py"),
    "lower_round": (),
}
# Classes and names of types, beside those that extend a class of the name.
CLASSES = {
    "Form": ("qjax/quantization/affine.py",),
    "Lowered": ("qtorch/recipes/layers.py",),  # for older pickles
    "Lowering": ("qtorch/recipes/modes.py",),
    "Found": (),
    "Parts": ("qtorch/quantization/subclasses.py",),
    "Call": ("qcore/workflow/flow.py",),
    "Node": ("qjax/export/walk.py",),
    "Value": ("qcore/trace.py", "qjax/export/walk.py"),
    "Recording": ("qcore/affine/observers.py",),
    "Site": ("qcore/insight/record.py",),
    "Names": ("qcore/namespace.py", "qtorch/reproducible/__init__.py", "qjax/reproducible/__init__.py"),
}
# Rooms and files. Arithmetic is that of formats.
MODULES = {
    "arithmetic": ("qcore/arithmetic", "qtorch/arithmetic", "qjax/arithmetic"),
    "form": (),
    "forms": (),
    "whole": ("qcore/whole.py",),
    "places": (),
    "lowering": (),
}


def parameters(tree):
    """The names, annotations and lines of the parameters of functions, and of fields of classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            more = [one for one in (arguments.vararg, arguments.kwarg) if one]
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *more):
                yield one.arg, one.annotation, one.lineno
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id, field.annotation, field.lineno


def functions(tree):
    return [(node.name, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def classes(tree):
    """The names and lines of classes that extend none of the same name, and of types that are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            name = node.name.lstrip("_")
            if not any(ast.unparse(base).rpartition(".")[2].partition("[")[0] == name for base in node.bases):
                yield name, node.lineno
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id.lstrip("_"), node.lineno


def is_allowed(file, rooms):
    return any(file == room or file.startswith(f"{room}/") for room in rooms)


def wrong_parameters(file, tree):
    for word, annotation, line in parameters(tree):
        if word in PARAMETERS and f"{file}: {word}" not in OTHERS:
            types, rooms = PARAMETERS[word]
            text = "Any" if annotation is None else ast.unparse(annotation)
            if not re.search(rf"\b({types})\b", text) and not (text == "Any" and is_allowed(file, rooms)):
                yield f"{file}:{line}: {word}: {text}"


def wrong_names(file, found, allowed):
    return [f"{file}:{line}: {name}" for name, line in found if name in allowed and not is_allowed(file, allowed[name])]


def wrong(file, tree):
    """What names something else than its word means."""
    yield from wrong_parameters(file, tree)
    yield from wrong_names(file, functions(tree), FUNCTIONS)
    yield from wrong_names(file, classes(tree), CLASSES)
    parts = re.split("[/.]", file)[:-1]
    yield from wrong_names(file, [(part.lstrip("_"), 1) for part in parts], MODULES)


SENSES = {
    "whole": "the entire",
    "place": "index",
    "form": "AffineInteger",
    "geometry": "sums over",
    "narrow": "fewer bits",
    "kind": "key",
}


def test_the_glossary_has_them():
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("docs/glossary.md", "CONTRIBUTING.md"))
    rows = dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", pages, re.MULTILINE))
    for word, sense in SENSES.items():
        assert sense in rows[word], word


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("qcore/linalg/new.py", "def multiply(form: Geometry): ..."),
        ("qcore/linalg/new.py", "def multiply(form: Any): ..."),
        ("qcore/exchange/new.py", "def round_(x: Any, form: FixedPoint): ..."),
        ("qtorch/quantization/new.py", "def walk(model, whole: Callable[[Any], bool]): ..."),
        ("qcore/law/new.py", "class Program:\n    whole: bool = False"),
        ("qjax/linalg/new.py", "lambda x, narrow: narrow(x)"),
        ("qtorch/new.py", "def changed(kind: type): ..."),
        ("qcore/report.py", "class ProductReport:\n    place: str"),
        ("qcore/recipes/new.py", "def check(places: Sequence[str]): ..."),
        ("qcore/exchange/graph.py", "class Graph:\n    def take(self, names): ..."),
        ("qtorch/_torch_internals.py", "def constant(function): ..."),
        ("qtorch/_rounding/new.py", "def lower_round(x): ..."),
        ("qjax/recipes/new.py", "class _Lowered(Protocol): ..."),
        ("qjax/insight/new.py", "Found = dict[str, int]"),
        ("qjax/recipes/new.py", "class Site(NamedTuple): ..."),
        ("qcore/exchange/new.py", "class Parts: ..."),
        ("qcore/affine/arithmetic/norms.py", ""),
    ],
)
def test_other_senses_are_found(file, line):
    assert len(list(wrong(file, ast.parse(line)))) == 1


def test_words_have_one_sense():
    for path in (path for package in ("qcore", "qtorch", "qjax") for path in sorted((ROOT / package).rglob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert [*wrong(path.relative_to(ROOT).as_posix(), tree)] == []
