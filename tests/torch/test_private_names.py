"""Where qtorch uses private parts of torch: in one file, each with a row in the documentation."""

import ast
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from qtorch import _torch_internals as internals

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "qtorch").rglob("*.py"))
OF_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
CODE = {"__code__", "__globals__", "__kwdefaults__"}  # the inside of a function
# Of texts: the names in state_dicts that torch.ao writes, and of our tuples; all of C.
NO_PARTS = {"_packed_params", "_packed_weight", "_packed_weight_", "_all_weight_values", "_QConfig", "_QConfigDynamic"}
OTHERS = {
    "qtorch/_kernels/source.py": "texts of C",
    "qtorch/optim/kernel.py": "texts of C",
    "qtorch/testing.py": "copies a function of its own",
    "qtorch/engines/models.py": "models tell transformers by names which attention they call",
    "qtorch/quantization/pretrained.py": "models tell transformers by a name what they tie",
}
EXTENSION_POINTS = {
    "_apply",
    "_load_from_state_dict",
    "_save_to_state_dict",
    "_version",
}  # of torch.nn.Module, for subclasses to override


def is_private(name):
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


@cache
def own_names():
    """What the packages themselves define that begins with an underscore."""
    return set(filter(is_private, defined_names()))


def defined_names():
    for path in [*FILES, *(ROOT / "qcore").rglob("*.py")]:
        yield from filter(is_private, path.with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and path.name != internals_file():
                yield from [node.attr] if isinstance(node.value, ast.Name) and node.value.id == "self" else []


def internals_file():
    return Path(internals.__file__).name


def private_uses(source, own):
    """The private names of others that a program reads, sets, imports, or has in texts that are no documentation."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values[1:]}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
            if node.attr in CODE:
                yield node.attr, node.lineno
            text = ast.unparse(node) if ".ops" in source else ""  # which would take a second for all files
            if text.startswith("torch.ops.") and not text.startswith("torch.ops.qtorch"):
                yield text, node.lineno  # operators are documented nowhere
        elif isinstance(node, ast.ImportFrom):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            before = "x" if id(node) in pieces else ""  # of an f-string, what a value ends
            names = set(re.findall(r"(?<![\w}\]])_[A-Za-z]\w*", before + node.value)) - NO_PARTS
        for name in names:
            if is_private(name) and name not in own | OF_TUPLES:
                yield name, node.lineno


def test_private_parts_are_used_in_one_file():
    own = own_names()
    uses = {
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in FILES
        if path.name != internals_file() and path.relative_to(ROOT).as_posix() not in OTHERS
        for name, line in private_uses(path.read_text(), own)
    }
    assert not uses


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._has_storage(x)",
        "from torch._inductor import config",
        "import torch.utils._pytree",
        "x._is_zerotensor()",
        "getattr(torch, '_C._has_storage')",
        "torch.ops.aten.add(x, x)",
        "layer._forward_hooks.values()",
        "function._dynamo_marked_constant = True",
        "'torch._inductor.lowering' in sys.modules",
        "NAMES = 'addmm _sparse_addmm'.split()",
        "types.FunctionType(function.__code__, {})",
    ],
)
def test_a_private_part_is_found(line):
    assert list(private_uses(line, own_names()))


def test_what_is_overridden():
    """Of torch's classes, by name; a subclass of ours may not hide another private name by accident."""
    found = set()
    for path in FILES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for _, kind in inspect.getmembers(sys.modules.get(name, SimpleNamespace()), inspect.isclass):
            bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "torch"]
            if kind.__module__ == name and bases:
                found |= {own for own in vars(kind) if is_private(own) and any(own in vars(base) for base in bases)}
    assert found - {"_abc_impl", "_backward_cls"} == EXTENSION_POINTS


def test_every_part_has_a_row_in_the_documentation():
    table, of_extensions = internals.__doc__, (ROOT / "CONTRIBUTING.md").read_text()
    source = Path(internals.__file__).read_text()
    found = re.findall(r'_find\("([\w.]+)"\)|_knows\("(\w+)"|forward_ad, "(\w+)"', source)
    parts = {part.rpartition(".")[2] for groups in found for part in groups if part}
    for line in re.findall(r"from torch\._inductor import (.*)", source):
        parts |= set(line.split(", "))
    assert len(parts) > 8
    assert not {part for part in parts if part not in table}
    assert all(f".{part}`" in of_extensions for part in EXTENSION_POINTS)
