"""Products of designs by name in NumPy, torch (eager, compiled) and JAX: the same bits, forward and of gradients."""

import jax
import numpy as np
import pytest
import torch
from designs_support import cases
from support import assert_same_bits

import qjax
import qtorch
from qcore import Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.designs import DESIGNS
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry

KEY = 5
# One of each law first; the others are all that differ in a field.
USUAL = ("hopper.wgmma.e4m3_e5m2",)
MORE = (
    "cdna2.mfma.f16",
    "volta.mma.f16.f16",
    "blackwell.tcgen05.nvf4",
    "ampere.mma.tf32",
    "hopper.wgmma.bf16",
    "cdna1.mfma.f32",
    "cdna3.mfma.xf32",
    "cdna3.mfma.fp8_bf8",
)
MORE += ("blackwell.tcgen05.mxe4m3_mxe2m1", "blackwell.tcgen05.mxf4", "rtx_blackwell.mma.nvf4_32")


def expected_of(geometry, name, a, b, c, gradient):
    one = Product(None, None, name)
    calls = ((FORWARD, a, b, b.shape, c), (GRAD_A, gradient, b, a.shape, None), (GRAD_B, gradient, a, b.shape, None))
    shapes = gradient.shape, a.shape, b.shape
    return [
        multiply_arrays(geometry, which, one, x, y, other, KEY, addend=addend).reshape(shape)
        for (which, x, y, other, addend), shape in zip(calls, shapes, strict=True)
    ]


def check(geometry, name, call, a, b, c, compiled=False):
    gradient = np.random.default_rng(1).standard_normal(geometry.result(a.shape, b.shape)).astype(np.float32)
    expected = expected_of(geometry, name, a, b, c, gradient)

    def by_torch(function):
        tensors = [torch.from_numpy(x.copy()).requires_grad_() for x in (a, b)]
        y = function(*tensors)
        return y, *torch.autograd.grad(y, tensors, torch.from_numpy(gradient))

    def by_jax(a, b, gradient):
        y, pull = jax.vjp(lambda a, b: call(qjax.linalg, a, b, c), a, b)
        return y, *pull(gradient)

    def in_torch(a, b):
        return call(qtorch.linalg, a, b, None if c is None else torch.from_numpy(c))

    found = {"torch": by_torch(in_torch), "jax": jax.jit(by_jax)(a, b, gradient)}
    if compiled:
        torch._dynamo.reset()
        found["compiled"] = by_torch(torch.compile(in_torch, backend="aot_eager", fullgraph=True))
    for way, results in found.items():
        for which, x, y in zip((FORWARD, GRAD_A, GRAD_B), results, expected, strict=True):
            assert_same_bits(x, y, f"{which}, {way}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.heavy) for name in (*USUAL, *MORE)]
)
def test_products(name):
    a, b, c = cases(np.random.default_rng(4), name, 5, 41, 4)
    c = None if DESIGNS[name].scale == "e4m3fn" else c  # NVFP4 has a scale of the tensor
    options = {"accumulator": name, "key": KEY}
    check(MatrixGeometry(), name, lambda room, a, b, c: room.matmul(a, b, c, **options), a, b, c, name == USUAL[0])


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["hopper.wgmma.e4m3_e5m2", "blackwell.tcgen05.mxe4m3"])
def test_forms(name):
    rng = np.random.default_rng(2)
    convolution = convolution_geometry(2, (2, 1), (1, 0), 1, 2)
    cases_of_geometries = [
        ("linear", MatrixGeometry(transposed=True), (2, 3, 40), (4, 40), {}),
        ("matmul", MatrixGeometry(), (2, 3, 40), (2, 40, 4), {}),
        ("conv2d", convolution, (2, 4, 7, 6), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "groups": 2}),
    ]
    for kind, geometry, *shapes, arguments in cases_of_geometries:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        options = arguments | {"accumulator": name, "key": KEY}
        check(geometry, name, lambda room, a, b, c: getattr(room, kind)(a, b, **options), a, b, None)  # noqa: B023
