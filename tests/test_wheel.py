"""The wheel and the source: what is in them, and what a type checker sees in a user's program. Needs no network."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import qbits
import qcore
import qjax
import qtorch
from qcore.version import NUMERICS

ROOT = Path(__file__).parent.parent
PACKAGES = ("qcore", "qtorch", "qjax")
BESIDE = ("CHANGELOG.md", "CHANGELOG-before-1.0.md", "CITATION.cff", "SECURITY.md")  # what the source has besides

PROGRAM = """\
from typing import assert_type

import jax
import numpy as np
import torch

import qbits
import qcore
import qjax
import qtorch
from qcore.version import NUMERICS

x, a = torch.ones(3), np.ones(3, np.float32)
assert_type(qtorch.quantize(x, "e5m2"), torch.Tensor)
assert_type(qtorch.quantize(x, qtorch.FloatingPoint(5, 2), qtorch.Rounding.STOCHASTIC, key=3), torch.Tensor)
assert_type(qtorch.float_quantize(x, 5, 2), torch.Tensor)
assert_type(qtorch.encode(x, "e4m3fn").dtype, torch.dtype)
assert_type(qtorch.encode(x, qtorch.Posit(8)), torch.Tensor)
codes, scales = qjax.encode(a, "mxfp8_e4m3")
assert_type(scales, jax.Array)
assert_type(qjax.decode(codes, "mxfp8_e4m3", scales=scales), jax.Array)
codes, (scales, of_tensor) = qtorch.encode(x, "nvfp4")
assert_type(of_tensor, torch.Tensor)
number = qcore.parse("scaled(e4m3fn,{-1:32})", qcore.BlockScaled)
elements, blocks = qcore.encode(a, number)
qcore.decode(elements, number, scales=blocks).shape
assert_type(qcore.parse("e4m3fn"), qcore.Number)
assert_type(qtorch.quantizer("e5m2"), qtorch.quant.Quantizer)
assert_type(qtorch.recipes.lower(torch.nn.Linear(2, 2), ["linear"], "e5m2"), torch.nn.Linear)
assert_type(qtorch.optim.OptimLP(torch.optim.SGD([x])), qtorch.optim.OptimLP)
assert_type(qtorch.quantization.fake_quantize_per_tensor_affine(x, 0.5, 0, 0, 255), torch.Tensor)
assert_type(qjax.quantize(jax.numpy.ones(3), "e5m2"), jax.Array)
assert_type(qjax.quantize(a, "e5m2"), jax.Array)
assert_type(qjax.float_quantize(a, 5, 2, key=3), jax.Array)
assert_type(qjax.quantizer("e5m2")(a), jax.Array)
assert_type(qjax.quantization.fake_quantize(a, qjax.quantization.QParams.of(0.5, 0)), jax.Array)
assert_type(qjax.nnx.Quantizer("e5m2")(a), jax.Array)
qjax.optim.low_precision(__import__("optax").sgd(0.1), weight_quant="e5m2").init(a)
qjax.recipes.lower(abs, ["linear"], "e5m2")
assert_type(qcore.FixedPoint(8, 4).wl, int)
assert_type(qbits.__version__, str)
qcore.quantize(a, "e5m2").shape
"""

# What a type checker must refuse, line by line.
WRONG = """\
qtorch.quantize(x, 5)
qtorch.quantize(a, "e5m2")
qtorch.quantize(x, "e5m2", rounding=3)
qtorch.quantize(x, "e5m2", "neerest")
qjax.quantizer("e5m2", None, "to_nearest")
qtorch.quantise(x, "e5m2")
qtorch.encode(x, "mxfp4").dtype
qjax.quantize([1.0], "e5m2")
qjax.quantize(a, "e5m2", "nearest", 3)
qjax.optim.low_precision("sgd")
qjax.optim.high_precision
qtorch.optim.OptimLP(torch.optim.SGD([x]), weight_quant=3)
qcore.FixedPoint("8", 4)
"""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with source and wheel, and one with the wheel of an editable install.

    Setuptools writes beside its sources: it gets a copy.
    """
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "qbits.py", *BESIDE):
        shutil.copy(ROOT / name, source)
    for kind, folder in (("sdist", target), ("wheel", target), ("editable", source / "editable")):
        folder.mkdir(exist_ok=True)
        # a process each: setuptools writes into sys.argv
        build = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        run(sys.executable, "-c", build, folder, cwd=source)
    return target, source / "editable"


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built[0].glob("qbits-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    return environment(wheel, tmp_path_factory.mktemp("environment"))


def environment(wheel, home):
    """The interpreter of an environment that has the wheel, and this one's other packages."""
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # whose own .pth files are not read
    return python


def test_the_wheel_has_everything(wheel):
    """All files of the packages: what is read beside Python, such as the source of a kernel, is easily forgotten."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    files = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert names == files | {"qbits.py"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_source_has_everything(built):
    (path,) = built[0].glob("qbits-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    files = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert not {*files, *BESIDE, "LICENSE", "README.md", "pyproject.toml", "qbits.py"} - names


def test_an_index_would_take_them(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *built[0].iterdir())


def test_there_is_one_version(built):
    assert qbits.__version__ == qcore.__version__ == qtorch.__version__ == qjax.__version__
    assert all(path.name.startswith(f"qbits-{qcore.__version__}") for path in built[0].iterdir())
    assert f"version: {qcore.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.heavy
def test_the_wheel_works(python, tmp_path):
    code = (
        "import qbits, qcore, qjax, qtorch, torch; "
        "print(qbits.__file__, qcore.__file__, qjax.__file__, qtorch.__file__); "
        "print(qtorch.quantize(torch.tensor([1.1]), 'e5m2').item(), qjax.optim.__name__)"
    )
    places, results = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert all(str(python.parent.parent) in place for place in places.split())
    assert results == "1.0 qjax.optim"


def test_the_command(python, tmp_path):
    code = "from importlib.metadata import entry_points as all; (one,) = all(name='qbits'); one.load()()"
    assert run(python, "-c", code, "--version", cwd=tmp_path) == f"qbits {qcore.__version__}, numerics {NUMERICS}\n"


@pytest.mark.heavy
def test_type_checkers_see_the_wheel(python, tmp_path):
    complaints = complaints_of(PROGRAM + WRONG, python, tmp_path)
    right = {line: message for line, message in complaints.items() if line not in WRONG.splitlines()}
    assert not right
    assert not set(WRONG.splitlines()) - set(complaints), "what is wrong and was not refused"


def test_editors_see_an_editable_install(built, tmp_path):
    """The install is a path and no import hook, which runs in Python only."""
    (wheel,) = built[1].glob("*.whl")
    code = [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("qbits-")]
    assert [Path(name).suffix for name in code] == [".pth"]
    python = environment(wheel, tmp_path / "environment")
    place = run(python, "-c", "import qbits; print(qbits.__file__)", cwd=tmp_path)
    assert Path(place.strip()).parent == built[1].parent
    program = "import qcore\nimport qtorch\nimport qtorch.insight\nqcore.parse('e5m2').text\n"
    wrong = "qtorch.quantise\nqcore.parse(3)\nqtorch.insight.watches\n"
    assert [*complaints_of(program + wrong, python, tmp_path)] == wrong.splitlines()


def complaints_of(program, python, folder):
    """What a type checker says of the lines of a program."""
    (folder / "program.py").write_text(program)
    settings = {"include": ["program.py"], "typeCheckingMode": "standard", "reportUnusedExpression": "none"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", str(python)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    lines = program.splitlines()
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {lines[one["range"]["start"]["line"]]: one["message"] for one in found}
