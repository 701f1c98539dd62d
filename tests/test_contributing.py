"""CONTRIBUTING: its examples are diffs of few files that work, and its answers name what there is."""

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
import oracle, oracle_products
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
    "activation": """
from functional_support import in_jax, params_in_jax
from flax import nnx
from qcore.affine import QArray, QParams
from qcore.affine.functional import softsign
from qjax import nnx as qnn
from qtorch import quantization as tq
from qtorch.nn import quantized

model = torch.nn.Sequential(tq.QuantStub(), torch.nn.Softsign(), tq.DeQuantStub()).eval()
model.qconfig = tq.get_default_qconfig("fbgemm")
model = tq.prepare(model)
model(torch.linspace(-4, 4, 99))
model = tq.convert(model)
assert type(model[1]) is quantized.Softsign
q = model[0](torch.linspace(-4, 4, 99))
y = model[1](q)
given = QArray(q.values.numpy(), QParams.of(q.q_scale(), q.q_zero_point()), q.form)
output = QParams.of(y.q_scale(), y.q_zero_point())
expected = softsign(given, output, y.form).values
assert_same_bits(y.values, expected)
assert_same_bits(quantized.functional.softsign(q, y.q_scale(), y.q_zero_point()).values, expected)
layer = qnn.quantized.Activation(qnn.Softsign.law, params_in_jax(output), y.form)
assert_same_bits(layer(in_jax(given)).values, expected)
assert_same_bits(qjax.quantization.functional.softsign(in_jax(given), params_in_jax(output)).values, expected)
exact = (given.values.astype(np.float64) - q.q_zero_point()) * q.q_scale()
assert abs(y.dequantize().numpy() - exact / (1 + abs(exact))).max() < 0.51 * y.q_scale()
assert "scale, zero_point: of the result" in quantized.Softsign.__doc__
""",
    "elementwise": """
from functional_support import in_jax
from qcore.affine import QArray, QParams, functional
from qtorch import quantization as tq
from qtorch.nn import quantized
from qtorch.quantization.reasons import PASSING

numbers = torch.arange(-99, 99) / 8
q = tq.quantize_per_tensor(numbers, 1 / 8, 120, torch.quint8)
layer = torch.nn.Hardshrink(1.25)
assert torch.equal(layer(q).dequantize(), layer(numbers))
assert type(layer) in PASSING
assert torch.equal(quantized.functional.hardshrink(q, 1.25).int_repr(), layer(q).int_repr())
given = QArray(q.values.numpy(), QParams.of(0.125, 120), q.form)
assert_same_bits(functional.hardshrink(given, 1.25).values, layer(q).int_repr())
assert_same_bits(qjax.quantization.functional.hardshrink(in_jax(given), 1.25).values, layer(q).int_repr())
""",
    "binary": """
from functional_support import in_jax, params_in_jax
from qcore.affine import QArray, QParams
from qjax import nnx as qnn
from qtorch import quantization as tq
from qtorch.nn import quantized

steps = rng.integers(0, 256, (2, 999)).astype(np.uint8)
expected = np.clip(np.rint((steps[0].astype(int) - steps[1]) / 2) + 100, 0, 255).astype(np.uint8)
a, b = (tq.quantize_per_tensor((torch.from_numpy(one).float() - 7) / 8, 1 / 8, 7, torch.quint8) for one in steps)
assert_same_bits(quantized.QFunctional(0.25, 100).sub(a, b).int_repr(), expected)
output = QParams.of(0.25, 100)
c, d = (QArray(one, QParams.of(0.125, 7), a.form) for one in steps)
assert_same_bits(qcore.affine.functional.sub(c, d, output).values, expected)
layer = qnn.quantized.QFunctional(params_in_jax(output), a.form)
assert_same_bits(layer.sub(in_jax(c), in_jax(d)).values, expected)
assert_same_bits(qjax.quantization.functional.sub(in_jax(c), in_jax(d), params_in_jax(output)).values, expected)
for functional, one in ((quantized.FloatFunctional(), torch.tensor), (qnn.FloatFunctional(), jnp.float32)):
    assert float(functional.sub(one(3.0), one(1.5))) == 1.5
""",
    "pool": """
from functional_support import in_jax
from qcore.affine import QArray, QParams
from qtorch import quantization as tq
from qtorch.quantization.reasons import PASSING

for dimensions in (1, 2, 3):
    layer = getattr(torch.nn, f"AdaptiveMaxPool{dimensions}d")(3)
    numbers = torch.from_numpy(rng.integers(0, 99, (2, 3, 7, 6, 5)[: 2 + dimensions])) / 8
    q = tq.quantize_per_tensor(numbers, 1 / 8, 7, torch.quint8)
    assert torch.equal(layer(q).dequantize(), layer(numbers))
    assert type(layer) in PASSING
    given = in_jax(QArray(q.values.numpy(), QParams.of(0.125, 7), q.form))
    made = qjax.quantization.functional.adaptive_max_pool(given, 3, dimensions)
    assert_same_bits(made.values, layer(q).int_repr())
""",
    "norm": """
from flax import nnx
from qjax import nnx as qnn
from qjax.quantization import default_qconfig
from qtorch import quantization as tq
from qtorch.nn import quantized

values = torch.from_numpy(x[1])
exact = values.double() / (values.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
model = torch.nn.Sequential(tq.QuantStub(), torch.nn.RMSNorm(64, 1e-5), tq.DeQuantStub()).eval()
model.qconfig = tq.get_default_qconfig("fbgemm")
model = tq.prepare(model)
model(values)
model = tq.convert(model)
assert type(model[1]) is quantized.RMSNorm
layer = qnn.QuantWrapper(nnx.RMSNorm(64, epsilon=1e-5, rngs=nnx.Rngs(0)))
layer = qnn.prepare(layer, default_qconfig)
layer(x[1])
layer = qnn.convert(layer)
assert type(layer.module) is qnn.quantized.RMSNorm
for made, scale in ((model(values), model[1].scale), (layer(x[1]), layer.module.scale[...])):
    assert abs(np.asarray(made) - exact.numpy()).max() < 4 * float(scale)
q = model[0](values)
rms, output = model[1](q), qjax.quantization.QParams.of(model[1].scale.item(), model[1].zero_point.item())
given = qjax.quantization.quantize_per_tensor(q.dequantize().numpy(), q.q_scale(), q.q_zero_point(), q.form)
made = qjax.quantization.functional.rms_norm(given, (64,), None, 1e-5, output, rms.form)
assert_same_bits(made.values, rms.int_repr())
""",
    "move": """
from functional_support import in_jax
from qcore.affine import QArray, QParams
from qtorch import quantization as tq

q = tq.quantize_per_tensor(torch.arange(12.0).reshape(2, 3, 2), 0.5, 7, torch.quint8)
for moved in (q.adjoint(), torch.adjoint(q)):
    assert torch.equal(moved.int_repr(), q.int_repr().transpose(1, 2))
given = in_jax(QArray(q.values.numpy(), QParams.of(0.5, 7), q.form))
for one in (given.adjoint(), qjax.quantization.functional.adjoint(given)):
    assert_same_bits(one.values, moved.int_repr())
""",
    "accumulator": """
a, b = x[0, :, 9:30].copy(), x[1].reshape(64, 4)[:21].copy()
a[:, 0], a[:, 7], b[[0, 7]] = 2.0**60, -(2.0**60), 1
halves = qcore.Accumulator("float(6,9)", chunk=8, halves=True)
assert qcore.parse(halves.text) == halves
form = {"number": spec(halves.number), "chunk": 8, "rounding": "nearest"}
expected = oracle_products.matmul(a, b, form | {"halves": True})
assert (expected != oracle_products.matmul(a, b, form)).any()
assert_same_bits(qcore.linalg.matmul(a, b, accumulator=halves), expected)
assert_same_bits(qtorch.linalg.matmul(*map(torch.from_numpy, (a, b)), accumulator=halves), expected)
assert_same_bits(qjax.linalg.matmul(a, b, accumulator=halves), expected)
""",
    "recipe": """
values, weight, recipe = x[1].reshape(16, 16), x[0, 1:, :16].copy(), qcore.RECIPES["posits"]
expected = qcore.linalg.matmul(values, weight.T, operands=("posit8", "posit8"))
layer = torch.nn.Linear(16, 3, bias=False)
layer.weight.data = torch.from_numpy(weight)
assert_same_bits(qtorch.recipes.lower(layer, recipe)(torch.from_numpy(values)).detach(), expected)
assert_same_bits(qjax.recipes.lower(lambda w, v: v @ w["w"].T, recipe)({"w": weight}, values), expected)
""",
    "kernel": """
from qtorch._kernels import laws

given, result = torch.from_numpy(x), torch.empty(x.shape)
laws.magnitudes()(x.size, given.data_ptr(), result.data_ptr())
assert_same_bits(result, abs(x))
""",
    "emitter": """
import shutil, subprocess
from qcore.cli.emit_c import emit

files = emit("e5m2", "nearest", Path("emitted"))
(name,) = [name for name in files if name.endswith(".mk")]
if shutil.which("make"):
    program = name.removesuffix(".mk")
    subprocess.run(["make", "-s", "-f", name, program], cwd="emitted", check=True)
    subprocess.run([Path("emitted", program).resolve()], check=True)
""",
}
FOUR = "activation", "binary", "norm"  # of which the packages have layers, too


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
def test_a_diff_is_of_few_files(name, copy):
    apply(copy, name, "--check")
    changed = re.findall(r"^\+\+\+ b/(.*)", (DIFFS / f"{name}.diff").read_text(encoding="utf-8"), re.M)
    assert 1 <= len(changed) <= (4 if name in FOUR else 3)


@pytest.mark.heavy
@pytest.mark.parametrize("names", [[*PROGRAMS], *([name] for name in PROGRAMS)])
def test_the_changes_work_everywhere(names, copy):
    """Together, in one process; and one by one."""
    for name in names:
        apply(copy, name)
    try:
        run(copy, sys.executable, "-c", "".join([BEFORE, *(PROGRAMS[name] for name in names)]))
    finally:
        for name in reversed(names):
            apply(copy, name, "--reverse")


def test_contributing_shows_them():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {path.stem for path in DIFFS.glob("*.diff")} == set(PROGRAMS)
    assert all(f"(tests/contributing/{name}.diff)" in text for name in PROGRAMS)


QUESTION = re.compile(r"^\d+\. (.+\?) (.+)$", re.M)
FILE, NAME = re.compile(r"`([\w./]+\.(?:py|md|c|json))`"), re.compile(r"`(\w+)`")


def test_a_strangers_questions_have_answers_that_exist():
    """Each answer names files, and what is defined in them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where is ...?")[2].partition("\n## ")[0]
    answers = QUESTION.findall(text)
    assert len(answers) == 15
    for question, answer in answers:
        files, names = FILE.findall(answer), NAME.findall(answer)
        assert files, question
        assert names, question
        found = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        for name in names:
            assert re.search(rf"(?:def|class|struct) {name}\b|^ *{name}\b.* = |^#define {name}\b", found, re.M), (
                question,
                name,
            )


def test_nothing_names_the_old_limits():
    """Of lines and files; how to cut is said in three sentences."""
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "pyproject.toml", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        assert not re.search(r"300 lines|nine files|40 lines|max-lines", page.read_text(encoding="utf-8")), page
