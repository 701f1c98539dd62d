"""Scaled and transformed operands in NumPy, torch and JAX, eager and compiled: the same bits, and states of scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qjax
import qtorch
from qcore import Accumulator, Hadamard, Operand, Product, Scale
from qcore.linalg import arrays
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry
from qcore.linalg.product import Products

KEY = 7
E4M3, E5M2 = "binary(4,3,specials=fn,overflow=saturate)", "float(5,2)"
HALF = Accumulator("float(6,9)", chunk=8)
TILE, BLOCK = Operand(E4M3, scale=Scale(1, 16)), Operand(E4M3, scale=Scale(16, 16))
WHOLE = Operand(E4M3, scale=Scale())
KEPT, GRADIENT = (Operand(number, scale=Scale(history=3)) for number in (E4M3, E5M2))
TURNED = Operand("nvfp4", transform=Hadamard(3)), Operand("nvfp4", "stochastic", transform=Hadamard(3))
CASES = {
    "tiles": Products(
        Product(TILE, BLOCK, HALF),
        Product(TILE, WHOLE, HALF),
        Product(Operand(E5M2, scale=Scale(3)), None, Accumulator(chunk=4)),
    ),
    "tensors and transforms": Products(
        Product(WHOLE, WHOLE), Product(WHOLE, None, Accumulator("float(6,9)", chunk=1)), Product(TURNED[1], TURNED[0])
    ),
    "delayed": Products(Product(KEPT, KEPT), Product(GRADIENT, KEPT), Product(GRADIENT, KEPT)),
}
GEOMETRIES = {
    "linear": ((2, 3, 37), (21, 37), MatrixGeometry(transposed=True), {}),
    "matmul": ((2, 19, 37), (2, 37, 5), MatrixGeometry(), {}),
    "conv2d": (
        (2, 4, 6, 5),
        (6, 2, 3, 3),
        convolution_geometry(2, 2, 1, 1, 2),
        {"stride": 2, "padding": 1, "groups": 2},
    ),
}


USUAL = {("tensors and transforms", "matmul")}  # delayed scales: test_delayed_quantizers.py


def hard(rng, shape):
    """Numbers of all magnitudes, subnormal ones, and an infinity."""
    x = rng.standard_normal(shape).astype(np.float32) * np.exp2(rng.integers(-20, 20, shape)).astype(np.float32)
    x.flat[::7] *= np.float32(2.0**-100)
    x.flat[::11] *= np.float32(2.0**-40)
    x.flat[-2] = np.inf
    return x


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, marks=[] if (case, kind) in USUAL else pytest.mark.heavy)
        for case in CASES
        for kind in GEOMETRIES
    ],
)
def test_all_packages(case, kind):
    shape_a, shape_b, geometry, settings = GEOMETRIES[kind]
    products, rng = CASES[case], np.random.default_rng(1)
    a, b = hard(rng, shape_a), hard(rng, shape_b)
    gradient = rng.standard_normal(geometry.result(shape_a, shape_b)).astype(np.float32)
    state = None if products.history is None else arrays.first_scaling(3)
    if state is not None:
        state[:, 0], state[:, 2] = [3.3, 0.7, 1.9], [5, 1e-41, np.inf]
    calls = (FORWARD, products.forward, a, b, shape_b), (GRAD_A, products.grad_a, gradient, b, shape_a)
    calls = *calls, (GRAD_B, products.grad_b, gradient, a, shape_b)
    shapes = gradient.shape, shape_a, shape_b
    expected = [
        arrays.multiply_arrays(geometry, *call, KEY, state).reshape(s) for call, s in zip(calls, shapes, strict=True)
    ]
    if state is not None:
        expected.append(arrays.next_scaling(products, state, (a, b, gradient)))
    ends = "ab" if kind == "matmul" else ("input", "weight")
    options = settings | {f"grad_{end}": one for end, one in zip(ends, (products.grad_a, products.grad_b), strict=True)}
    options |= {"operands": products.forward.operands, "accumulator": products.forward.accumulator, "key": KEY}

    tensors = [torch.from_numpy(x.copy()).requires_grad_() for x in (a, b)]
    scaling = None if state is None else torch.from_numpy(state.copy())
    y = getattr(qtorch.linalg, kind)(*tensors, **options, scaling=scaling)
    found = [y, *torch.autograd.grad(y, tensors, torch.from_numpy(gradient))]
    compare([*found, scaling], expected, "torch")

    def together(a, b, gradient, state):
        y, pull = jax.vjp(lambda a, b, s: getattr(qjax.linalg, kind)(a, b, **options, scaling=s), a, b, state)
        return (y, *pull(gradient))

    arguments = [None if x is None else jnp.asarray(x) for x in (a, b, gradient, state)]
    compare(jax.jit(together)(*arguments), expected, "jax.jit")
    if (case, kind) not in USUAL:
        compare(together(*arguments), expected, "jax")


def compare(found, expected, backend):
    for index, (x, y) in enumerate(zip(found, expected, strict=False)):
        assert_same_bits(x, y, f"{backend}, {index}")


def test_large_products_are_those_of_their_blocks(monkeypatch):
    """Torch multiplies large matrices in parts, with parts of the scales."""
    rng = np.random.default_rng(2)
    a, b = (torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((130, 40), (40, 140)))
    options = {"operands": (TILE, BLOCK), "accumulator": HALF}
    whole = qtorch.linalg.matmul(a, b, **options)
    monkeypatch.setattr("qtorch.linalg.operator.BLOCK", 2000)
    monkeypatch.setattr("qtorch.linalg.operator._SIDE", 64)
    assert_same_bits(qtorch.linalg.matmul(a, b, **options), whole)
    assert_same_bits(arrays.matmul(a.numpy(), b.numpy(), **options), whole)


@pytest.mark.heavy
def test_tiles_in_torch_compile():
    rng = np.random.default_rng(3)
    a, b = (torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((5, 40), (40, 6)))
    torch._dynamo.reset()
    function = lambda a, b: qtorch.linalg.matmul(a, b, operands=(TILE, BLOCK), accumulator=HALF)  # noqa: E731
    assert_same_bits(torch.compile(function, fullgraph=True)(a, b), function(a, b))
