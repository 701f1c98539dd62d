"""Products in NumPy, torch and JAX, eager and compiled: the same bits, forward and of both gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import usually
from products_support import ACCUMULATORS, KINDS, inputs
from support import assert_same_bits

import qcore
import qjax
import qtorch
from qcore import Accumulator, Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry

KEY = 7
OPERANDS = ("e5m2", "binary(4,3,specials=fn,overflow=saturate)")
GEOMETRIES = {"matmul": MatrixGeometry(), "linear": MatrixGeometry(transposed=True)}


def three_products(geometry, a, b, gradient, products, key=KEY):
    """The reference's result and its two gradients."""
    y = multiply_arrays(geometry, FORWARD, products[0], a, b, b.shape, key).reshape(geometry.result(a.shape, b.shape))
    of_a = multiply_arrays(geometry, GRAD_A, products[1], gradient, b, a.shape, key).reshape(a.shape)
    of_b = multiply_arrays(geometry, GRAD_B, products[2], gradient, a, b.shape, key).reshape(b.shape)
    return y, of_a, of_b


def by_torch(function, a, b, gradient, backend=None):
    a, b = (torch.from_numpy(x.copy()).requires_grad_() for x in (a, b))
    function = torch.compile(function, fullgraph=True, backend=backend) if backend else function
    y = function(a, b)
    return y, *torch.autograd.grad(y, (a, b), torch.from_numpy(gradient))


def by_jax(function, a, b, gradient):
    y, pull = jax.vjp(function, jnp.asarray(a), jnp.asarray(b))
    return y, *pull(jnp.asarray(gradient))


def check(geometry, a, b, products, call, backends=("torch", "jax.jit")):
    shape = geometry.result(a.shape, b.shape)
    gradient = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = three_products(geometry, a, b, gradient, products)
    in_torch, in_jax = (lambda a, b, room=room: call(room, a, b) for room in (qtorch.linalg, qjax.linalg))
    torch._dynamo.reset()
    ways = {
        "torch": lambda: by_torch(in_torch, a, b, gradient),
        "torch.compile": lambda: by_torch(in_torch, a, b, gradient, "inductor"),
        "aot_eager": lambda: by_torch(in_torch, a, b, gradient, "aot_eager"),
        "jax": lambda: by_jax(in_jax, a, b, gradient),
        "jax.jit": lambda: jax.jit(lambda a, b, gradient: by_jax(in_jax, a, b, gradient))(a, b, gradient),
    }
    found = {backend: ways[backend]() for backend in backends}
    for backend, results in found.items():
        for which, x, y in zip((FORWARD, GRAD_A, GRAD_B), results, expected, strict=True):
            assert_same_bits(x, y, f"{which}, {backend}")


# Each way compiles for seconds, and eager JAX three functions: `tests/jax/linalg/test_parts.py` has more of these.
USUAL = ("exact", "two levels")  # others: test_addends.py, test_designs.py and test_own_units.py
MORE = dict.fromkeys(USUAL, ()) | {"exact": ("aot_eager", "jax")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.heavy) for name in ACCUMULATORS]
)
def test_all_accumulators(name):
    """On inputs of all kinds side by side, forward and backward; in all ways if it is not one of the usual tests."""
    pairs = [inputs(kind, 2, 33, 3) for kind in KINDS]
    a, b = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs], axis=1)
    accumulator = ACCUMULATORS[name]
    grads = Product("e5m2", "float(5,2)", accumulator), Product(None, "e4m3fn", accumulator)
    products = Product(*OPERANDS, accumulator), *grads
    options = {"operands": OPERANDS, "accumulator": accumulator, "grad_a": grads[0], "grad_b": grads[1], "key": KEY}
    backends = "torch", "jax.jit", *MORE.get(name, ("torch.compile", "jax"))
    check(GEOMETRIES["matmul"], a, b, products, lambda room, a, b: room.matmul(a, b, **options), backends)


@pytest.mark.heavy
def test_integers_round_sums():
    """Formats whose sums stochastic rounding takes as integers in JAX; zeros of both signs alone, and beside NaN."""
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 9), (9, 4)))
    a[0], a[1, :8], a[2, 3] = -0.0, -0.0, np.nan
    operands, accumulator = ("e4m3fn", "e4m3fn"), ACCUMULATORS["few random bits"]
    for terms in (1, 4, 9):
        expected = qcore.linalg.matmul(a[:, :terms], b[:terms], operands=operands, accumulator=accumulator, key=KEY)
        found = jax.jit(lambda a, b: qjax.linalg.matmul(a, b, operands=operands, accumulator=accumulator, key=KEY))
        assert_same_bits(found(a[:, :terms], b[:terms]), expected)
    tiny = np.float32([[0, 2.0**-9]])  # its square is rounded to zero, as there are no subnormal numbers
    rounded = {"operands": operands, "accumulator": Accumulator("binary(4,9,bias=10,subnormals=False)", chunk=1)}
    assert_same_bits(qjax.linalg.matmul(-tiny, tiny.T, **rounded), np.float32([[-0.0]]))
    assert np.isnan(expected[2]).all()
    assert not np.signbit(expected[0]).any()


SHAPES = {  # geometry, shapes, arguments
    "batches": ("matmul", (2, 3, 5), (2, 5, 4), {}),
    "batch of rows": ("matmul", (2, 3, 5), (5, 4), {}),
    "one term": ("matmul", (3, 1), (1, 2), {}),
    "no terms": ("matmul", (3, 0), (0, 2), {}),
    "no rows": ("matmul", (0, 5), (5, 2), {}),
    "linear": ("linear", (2, 3, 7), (4, 7), {}),
    "linear of a vector": ("linear", (7,), (4, 7), {}),
    "linear, a weight for each of a batch": ("linear", (2, 3, 7), (2, 4, 7), {}),
    "conv1d": ("conv1d", (2, 3, 9), (4, 3, 3), {"padding": 2}),
    "conv2d": ("conv2d", (2, 4, 7, 6), (6, 2, 3, 2), {"groups": 2, "stride": (2, 1), "padding": (1, 0)}),
    "dilated conv2d": ("conv2d", (1, 2, 9, 8), (2, 2, 3, 3), {"dilation": (2, 1), "stride": 3, "padding": (0, 4)}),
    "conv3d": ("conv3d", (1, 2, 4, 3, 5), (2, 2, 2, 1, 3), {"stride": (1, 2, 2)}),
}


@pytest.mark.parametrize(
    "shape",
    usually(("no terms", "linear, a weight for each of a batch"), SHAPES),  # convolutions: test_convolution_blocks.py
)
def test_all_shapes(shape):
    kind, shape_a, shape_b, arguments = SHAPES[shape]
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (shape_a, shape_b))
    dims = int(kind[4]) if kind.startswith("conv") else 0
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1} | arguments
    geometry = convolution_geometry(dims, **defaults) if dims else GEOMETRIES[kind]
    more = {"batches": [ACCUMULATORS["few random bits"]], "conv2d": [None]}.get(shape, [])
    for accumulator in (ACCUMULATORS["chunks"], *more):
        forward = Product(*OPERANDS, accumulator)
        products = forward, Product(None, OPERANDS[1], accumulator), Product(None, OPERANDS[0], accumulator)
        options = arguments | {"operands": OPERANDS, "accumulator": accumulator, "key": KEY}
        backends = ("torch", "jax.jit", "aot_eager")[: 3 if shape == "conv2d" and accumulator is None else 2]
        check(geometry, a, b, products, lambda room, a, b: getattr(room, kind)(a, b, **options), backends)  # noqa: B023


@pytest.mark.parametrize("shape", [name for name, (kind, *_) in SHAPES.items() if kind.startswith("conv")])
def test_convolutions_are_torchs(shape):
    """With small integers, of which all sums are exact, torch's own convolutions have the same bits, and gradients."""
    kind, shape_a, shape_b, arguments = SHAPES[shape]
    rng = np.random.default_rng(6)
    a, b = (torch.from_numpy(np.float32(rng.integers(-8, 9, shape))).requires_grad_() for shape in (shape_a, shape_b))
    bias = torch.from_numpy(np.float32(rng.integers(-8, 9, shape_b[0]))).requires_grad_()
    expected = getattr(torch.nn.functional, kind)(a, b, bias, **arguments)
    found = getattr(qtorch.linalg, kind)(a, b, bias, **arguments)
    gradient = torch.from_numpy(np.float32(rng.integers(-8, 9, expected.shape)))
    results = [(y, *torch.autograd.grad(y, (a, b, bias), gradient)) for y in (found, expected)]
    for x, y in zip(*results, strict=True):
        assert_same_bits(x + 0.0, y + 0.0)  # torch has zeros of both signs


@pytest.mark.parametrize("bias", [True, False])
def test_bias(bias):
    rng = np.random.default_rng(7)
    x, weight, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 8), (5, 8), (5,)))
    b = b if bias else None
    tensors = [torch.from_numpy(one).requires_grad_() for one in (x, weight, b) if one is not None]
    y = qtorch.linalg.linear(*tensors)
    gradients = torch.autograd.grad(y, tensors, y.detach())
    z, pull = jax.vjp(qjax.linalg.linear, *(jnp.asarray(one) for one in (x, weight, b) if one is not None))
    assert_same_bits(z, y)
    for found, expected in zip(pull(z), gradients, strict=True):
        assert_same_bits(found, expected)
    if bias:
        rows = y.detach().numpy().reshape(-1, 5).astype(np.float64)
        assert_same_bits(gradients[2], np.cumsum(rows, 0)[-1].astype(np.float32))


@pytest.mark.parametrize("mask", usually(("causal",), ("none", "causal", "bool", "float")))
def test_attention(mask):
    """The same bits and gradients in torch and JAX; nearly torch's own results."""
    rng = np.random.default_rng(8)
    q, k, v = (rng.standard_normal((2, 3, length, 8)).astype(np.float32) for length in (5, 7, 7))
    given = {"bool": rng.random((5, 7)) < 0.7, "float": rng.standard_normal((5, 7)).astype(np.float32)}.get(mask)
    given = None if given is None else given | (np.arange(7) == 0) if mask == "bool" else given
    gradient, causal = rng.standard_normal(q.shape).astype(np.float32), mask == "causal"
    low = {"operands": ("e4m3fn", "e4m3fn"), "accumulator": ACCUMULATORS["chunks"]}

    def by(room, array, options):
        arrays = None if given is None else array(given)
        return lambda *x: room.scaled_dot_product_attention(*x, attn_mask=arrays, is_causal=causal, **options)

    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    y = by(qtorch.linalg, torch.from_numpy, {"scores": low, "output": low})(*tensors)
    expected = (y, *torch.autograd.grad(y, tensors, torch.from_numpy(gradient)))
    function = by(qjax.linalg, jnp.asarray, {"scores": low, "output": low})

    def both(q, k, v):
        y, pull = jax.vjp(function, q, k, v)
        return y, *pull(jnp.asarray(gradient))

    for x, one in zip(jax.jit(both)(q, k, v), expected, strict=True):
        assert_same_bits(x, one)
    mask_of_torch = None if given is None else torch.from_numpy(given)
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, mask_of_torch, is_causal=causal)
    torch.testing.assert_close(by(qtorch.linalg, torch.from_numpy, {})(*tensors), theirs, rtol=1e-5, atol=1e-6)
