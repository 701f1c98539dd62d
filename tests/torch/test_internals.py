"""torch's private parts: they are used in one file, and without any of them all bits are the same."""

import ctypes
import inspect
import os
import subprocess
import sys
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # before Inductor: torch imports the two in a circle
from support import assert_all_same_bits, assert_same_bits

import qcore
import qtorch
from qcore.recipes import RECIPES
from qcore.recipes.recipe import LINEAR
from qtorch import _torch_internals as internals
from qtorch._affine import affine, functional, products
from qtorch._kernels import store
from qtorch._rounding import dispatch, many
from qtorch._rounding.paths import kernels
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._rounding.plan import make_plan
from qtorch.quant import Quantizer, module
from qtorch.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    default_qconfig,
    fake_quantize_per_tensor_affine,
    fuse_modules,
    prepare,
    quantize_dynamic,
    quantize_per_tensor,
    to_torch_ao,
)
from qtorch.recipes import functions as recipe_functions
from qtorch.recipes import lower

ROOT = Path(__file__).parents[2]
F = qtorch.FloatingPoint(5, 2)
MODES = [("nearest", None), ("stochastic", 3)]
X = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))


def check_rounding():
    """Values, codes and gradients, alone and under transforms."""
    for number in (F, "mxfp8_e4m3", "nvfp4"):
        for mode, key in MODES:
            expected = qcore.quantize(X.numpy(), number, mode, key=key)
            assert_same_bits(qtorch.quantize(X, number, mode, key=key), expected)
    assert_same_bits(qtorch.encode(X, "e5m2"), qcore.encode(X.numpy(), "e5m2"))
    x = X.clone().requires_grad_()
    y = Quantizer(F, F, "nearest", "nearest")(qtorch.quantize(x, "e4m3", "nearest"))
    y.backward(X)
    assert_same_bits(y, qcore.quantize(qcore.quantize(X.numpy(), "e4m3", "nearest"), F, "nearest"))
    assert_same_bits(x.grad, qcore.quantize(X.numpy(), F, "nearest"))
    assert_same_bits(torch.vmap(lambda x: qtorch.quantize(x, F))(X), qcore.quantize(X.numpy(), F))
    tangent = torch.func.jvp(lambda x: qtorch.quantize(x, F), (X,), (2 * X,))[1]
    assert_same_bits(tangent, 2 * X)


def apply_functions(monkeypatch):
    """Makes anew what the modules made at import."""
    for place, name, function in (
        (dispatch, "_straight_through", dispatch._WithTangent),
        (module, "_apply", module._Rounding),
        (affine, "_straight_through", affine._StraightThrough),
    ):
        monkeypatch.setattr(place, name, internals.apply_directly(function))


def test_with_all_parts():
    """What the others are compared with takes the short ways."""
    assert is_plain_tensor(X)
    assert internals._marks_constants
    assert internals._int_mm is not None
    assert internals._capabilities is not None
    assert inspect.isbuiltin(internals.apply_directly(dispatch._WithTangent))
    check_rounding()


@pytest.mark.parametrize("part", ["_dispatch_modes", "_transforms"])
def test_without_a_look_at_modes_and_transforms(part, monkeypatch):
    monkeypatch.setattr(internals, part, None)
    assert not is_plain_tensor(X)
    check_rounding()
    before = [X.clone(), X.clone()]
    many.round_each(before, [X, X], F, qcore.Rounding.NEAREST)
    assert_all_same_bits(before, [qcore.quantize(X.numpy(), F)] * 2)


def test_tensors_that_are_nowhere_are_not_read():
    """Those that a transform left behind, and torch's zeros without memory."""
    found = []
    torch.vmap(lambda x: found.append(x) or x)(X)
    assert not internals.is_memory(found[0])
    assert not internals.is_memory(torch._efficientzerotensor((3,)))
    assert internals.is_memory(torch.empty(0))


def test_without_direct_functions(monkeypatch):
    monkeypatch.setattr(internals, "_apply", None)
    apply_functions(monkeypatch)
    assert dispatch._straight_through == dispatch._WithTangent.apply
    check_rounding()
    x = X.clone().requires_grad_()
    y = fake_quantize_per_tensor_affine(x, 0.5, 0, -8, 7)
    y.backward(X)
    other = X.clone().requires_grad_()
    torch.fake_quantize_per_tensor_affine(other, 0.5, 0, -8, 7).backward(X)
    assert_same_bits(x.grad, other.grad)


def test_without_the_level_of_forward_mode(monkeypatch):
    monkeypatch.setattr(internals, "forward_ad", SimpleNamespace())
    assert internals.in_forward_mode()
    assert not is_plain_tensor(X)
    check_rounding()


PROGRAM = """
import torch
import torch._dynamo  # before Inductor: torch imports the two in a circle
where, torch.__file__ = torch.__file__, "/nonexistent/torch/__init__.py"
import qtorch, qcore
from qtorch import _torch_internals
torch.__file__ = where
assert not _torch_internals._marks_constants
x = torch.randn(8, 64)
for number, key in (("e5m2", None), ("mxfp4", None), (qtorch.FloatingPoint(5, 2), 3)):
    mode = "nearest" if key is None else "stochastic"
    program = torch.compile(lambda x: qtorch.quantize(x, number, mode, key=key), backend="aot_eager", fullgraph=True)
    expected = torch.from_numpy(qcore.quantize(x.numpy(), number, mode, key=key))
    assert torch.equal(program(x).view(torch.int32), expected.view(torch.int32))
"""


@pytest.mark.heavy
def test_without_the_mark_of_constants():
    """The public function makes the same mark, and imports Dynamo."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=ROOT, timeout=300)


def test_without_products_of_int8(monkeypatch):
    q, weight = (quantize_per_tensor(x, 0.05, 3, torch.qint8) for x in (X, X[:5]))
    expected = functional.linear(q, weight).int_repr()
    monkeypatch.setattr(internals, "_int_mm", None)
    assert torch.equal(functional.linear(q, weight).int_repr(), expected)
    ends = torch.full((1, 1 << 17), -128, dtype=torch.int8)
    assert internals.int8_product(ends, ends.t()).item() == -(2**31)  # wraps, as int32 does


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("terms", [40, 1024, 3 * 1024 + 5])
def test_products_of_int8_with_and_without_instructions(terms, zero, monkeypatch):
    """Extreme integers, whose sums float32 just holds, as a product of matrices and as a convolution in parts."""
    generator = torch.Generator().manual_seed(terms)
    values = torch.randint(-128, 128, (7, terms), generator=generator).float()
    values[0], values[1] = -128, 127
    x = quantize_per_tensor(values - 3, 1.0, 3, torch.qint8)
    weight = quantize_per_tensor(values[:5] - zero, 1.0, zero, torch.qint8)
    images = x.reshape(7, terms, 1).expand(7, terms, 4)
    filters = weight.reshape(5, terms, 1).expand(5, terms, 3)
    results = []
    for has_instructions in (True, False):
        monkeypatch.setattr(internals, "_has_int8_instructions", has_instructions)
        sums = products.sums_of_products(x, weight), products.sums_of_windows(images, filters, (1,), (1,), (1,), 1)
        results.append([one.to(torch.float64).float() for one in sums])
    exact = (x.values.double() - 3) @ (weight.values.double() - zero).t()
    assert torch.equal(results[0][0], exact.float())
    for some, others in zip(*results, strict=True):
        assert_same_bits(some, others)


LIMITED = """
import torch
from qtorch.quantization import linear, quantize_per_tensor
x = quantize_per_tensor(torch.full((2, 64), 255.0), 1.0, 0, torch.quint8)
w = quantize_per_tensor(torch.full((8, 64), -128.0), 1.0, 0, torch.qint8)
assert (linear(x, w, None, 2.0**14, 255).values == 255 - 128).all()
"""


@pytest.mark.heavy
def test_products_of_int8_where_onednn_has_no_instructions_for_them():
    """oneDNN's own sums of 255 * -128 end at -2^15 then; its zero points make 0 of them."""
    command, limited = [sys.executable, "-c", LIMITED], os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run(command, check=True, cwd=ROOT, timeout=300, env=limited)


def test_without_a_look_at_hooks(monkeypatch):
    def quantized():
        model = torch.nn.Sequential(QuantStub(), torch.nn.Linear(64, 4), torch.nn.ReLU(), DeQuantStub()).eval()
        torch.nn.init.ones_(model[1].weight), torch.nn.init.zeros_(model[1].bias)
        model.qconfig = default_qconfig
        prepared = prepare(fuse_modules(model, ["1", "2"]))
        prepared(X)
        return convert(prepare(prepared))(X)

    expected = quantized()
    monkeypatch.setattr(internals, "_HOOKS", {True: "_hooks_of_later", False: "_hooks_of_later"})
    assert_same_bits(quantized(), expected)


def test_without_packed_weights(monkeypatch):
    layer = torch.nn.LSTM(2, 2)
    state = quantize_dynamic(layer).state_dict()
    assert list(to_torch_ao(state)) == ["_all_weight_values.0.param"]
    monkeypatch.setattr(internals, "_find", lambda path: None)
    with pytest.raises(ValueError, match=r"has no packed weights, in which torch\.ao keeps recurrent layers"):
        to_torch_ao(state)


Pair = namedtuple("Pair", "first second")


class Tree(torch.nn.Identity):
    def forward(self, x):
        return Pair(x, [{"a": x, "b": (x, 3, None)}])


def test_without_trees(monkeypatch):
    layer = lower(Tree(), [Tree], F, None, "nearest")
    for tree_map in (internals._tree_map, None):
        monkeypatch.setattr(internals, "_tree_map", tree_map)
        first, [second] = layer(X)
        assert type(layer(X)) is Pair
        assert_all_same_bits([first, second["a"], second["b"][0]], [qcore.quantize(X.numpy(), F)] * 3)
        assert second["b"][1:] == (3, None)


def test_without_packages(monkeypatch, tmp_path):
    """What rounds on a GPU then is the law, operation by operation."""

    monkeypatch.setattr(store, "folder", lambda: nullcontext(store.Folder(tmp_path, tmp_path)))
    monkeypatch.setitem(sys.modules, "torch._inductor", None)
    kernels.load.cache_clear()
    plan = make_plan(F, "nearest", X.dtype, None, False)
    try:
        with pytest.warns(RuntimeWarning, match="operation by operation"):
            assert kernels.round_by_package(X, plan, None) is None
    finally:
        kernels.load.cache_clear()


def test_without_interpreters(monkeypatch):
    """vmap decides about keys all the same."""
    monkeypatch.setattr(internals, "_interpreter", None)
    x = X[:1].expand(3, 64)
    for randomness in ("different", "same"):
        y = torch.func.vmap(lambda x: qtorch.quantize(x, F, "stochastic"), randomness=randomness)(x)
        assert torch.equal(y[0], y[1]) == (randomness == "same")
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda x: qtorch.quantize(x, F, "stochastic"))(x)


def test_without_the_address_of_openmp(monkeypatch):
    """A library is then told the number of threads at each call, which is right for any OpenMP."""
    known = []
    library = SimpleNamespace(omp_get_max_threads=ctypes.c_void_p(8), omp_set_num_threads=known.append)
    for where, told in ((8, []), (None, [torch.get_num_threads()])):
        monkeypatch.setattr(store, "openmp_address", lambda where=where: where)
        assert store.with_threads_of_torch(library, lambda x: x + 1)(1) == 2
        assert known == told


def test_without_loaders(monkeypatch):
    calls = []
    monkeypatch.setattr("torch._inductor.aoti_load_package", lambda path, device_index: lambda *x: calls.append(x))
    internals.open_package("kernel.pt2", -1)([1, 2])
    assert calls == [(1, 2)]


def test_names_of_operators_and_of_traced_parts():
    assert internals.operator_of(torch.ops.aten.mm) == "aten::mm"
    assert internals.operator_of(torch.mm) == internals.operator_of(torch.ops.aten.mm.default) == ""

    def trace_backward_graph():
        return internals.traced_part()

    assert (trace_backward_graph(), internals.traced_part()) == ("backward", "")


def test_without_a_look_into_attention(monkeypatch):
    """A mode gets the call as a whole: its products stay in high precision, with a warning."""
    name = torch.nn.functional.multi_head_attention_forward.__name__
    assert internals.opened(torch.nn.functional.relu_) is None  # which no mode may open
    monkeypatch.delitem(recipe_functions.OPENED, name)
    monkeypatch.setitem(recipe_functions.PRODUCTS, name, recipe_functions.Function(None, (LINEAR,)))
    layer, x = torch.nn.MultiheadAttention(8, 2), torch.randn(3, 2, 8)
    expected = layer(x, x, x)[0]
    with pytest.warns(UserWarning, match=f"{name} in the model itself stays in high precision"):
        assert_same_bits(lower(layer, RECIPES["mxfp8"])(x, x, x)[0], expected)
