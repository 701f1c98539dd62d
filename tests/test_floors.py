"""The house's floors: imports go down only, and never in a circle."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Rooms from the ground up; one imports from lower floors, and within itself. "" is what a package itself exports.
FLOORS = {
    "qcore": [
        "arguments binding files html lazy names namespace notices tables version trace",
        "random packing pictures writer",
        "law",
        "formats",
        "arrays",
        "affine linalg testing",
        "arithmetic distributed report reproducible",
        "exchange workflow",
        "recipes",
        "engines insight",
        "cli",
        "",
        "__main__",
    ],
    "qtorch": [
        "_torch_internals _classes _exported _running _states",
        "_conversion",
        "_namespace",
        "_kernels",
        "_rounding",
        "exchange linalg testing",
        "arithmetic distributed quant",
        "_affine",
        "recipes",
        "auto_low",
        "reproducible",
        "optim",
        "insight",
        "engines nn",
        "quantization",
        "export",
        "_operators",
        "",
    ],
    "qjax": [
        "_namespace _parameters",
        "_rounding _models _jaxprs",
        "linalg testing",
        "arithmetic distributed quant",
        "recipes",
        "quantization",
        "insight nnx",
        "reproducible",
        "optim",
        "engines exchange export",
        "",
    ],
}
APART = {
    "qcore": {"torch", "jax", "qtorch", "qjax"},
    "qtorch": {"jax", "qjax"},
    "qjax": {"torch", "qtorch"},
}

# Exceptions, which only ever go: what is listed and no longer needed fails.
UPWARD = set()

# The four products and their rooms, which may be files. A package's own file is the door to all that users import.
PRODUCTS = {
    "simulator": {
        "ground": "qcore.arguments qcore.binding qcore.files qcore.html qcore.lazy qcore.names qcore.namespace "
        "qcore.notices qcore.packing qcore.pictures qcore.tables qcore.trace qcore.version qcore.writer "
        "qtorch._classes qtorch._conversion "
        "qtorch._exported qtorch._namespace qtorch._running qtorch._states qtorch._torch_internals qjax._jaxprs "
        "qjax._models qjax._namespace qjax._parameters",
        "law": "qcore.law qcore.formats qcore.random qcore.arrays",
        "rounding": "qtorch._kernels qtorch._rounding qjax._rounding",
        "products": "qcore.linalg qcore.report qtorch._kernels.products qtorch.linalg qjax.linalg qjax.nnx.products",
        "arithmetic": "qcore.arithmetic qtorch.arithmetic qjax.arithmetic",
        "collectives": "qcore.distributed qtorch.distributed qjax.distributed",
        "functions": "qcore.reproducible qtorch.reproducible qjax.reproducible",
        "engines": "qcore.engines qtorch.engines qjax.engines",
        "quantizers": "qcore.recipes.rules qtorch.quant qjax.quant qjax.nnx.quantizer",
        "recipes": "qcore.recipes qtorch.recipes qtorch.auto_low qjax.recipes",
        "optimizers": "qtorch.optim qjax.optim",
        "insight": "qcore.insight qtorch._kernels.insight qtorch.insight qjax.insight",
        "testing": "qcore.testing qtorch.testing qjax.testing",
    },
    "quantization": {
        "arrays": "qcore.affine qtorch._affine qjax.quantization",
        "workflow": "qcore.workflow qtorch.nn qtorch.quantization qjax.nnx",
    },
    "exchange": {
        "files": "qcore.exchange qtorch.exchange qjax.exchange",
        "export": "qtorch.export qjax.export",
    },
    "chips' kit": {"commands": "qcore.cli qcore.__main__"},
}
DOORS = {"qcore", "qtorch", "qjax", "qtorch._operators"}
OLD = {"qcore.formats.affine", "qcore.formats.doubled", "qcore.formats.gguf"}  # one name each, for earlier pickles

# Which products a product imports, and which rooms of its own a room of the simulator does.
USES = {
    "simulator": "",
    "quantization": "simulator",
    "exchange": "simulator quantization",
    "chips' kit": "simulator",
}
ROOMS_USE = {  # from the ground up
    "ground": "",
    "law": "ground",
    "rounding": "ground law",
    "testing": "ground law rounding",
    "products": "ground law rounding",
    "arithmetic": "ground law rounding products",
    "collectives": "ground law rounding products",
    "quantizers": "ground law rounding products",
    "recipes": "ground law rounding products arithmetic quantizers",
    "functions": "ground law rounding products recipes",
    "engines": "ground law rounding products recipes functions",
    "optimizers": "ground law rounding products quantizers functions",
    "insight": "ground law rounding products quantizers recipes functions optimizers",
}


def modules():
    """The files of all modules by dotted name."""
    for package in FLOORS:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(name[:-1] if name[-1] == "__init__" else name), path


FILES = dict(modules())

# Files that import what their text does not name, and why. Others may not call `import_module`.
COMPUTED = {
    "qcore.affine.checkpoint": "safetensors, which need not be there",
    "qcore.exchange.safetensors": "ml_dtypes, which need not be there",
    "qcore.cli.functions": "the packages of ROOMS, and their compilers",
    "qcore.lazy": "for the rooms that call `subpackages`, where the names are",
    "qtorch._affine.programs": "the modules of laws, which its table names",
    "qtorch._operators": "rooms that have an operator's functions, which the table there names",
    "qjax.reproducible": "modules that need flax; what type checkers are told has them all",
}
# The command compares the package that a user names with the law.
BY_NAME = {("qcore.cli.functions", f"{package}.reproducible") for package in ("qtorch", "qjax")}


class Imports(ast.NodeVisitor):
    """The modules that a file names: when it is imported, when its functions run, and when it is asked for attributes.

    These are import statements, strings with the name of a module, attributes of packages (`qcore.random`), and the
    names of `subpackages`. Imports for type checkers count where a module has a `__getattr__`: they say what it gets.
    """

    def __init__(self, module, path):
        self.found, self.module, self.calls, self.asked, self.owners = set(), module, set(), set(), {}
        self.typed = set()  # what only type checkers import
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.is_lazy = any("__getattr__" in names_of(node) for node in tree.body)
        self.visit(tree)

    def add(self, name):
        """The longest part of a dotted name that is a module of ours, or the whole name."""
        parts = name.split(".")
        self.asked.add(name)
        known = [".".join(parts[:count]) for count in range(len(parts), 0, -1) if ".".join(parts[:count]) in FILES]
        self.found.add(known[0] if known else name)

    def visit_If(self, node):
        if ast.unparse(node.test) != "TYPE_CHECKING" or self.is_lazy:
            self.generic_visit(node)
        else:
            found, self.found = self.found, self.typed
            self.generic_visit(node)
            self.found = found

    def visit_Import(self, node):
        for alias in node.names:
            self.add(alias.name)

    def visit_ImportFrom(self, node):
        assert node.level == 0, f"{self.module} imports relatively"
        for alias in node.names:
            self.add(f"{node.module}.{alias.name}")
            self.owners[alias.asname or alias.name] = node.module

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # no docstring
            self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, str) and "." in node.value and node.value in FILES:
            self.found.add(node.value)

    def visit_Attribute(self, node):
        name = ast.unparse(node)
        if name.split(".")[0] in FLOORS and all(part.isidentifier() for part in name.split(".")):
            self.add(name)
        else:
            self.generic_visit(node)

    def visit_Call(self, node):
        function = ast.unparse(node.func).rpartition(".")[2]
        self.calls.add(function)
        if function == "subpackages" and self.module != "qcore.lazy":
            names = (
                all_of(FILES[self.module]) if ast.unparse(node.args[1]) == "__all__" else ast.literal_eval(node.args[1])
            )
            self.found.update(f"{self.module}.{name}" for name in names)
        self.generic_visit(node)


def names_of(statement):
    """What a statement of a module defines."""
    targets = getattr(statement, "targets", [])
    return {name.id for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)} | (
        {statement.name} if isinstance(statement, ast.FunctionDef) else set()
    )


def all_of(path):
    """The list `__all__` of a module, if that is written as one."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and "__all__" in names_of(node) and isinstance(node.value, ast.List):
            return [one.value for one in node.value.elts if isinstance(one, ast.Constant)]
    return []


@cache
def seen():
    return {name: Imports(name, path) for name, path in FILES.items()}


@cache
def edges():
    return {name: sorted(one.found - {name}) for name, one in seen().items()}


def floor(module):
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return next(i for i, rooms in enumerate(FLOORS[package]) if room in rooms.split(" ")), room


def test_every_room_has_a_floor():
    assert [floor(name) for name in FILES]


def test_contributing_has_the_picture():
    picture = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The floors")[2].split("```")[1]
    rooms = {room for floors in FLOORS.values() for rooms in floors for room in rooms.split()} - {"__main__"}
    assert rooms <= set(picture.split())


def test_imports_go_down():
    inside = {(a, b) for a, others in edges().items() if a not in OLD for b in others if b in FILES}
    same_package = {pair for pair in inside if pair[0].split(".")[0] == pair[1].split(".")[0]}
    wrong = {(a, b) for a, b in same_package if floor(a)[1] != floor(b)[1] and floor(a)[0] <= floor(b)[0]}
    assert wrong == UPWARD


def place(module):
    """The product of a module and its room there: those of the longest name that it begins with."""
    found = {
        room: (product, name)
        for product, rooms in PRODUCTS.items()
        for name, listed in rooms.items()
        for room in listed.split()
        if module == room or module.startswith(f"{room}.")
    }
    return found[max(found, key=len)]


def through_doors(module):
    """The modules that have the names which a module takes from a package's own file."""
    for name in seen()[module].found & DOORS:
        for asked in seen()[module].asked:
            if asked.startswith(f"{name}."):
                yield seen()[name].owners.get(asked.partition(".")[2])


def arrows():
    """The pairs of modules outside of doors, the second of which the first imports."""
    for name, others in edges().items():
        for other in {*others, *through_doors(name)} if name not in DOORS | OLD else ():
            if other in FILES and other not in DOORS:
                yield name, other


def test_every_module_is_in_a_product():
    assert [place(name) for name in FILES if name not in DOORS]


def test_old_places_are_for_pickles():
    assert not {(a, b) for a, others in edges().items() for b in others if b in OLD}


def test_walls():
    types = [(a, b) for a in FILES for b in seen()[a].typed if b in FILES and not {a, b} & DOORS]
    pairs = [(a, b, place(a)[0], place(b)[0]) for a, b in [*arrows(), *types]]
    assert not [(a, b) for a, b, product, other in pairs if other != product and other not in USES[product].split(" ")]
    assert {(product, other) for *_, product, other in pairs if other != product} == {
        (product, other) for product, others in USES.items() for other in others.split()
    }


def test_how_it_works_draws_the_products():
    """With about as many lines as they have, of Python and C."""
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    lines = Counter()
    for path in (path for package in FLOORS for path in (ROOT / package).rglob("*.[pch]*") if path.suffix != ".pyc"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name not in DOORS:
            lines[place(name)[0]] += len(path.read_text(encoding="utf-8").splitlines())
    for product in PRODUCTS:
        (said,) = re.findall(rf"{product}  ([0-9]+),000 lines", page)
        assert abs(int(said) * 1000 - lines[product]) < 1000 + lines[product] / 20, (product, lines[product])


def test_rooms_of_the_simulator():
    found = {room: set() for room in ROOMS_USE}
    for a, b in arrows():
        (product, room), (other_product, other) = place(a), place(b)
        if product == other_product == "simulator" and room != other:
            found[room].add(other)
    assert found == {room: set(rooms.split()) for room, rooms in ROOMS_USE.items()}
    upward = [*ROOMS_USE]
    assert all(upward.index(other) < upward.index(room) for room, others in found.items() for other in others)


def test_no_circles():
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, f"a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
        if name not in done:
            open_.append(name)
            for other in edges()[name]:
                if other in FILES and other != name:
                    visit(other)
            open_.pop()
            done.add(name)

    for name in FILES:
        visit(name)


@pytest.mark.parametrize("package", FLOORS)
def test_packages_are_apart(package):
    pairs = {(name, other) for name, others in edges().items() if name.split(".")[0] == package for other in others}
    assert {pair for pair in pairs if pair[1].split(".")[0] in APART[package]} == {
        pair for pair in BY_NAME if pair[0].split(".")[0] == package
    }


def test_imports_that_the_text_does_not_name():
    """`import_module` of what is computed hides edges from this test."""
    assert {name for name, one in seen().items() if one.calls & {"import_module", "__import__"}} == set(COMPUTED)


SAMPLE = """
'''qcore.cli: a docstring is no import.'''
import qcore
from qcore.formats import names
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from qcore import insight
{more}
def function():
    room = find("qcore.affine.observers"), "qcore.nothing"
    return qcore.random.threefry.Noise, room
"""


@pytest.mark.parametrize(
    "more", ["", "def __getattr__(name): ...", "__getattr__, __dir__ = subpackages(__name__, ['law'])"]
)
def test_strings_and_lazy_attributes_are_seen(more, tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(SAMPLE.format(more=more), encoding="utf-8")
    expected = {
        "qcore",
        "qcore.formats.names",
        "qcore.affine.observers",
        "qcore.random.threefry",
        "typing.TYPE_CHECKING",
    }
    expected |= {"qcore.insight"} if more else set()
    expected |= {"qcore.law"} if "law" in more else set()
    assert Imports("qcore", path).found == expected
