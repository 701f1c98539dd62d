"""The house's floors: imports go down only, and never in a circle."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Rooms from the ground up; one imports from lower floors, and within itself. "" is what a package itself exports.
FLOORS = {
    "qcore": [
        "arguments files html lazy namespace notices version trace",
        "random packing",
        "law",
        "formats",
        "arrays",
        "affine linalg",
        "reproducible",
        "recipes report",
        "insight",
        "cli",
        "",
        "__main__",
    ],
    "qtorch": [
        "_namespace _torch_internals _classes _places",
        "_kernels",
        "_rounding",
        "linalg",
        "quant",
        "_affine optim",
        "recipes",
        "auto_low",
        "reproducible insight",
        "nn",
        "quantization",
        "",
    ],
    "qjax": [
        "_namespace",
        "_rounding _models _jaxprs",
        "linalg",
        "quant",
        "optim",
        "recipes",
        "quantization",
        "insight nnx",
        "reproducible",
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


def modules():
    """The files of all modules by dotted name."""
    for package in FLOORS:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(name[:-1] if name[-1] == "__init__" else name), path


FILES = dict(modules())


def statements(tree):
    """All nodes that run: a lazy room names for type checkers what it takes from higher floors when asked."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from statements(node)


def imports(path):
    """The modules that a file imports anywhere, in functions as well."""
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else str(node.module)


EDGES = {name: sorted(set(imports(path))) for name, path in FILES.items()}


def floor(module):
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return next(i for i, rooms in enumerate(FLOORS[package]) if room in rooms.split(" ")), room


def test_every_room_has_a_floor():
    assert [floor(name) for name in FILES]


def test_imports_go_down():
    inside = {(name, other) for name, others in EDGES.items() for other in others if other in FILES}
    same_package = {pair for pair in inside if pair[0].split(".")[0] == pair[1].split(".")[0]}
    wrong = {(a, b) for a, b in same_package if floor(a)[1] != floor(b)[1] and floor(a)[0] <= floor(b)[0]}
    assert wrong == UPWARD


def test_no_circles():
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, f"a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
        if name not in done:
            open_.append(name)
            for other in EDGES[name]:
                if other in FILES and other != name:
                    visit(other)
            open_.pop()
            done.add(name)

    for name in FILES:
        visit(name)


@pytest.mark.parametrize("package", FLOORS)
def test_packages_are_apart(package):
    used = {other.split(".")[0] for name, others in EDGES.items() if name.split(".")[0] == package for other in others}
    assert not used & APART[package]
