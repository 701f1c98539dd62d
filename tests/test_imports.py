"""Which package imports what, seen by a fresh process; and what is reachable after the import of a package alone."""

import json
import subprocess
import sys
from functools import cache

import pytest
from covering import usually

ALIKE = ["arithmetic", "distributed", "engines", "recipes", "insight", "linalg"]
ROOMS = {
    "qcore": [
        "affine",
        "arithmetic",
        "distributed",
        "engines",
        "exchange",
        "insight",
        "linalg",
        "recipes",
        "reproducible",
    ],
    "qtorch": ["exchange", "export", *ALIKE, "nn", "optim", "quant", "quantization", "reproducible"],
    "qjax": ["exchange", "export", *ALIKE, "nnx", "optim", "quant", "quantization", "reproducible"],
}

# Of formats whose rooms are imported when a text has their name.
TEXTS = ["affine(-8,7)", "gguf(q4_0)", "nf4(block=64,nested=256)", "accumulator()", "operand(e4m3fn)", "collective()"]
TEXTS += ["attention()", "kv_cache(e4m3fn)"]

# What a package does to a fresh process. optax and flax are hidden at the end, from what `*` takes.
LOOK = """
import json, sys, warnings, {package}
seen = {{"imported": list(sys.modules), "all": {package}.__all__, "dir": dir({package})}}
seen["listed"] = list(sys.modules)
warnings.simplefilter("ignore")
try:
    {package}.quantise
except AttributeError as error:
    seen["error"] = str(error)
sys.modules["optax"] = sys.modules["flax"] = None
from {package} import *
seen["starred"] = list(globals())
print(json.dumps(seen))
"""

# Texts are read in children, each of which has no room yet; rooms are asked for in one child, where attributes that
# another room's import has set are taken away.
REACH = """
import json, os, sys, warnings, {package}
seen = {{}}
warnings.simplefilter("ignore")
from_child, to_parent = os.pipe()
if os.fork() == 0:
    for room in {rooms}:
        vars({package}).pop(room, None)
        getattr({package}, room).__all__
        if "{package}." + room in sys.modules:
            os.write(to_parent, (room + " ").encode())
    os._exit(0)
os.wait()
seen["rooms"] = os.read(from_child, 4096).decode().split()
seen["texts"] = []
for text in {texts}:
    if os.fork() == 0:
        os._exit(0 if {package}.parse(text).text == text else 1)
    seen["texts"] += [text] if os.wait()[1] == 0 else []
print(json.dumps(seen))
"""


def run(code, *options):
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)


@cache
def seen(package, program=LOOK):
    done = run(program.format(package=package, rooms=ROOMS.get(package, []), texts=TEXTS), "-W", "error")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"stderr": done.stderr}


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
                "qtorch.linalg",
                "qtorch.optim",
                "qtorch.recipes",
                "qtorch._kernels.laws",
                "qcore.affine",
                "qcore.linalg",
                "qcore.recipes.published",
                "qcore.exchange",
            },
        ),
        ("qjax", {"torch", "qtorch", "optax", "flax", "qjax.recipes"}),
    ],
)
def test_packages_are_isolated(package, forbidden):
    assert package in seen(package)["imported"]
    assert not forbidden & set(seen(package)["imported"])


@pytest.mark.parametrize("package", usually(["qcore"], ROOMS))
def test_rooms_are_attributes(package):
    assert seen(package, REACH)["rooms"] == ROOMS[package]


@pytest.mark.parametrize("package", usually(["qcore"], ROOMS))
def test_texts_find_their_rooms(package):
    assert seen(package, REACH)["texts"] == TEXTS


@pytest.mark.parametrize("package", ROOMS)
def test_dir_lists_everything_and_imports_nothing(package):
    assert {*seen(package)["all"], *ROOMS[package]} <= set(seen(package)["dir"])
    assert not set(seen(package)["listed"]) & {"optax", "flax", f"{package}.optim"}


@pytest.mark.parametrize("package", ROOMS)
def test_an_unknown_attribute_is_an_attribute_error(package):
    assert seen(package)["error"] == f"module '{package}' has no attribute 'quantise'"


@pytest.mark.parametrize("package", ROOMS)
def test_star_import_takes_what_all_names_and_no_subpackage(package):
    """QPyTorch's classes are in it; torch's `nn` and `optim`, and flax's `nnx`, stay what they are."""
    starred = set(seen(package)["starred"])
    assert {*seen(package)["all"], "BlockFloatingPoint", "FixedPoint", "FloatingPoint"} <= starred
    assert not {*ROOMS[package], "nn", "nnx", "optim"} & starred


STATEMENTS = "import qjax; qjax.{room}", "from qjax import {room}", "import qjax.{room}"


@pytest.mark.parametrize(("room", "needed"), [("optim", "optax"), pytest.param("nnx", "flax", marks=pytest.mark.heavy)])
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


@pytest.mark.parametrize("package", ROOMS)
def test_import_is_silent(package):
    """Warnings are errors there."""
    assert seen(package)["stderr"] == ""
