"""Completion in an interpreter offers public names, also those that are not imported yet, and nothing else."""

import rlcompleter
import subprocess
import sys

import pytest

import qcore
import qjax
import qtorch
from website.reference import public_modules

MODULES = {module.__name__: module for module in public_modules()}


def offered(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    module = MODULES[name]
    inside = {other.removeprefix(f"{name}.") for other in MODULES if other.startswith(f"{name}.")}
    inside = {other for other in inside if "." not in other}
    extra = {"auto_low"} if name == "qtorch" else set()  # QPyTorch's name of recipes
    assert offered(module) - extra <= {*module.__all__, *inside}
    assert offered(module) >= {*module.__all__, *extra}
    assert all(hasattr(module, found) for found in offered(module))
    if name in ("qcore", "qtorch", "qjax"):
        assert offered(module) - extra == {*module.__all__, *inside}


def test_a_fresh_interpreter_offers_what_is_not_imported_yet():
    code = (
        "import rlcompleter, sys, qcore; "
        "before = [name for name in dir(qcore) if name.startswith('re')]; "
        "assert 'qcore.reproducible' not in sys.modules; "
        "print(before, rlcompleter.Completer({'qcore': qcore}).attr_matches('qcore.ins'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['recipes', 'register_format', 'reproducible'] ['qcore.insight']\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qtorch.quan", ["qtorch.quant", "qtorch.quantization", "qtorch.quantize(", "qtorch.quantizer("]),
        ("qjax.n", ["qjax.nnx"]),
        ("qtorch.quantization.QCo", ["qtorch.quantization.QConfig(", "qtorch.quantization.QConfigDynamic("]),
        ("number.t", ["number.text", "number.tile_sizes("]),
        ("number.s", ["number.signed", "number.span", "number.specials", "number.subnormals"]),
        ("mode.s", ["mode.stochastic"]),
    ],
)
def test_an_interpreter(text, expected):
    names = {"qtorch": qtorch, "qjax": qjax, "number": qcore.parse("e4m3fn"), "mode": qcore.Rounding.NEAREST}
    assert sorted(one.removesuffix(")") for one in rlcompleter.Completer(names).attr_matches(text)) == expected
