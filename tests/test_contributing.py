"""CONTRIBUTING's examples: each is a diff of one file and a table row, after which all packages have what is new."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIFFS = ROOT / "tests" / "contributing"

BEFORE = """
import jax.numpy as jnp, numpy as np, torch, qcore, qjax, qtorch
import oracle
from pathlib import Path
from support import assert_same_bits, spec
from qtorch._rounding.plan import plan_for
assert Path(qcore.__file__).parents[1] == Path(qtorch.__file__).parents[1] == Path.cwd()

rng = np.random.default_rng(0)
x = (rng.standard_normal((2, 4, 64)) * 2.0 ** rng.integers(-12, 6, (2, 4, 64))).astype(np.float32)
x[0, 0, :9] = 0, -0.0, np.inf, np.nan, 1.5, 1.25, 1.75, -1.875, 1e-40

def check(number, mode):
    assert plan_for(number, mode, torch.float32, None, False).kernels["flat" if number.axes(3) == () else "tiles"]
    expected = oracle.quantize(x, spec(number), mode)
    assert_same_bits(qcore.quantize(x, number, mode), expected)
    assert_same_bits(qtorch.quantize(torch.from_numpy(x), number, mode), expected)
    assert_same_bits(qjax.quantize(jnp.asarray(x), number, mode), expected)
"""

PROGRAMS = {
    "format": """
number = qcore.NAMED["e4m2"][0]
check(number, "nearest")
assert qcore.parse("e4m2") == number
assert qtorch.decode(qtorch.encode(torch.from_numpy(x), "e4m2"), "e4m2").shape == x.shape
""",
    "mode": """
check(qcore.FloatingPoint(5, 2), "late")
check(qcore.FixedPoint(8, 4), "late")
check(qcore.BlockScaled("e4m3fn", {-1: 32}), "late")
""",
    "scale_rule": """
number = qcore.parse("scaled(e2m1fn,{-1:32},rule=middle)")
check(number, "nearest")
assert number.text == "scaled(e2m1fn,{-1:32},rule=middle)"
""",
    "observer": """
from qcore.affine.observers import Narrowest
from qjax import quantization as in_jax
from qtorch import quantization as in_torch

arrays, rule = [np.float32([-1, 3]), np.float32([-2, 2])], Narrowest()
state, module, observer = rule.init(), in_torch.RuleObserver(rule), in_jax.RuleObserver(rule)
other = observer.init()
for array in arrays:
    state, other = rule.update(state, array), observer.update(other, jnp.asarray(array))
    module(torch.from_numpy(array))
assert (float(state.min_val), float(state.max_val)) == (-1, 2)
expected, by_jax, by_torch = rule.qparams(state), observer.qparams(other), module.calculate_qparams()
for number, one, another in zip((expected.scale, expected.zero_point), (by_jax.scale, by_jax.zero_point), by_torch):
    assert_same_bits(one, number)
    assert_same_bits(another.reshape(()), number)
""",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """What the diffs are applied to."""
    folder = tmp_path_factory.mktemp("copy")
    for part in ("qcore", "qtorch", "qjax", "tests/core", "tests/support"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(copy, *command):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["tests/support", "."]), "GIT_CEILING_DIRECTORIES": "/"}
    subprocess.run(command, cwd=copy, env=environment, check=True, timeout=300)


def apply(copy, name, *options):
    run(copy, "git", "apply", "--whitespace=nowarn", *options, DIFFS / f"{name}.diff")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_diff_is_of_one_file_and_a_row_of_a_table(name, copy):
    apply(copy, name, "--check")
    changed = re.findall(r"^\+\+\+ b/(.*)", (DIFFS / f"{name}.diff").read_text(), re.M)
    assert len([file for file in changed if not file.startswith("tests/")]) == 1
    assert len(changed) <= 2


@pytest.mark.parametrize("names", [[*PROGRAMS], *(pytest.param([name], marks=pytest.mark.heavy) for name in PROGRAMS)])
def test_the_changes_work_everywhere(names, copy):
    """Together, in one process; one by one among the heavy tests."""
    for name in names:
        apply(copy, name)
    try:
        run(copy, sys.executable, "-c", "".join([BEFORE, *(PROGRAMS[name] for name in names)]))
    finally:
        for name in reversed(names):
            apply(copy, name, "--reverse")


def test_contributing_shows_them():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {path.stem for path in DIFFS.glob("*.diff")} == set(PROGRAMS)
    assert all(f"(tests/contributing/{name}.diff)" in text for name in PROGRAMS)
