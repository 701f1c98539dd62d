"""Which package imports what, seen by a fresh process; and what is reachable after the import of a package alone."""

import subprocess
import sys

import pytest

ROOMS = {
    "qtorch": ["auto_low", "insight", "linalg", "nn", "optim", "quant", "quantization", "reproducible"],
    "qjax": ["auto_low", "insight", "linalg", "nnx", "optim", "quant", "quantization", "reproducible"],
}


def run(code, *options):
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)


def modules_after(statement):
    done = run(f"import sys; {statement}; print(' '.join(sys.modules))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("qcore", {"torch", "jax", "qtorch", "qjax", "ml_dtypes"}),
        (
            "qtorch",
            {
                "jax",
                "qjax",
                "torch._inductor.compile_fx",
                "torch._dynamo",
                "qtorch.nn",
                "qtorch.optim",
                "qtorch.auto_low",
            },
        ),
        ("qjax", {"torch", "qtorch", "optax", "flax", "qjax.auto_low"}),
    ],
)
def test_packages_are_isolated(package, forbidden):
    assert not forbidden & modules_after(f"import {package}")


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_are_attributes(package):
    """Each in a child of its own, where no other room's import has set the attribute."""
    look = f"""
import os, sys, warnings, {package}
warnings.simplefilter("ignore")
for room in {ROOMS[package]}:
    if os.fork() == 0:
        getattr({package}, room).__all__
        os._exit(0 if "{package}." + room in sys.modules else 1)
    assert os.wait()[1] == 0, room
"""
    done = run(look)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ROOMS)
def test_dir_lists_everything_and_imports_nothing(package):
    names = f"set({package}.__all__) | set({ROOMS[package]})"
    modules = modules_after(f"import {package}; assert {names} <= set(dir({package})), dir({package})")
    assert not modules & {"optax", "flax", f"{package}.optim"}


@pytest.mark.parametrize("package", ROOMS)
def test_an_unknown_attribute_is_an_attribute_error(package):
    done = run(f"import {package}; {package}.quantise")
    assert f"AttributeError: module '{package}' has no attribute 'quantise'" in done.stderr


@pytest.mark.parametrize("package", ROOMS)
def test_star_import_takes_what_all_names(package):
    """All of it without optax and flax."""
    hidden = "import sys; sys.modules['optax'] = sys.modules['flax'] = None"
    done = run(f"{hidden}; from {package} import *; import {package}; assert set({package}.__all__) <= set(globals())")
    assert done.returncode == 0, done.stderr


STATEMENTS = "import qjax; qjax.{room}", "from qjax import {room}", "import qjax.{room}"


@pytest.mark.parametrize(("room", "needed"), [("optim", "optax"), ("nnx", "flax")])
def test_what_is_missing_is_named(room, needed):
    """Each statement in a child of its own, which has jax already."""
    look = f"""
import os, sys, warnings, jax
warnings.simplefilter("ignore")
sys.modules[{needed!r}] = None
for statement in {[statement.format(room=room) for statement in STATEMENTS]}:
    if os.fork() == 0:
        exec(statement)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 1, statement
"""
    done = run(look)
    assert done.stderr.count(f"ImportError: qjax.{room} needs {needed}: pip install {needed}") == 3, done.stderr


def test_import_is_silent():
    done = run("import qtorch, qjax", "-W", "error")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
