"""Products with an addend in NumPy, torch (kernels, operations, compiled) and JAX: one result, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from products_support import ACCUMULATORS, KINDS, inputs
from support import assert_same_bits

import qjax
import qtorch
from qcore import Accumulator, Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.geometry import FORWARD, MatrixGeometry

KEY = 7
OPERANDS = ("e5m2", "e4m3fn")


def by_torch(function, *arrays):
    a, b, c, gradient = (torch.from_numpy(x.copy()) for x in arrays)
    tensors = [x.requires_grad_() for x in (a, b, c)]
    y = function(*tensors)
    return y, *torch.autograd.grad(y, tensors, gradient)


def by_jax(function, a, b, c, gradient):
    y, pull = jax.vjp(function, a, b, c)
    return y, *pull(gradient)


def check(call, a, b, c, expected, compiled=False):
    """All ways of torch and JAX against the reference; the gradients of a and b are those of torch's product alone."""
    gradient = np.random.default_rng(1).standard_normal(c.shape).astype(np.float32)
    alone = by_torch(lambda a, b, c: call(qtorch.linalg, a, b, None) + 0 * c, a, b, c, gradient)
    for room, run in ((qtorch.linalg, by_torch), (qjax.linalg, lambda f, *x: jax.jit(lambda *x: by_jax(f, *x))(*x))):
        y, of_a, of_b, of_c = run(lambda a, b, c: call(room, a, b, c), a, b, c, gradient)  # noqa: B023
        assert_same_bits(y, expected, room.__name__)
        assert_same_bits(of_c, gradient, room.__name__)
        for found, without in ((of_a, alone[1]), (of_b, alone[2])):
            assert_same_bits(found, without, room.__name__)
    tensors = [torch.from_numpy(x)[None] for x in (a, b, c)]
    stacked = torch.vmap(lambda a, b, c: call(qtorch.linalg, a, b, c))(*tensors)
    assert_same_bits(stacked[0], expected, "vmap")
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(lambda a, b, c: call(qtorch.linalg, a, b, c), backend="aot_eager", fullgraph=True)
        y, _, _, of_c = by_torch(function, a, b, c, gradient)
        assert_same_bits(y, expected, "compiled")
        assert_same_bits(of_c, gradient, "compiled")


USUAL = ("sequential",)  # chunks are in the test of forms, and sums of chips in those of silicon


def unusual(names, usual):
    return [pytest.param(name, marks=[] if name in usual else pytest.mark.heavy) for name in names]


@pytest.mark.parametrize("name", unusual(ACCUMULATORS, USUAL))
def test_accumulators(name):
    pairs = [inputs(kind, 2, 19, 3) for kind in KINDS]
    a, b = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs], axis=1)
    c = np.tile(inputs("special", 7, 7, 7)[0], (2, 3))
    accumulator = ACCUMULATORS[name]
    product = Product(*OPERANDS, accumulator)
    expected = multiply_arrays(MatrixGeometry(), FORWARD, product, a, b, b.shape, KEY, addend=c).reshape(c.shape)
    options = {"operands": OPERANDS, "accumulator": accumulator, "key": KEY}
    check(lambda room, a, b, c: room.matmul(a, b, c, **options), a, b, c, expected, name in ("chunks", "aligned"))


@pytest.mark.parametrize(
    "name", unusual(["exact", "chunks", "float64", "sequential", "aligned", "few random bits"], ("chunks",))
)
@pytest.mark.parametrize("place", [2, *(pytest.param(i, marks=pytest.mark.heavy) for i in range(2))])
def test_forms(place, name):
    accumulator, rng = ACCUMULATORS[name], np.random.default_rng(5)
    convolution = convolution_geometry(2, (2, 1), (1, 0), 1, 2)
    cases = [
        ("linear", MatrixGeometry(transposed=True), (2, 3, 7), (4, 7), {}),
        ("matmul", MatrixGeometry(), (2, 3, 7), (2, 7, 4), {}),
        ("conv2d", convolution, (2, 4, 7, 6), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "groups": 2}),
    ]
    kind, geometry, *shapes, arguments = cases[place]
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in (*shapes, geometry.result(*shapes)))
    product = Product(*OPERANDS, accumulator)
    expected = multiply_arrays(geometry, FORWARD, product, a, b, b.shape, KEY, addend=c).reshape(c.shape)
    options = arguments | {"operands": OPERANDS, "accumulator": accumulator, "key": KEY}
    check(lambda room, a, b, c: getattr(room, kind)(a, b, c=c, **options), a, b, c, expected)


def test_operations_of_torch_without_kernels(monkeypatch):
    from qtorch._kernels import products

    for name in ("sequential", "chunked"):
        monkeypatch.setattr(products, name, lambda *_: None)
    a, b = map(torch.from_numpy, inputs("special", 3, 19, 4))
    c = torch.from_numpy(inputs("special", 3, 4, 4)[0])
    for name in ("exact", "chunks", "sequential", "float64"):
        product, arrays = Product(None, None, ACCUMULATORS[name]), (a.numpy(), b.numpy(), b.shape)
        expected = multiply_arrays(MatrixGeometry(), FORWARD, product, *arrays, None, addend=c.numpy())
        found = qtorch.linalg.matmul(a, b, c, accumulator=ACCUMULATORS[name])
        assert_same_bits(found, expected.reshape(3, 4), name)


PLACES = [(0, 0, 0), (None, None, 0), (0, None, 0), (None, 0, None)]


@pytest.mark.parametrize("places", unusual(PLACES, PLACES[1:2]))
def test_examples_and_second_derivatives(places):
    """vmap over any of the three operands; and the derivative along a direction, of a gradient."""
    rng = np.random.default_rng(3)
    accumulator = ACCUMULATORS["chunks"]
    a, b, c = (
        rng.standard_normal(shape if place is None else (2, *shape)).astype(np.float32)
        for shape, place in zip(((3, 9), (9, 4), (3, 4)), places, strict=True)
    )
    product = Product(None, None, accumulator)
    expected = [
        multiply_arrays(MatrixGeometry(), FORWARD, product, x, y, y.shape, None, addend=z).reshape(3, 4)
        for x, y, z in ([x if p is None else x[i] for x, p in zip((a, b, c), places, strict=True)] for i in range(2))
    ]

    def in_jax(a, b, c):
        return jax.vmap(lambda a, b, c: qjax.linalg.matmul(a, b, c, accumulator=accumulator), places)(a, b, c)

    def in_torch(a, b, c):
        return torch.vmap(lambda a, b, c: qtorch.linalg.matmul(a, b, c, accumulator=accumulator), places)(a, b, c)

    assert_same_bits(in_jax(a, b, c), np.stack(expected))
    assert_same_bits(in_torch(*map(torch.from_numpy, (a, b, c))), np.stack(expected))
    ones = [np.ones_like(x) for x in (a, b, c)]
    _, of_jax = jax.jvp(in_jax, (a, b, c), tuple(ones))
    _, of_torch = torch.func.jvp(in_torch, tuple(map(torch.from_numpy, (a, b, c))), tuple(map(torch.from_numpy, ones)))
    np.testing.assert_allclose(of_jax, of_torch, rtol=1e-2, atol=1e-2)
    grads = jax.grad(lambda *x: (in_jax(*x) ** 2).sum(), (0, 1, 2))(a, b, c)
    tensors = [torch.from_numpy(x).requires_grad_() for x in (a, b, c)]
    expected_grads = torch.autograd.grad((in_torch(*tensors) ** 2).sum(), tensors)
    for found, other in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(found, other.numpy(), rtol=1e-2, atol=1e-2)


ONES = np.ones((2, 2), np.float32)
WRONG = [
    (np.ones((2, 3), np.float32), ValueError, "c has shape (2, 3); allowed is (2, 2), the shape of the result"),
    (np.ones((2, 2), np.int32), TypeError, "c has dtype"),
]


@pytest.mark.parametrize(("c", "error", "words"), WRONG, ids=[case[2] for case in WRONG])
def test_wrong_addends(c, error, words):
    for room, make in ((qtorch.linalg, torch.from_numpy), (qjax.linalg, jnp.asarray)):
        with pytest.raises(error) as caught:
            room.matmul(make(ONES), make(ONES), make(c), accumulator=Accumulator())
        assert words in str(caught.value)
