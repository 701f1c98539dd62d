"""Large products in JAX: float64 copies are of parts, whose results have the bits of the whole."""

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from support import assert_same_bits

from qcore import Accumulator, Operand, Product, Scale
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry
from qjax import linalg
from qjax.linalg import parts

E4M3 = ("e4m3fn", "e4m3fn")
CASES = {  # geometry, shapes, what is said of the products, and further arguments
    "exact": (MatrixGeometry(), (130, 40), (40, 140), Product(*E4M3), {}),
    "chunks": (MatrixGeometry(), (70, 41), (41, 130), Product(*E4M3, Accumulator("float(6,9)", chunk=4)), {}),
    "sequential": (MatrixGeometry(), (131, 9), (9, 66), Product(*E4M3, Accumulator("float(6,9)", chunk=1)), {}),
    "float32": (MatrixGeometry(), (3, 70, 9), (9, 66), Product(), {}),
    "batches": (MatrixGeometry(), (7, 30, 20), (7, 20, 10), Product(*E4M3), {}),
    "large batches": (MatrixGeometry(), (2, 3, 70, 9), (2, 3, 9, 65), Product(*E4M3), {}),
    "tiles": (
        MatrixGeometry(),
        (2, 70, 40),
        (2, 40, 66),
        Product(
            Operand("e4m3fn", scale=Scale(1, 16)),
            Operand("e4m3fn", scale=Scale()),
            Accumulator("float(6,9)", chunk=8),
        ),
        {},
    ),
    "convolution": (
        convolution_geometry(2, 2, (1, 0), 1, 2),
        (7, 4, 9, 8),
        (6, 2, 3, 2),
        Product(*E4M3),
        {"stride": 2, "padding": (1, 0), "groups": 2},
    ),
    "chunks of a convolution": (
        convolution_geometry(2, 1, 1, 1, 1),
        (5, 4, 6, 5),
        (6, 4, 3, 3),
        Product(*E4M3, Accumulator("float(6,9)", chunk=5)),
        {"padding": 1},
    ),
    "float32, groups": (
        convolution_geometry(1, 2, 0, 1, 2),
        (5, 4, 20),
        (6, 2, 3),
        Product(),
        {"stride": 2, "groups": 2},
    ),
    "convolution, whole scales": (
        convolution_geometry(1, 1, 2, 3, 1),
        (7, 4, 90),
        (3, 4, 3),
        Product(*(Operand("e4m3fn", scale=Scale()),) * 2),
        {"padding": 2, "dilation": 3},
    ),
}


def in_parts(monkeypatch):
    """Makes parts small; returns what the loops over them are of."""
    loops = []
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(parts, "BLOCK", 700)
    for name, loop in (("scan", jax.lax.scan), ("map", jax.lax.map)):
        told = partial(lambda loop, *given, **more: loops.append(given) or loop(*given, **more), loop)
        monkeypatch.setattr(jax.lax, name, told)
    return loops


@pytest.mark.parametrize("name", usually(("chunks of a convolution",), CASES))
def test_parts_have_the_bits_of_the_whole(name, monkeypatch):
    """Forward and of both gradients, of sizes that parts do not divide."""
    geometry, shape_a, shape_b, product, arguments = CASES[name]
    rng = np.random.default_rng(3)
    a, b, gradient = (
        rng.standard_normal(shape).astype(np.float32) for shape in (shape_a, shape_b, geometry.result(shape_a, shape_b))
    )
    a.flat[3], b.flat[5] = np.inf, np.nan
    expected = (
        multiply_arrays(geometry, which, one, first, second, other.shape, None).reshape(of.shape)
        for which, one, first, second, other, of in (
            (FORWARD, product, a, b, b, gradient),
            (GRAD_A, product, gradient, b, a, a),
            (GRAD_B, product, gradient, a, b, b),
        )
    )
    loops = in_parts(monkeypatch)
    convolution = not isinstance(geometry, MatrixGeometry)
    function = getattr(linalg, f"conv{len(shape_a) - 2}d" if convolution else "matmul")
    grads = ("grad_input", "grad_weight") if convolution else ("grad_a", "grad_b")
    options = arguments | {"operands": product.operands, "accumulator": product.accumulator}
    options |= dict.fromkeys(grads, product)
    y, pull = jax.vjp(lambda a, b: function(a, b, **options), jnp.asarray(a), jnp.asarray(b))
    for found, one, which in zip((y, *pull(jnp.asarray(gradient))), expected, (FORWARD, GRAD_A, GRAD_B), strict=True):
        assert_same_bits(found, one, which)
    assert len(loops) >= 3 - ("groups" in name)


def test_vmap_of_parts(monkeypatch):
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 67, 33), (33, 68)))
    loops = in_parts(monkeypatch)
    found = jax.vmap(lambda a: linalg.matmul(a, b, operands=E4M3))(jnp.asarray(a))
    expected = multiply_arrays(MatrixGeometry(), FORWARD, Product(*E4M3), a, b, b.shape, None)
    assert_same_bits(found, expected.reshape(3, 67, 68))
    assert loops


PROGRAM = """
import jax
import jax.numpy as jnp
from qjax import linalg

assert jax.device_count() == 1

def temporary(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    print(jax.jit(function).lower(*arrays).compile().memory_analysis().temp_size_in_bytes)

def backward(function):
    return lambda a, b, gradient: jax.vjp(function, a, b)[1](gradient)

def matmul(a, b, accumulator=None):
    return linalg.matmul(a, b, operands=("e4m3fn", "e4m3fn"), accumulator=accumulator)

def conv2d(x, w):
    return linalg.conv2d(x, w, padding=1, operands=("e4m3fn", "e4m3fn"))

square, images, weight = (2048, 2048), (512, 32, 32, 32), (32, 32, 3, 3)
temporary(matmul, square, square)
temporary(lambda a, b: matmul(a, b, "accumulator(float(6,9),chunk=64)"), square, square)
temporary(backward(matmul), square, square, square)
temporary(conv2d, images, weight)
temporary(backward(conv2d), images, weight, images)
"""


@pytest.mark.heavy  # that parts are used, the tests above say
def test_memory():
    """What programs need besides arguments and results: rounded operands, and parts; whole copies would not fit."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    exact, chunks, backward, convolution, of_convolution = map(int, run.stdout.split())
    square, images, part = 4 * 2048**2, 4 * 512 * 32**3, 8 * parts.BLOCK
    assert exact <= 2 * square + 3 * part < 3 * 2 * square + part  # what float64 copies of all three would take
    assert chunks <= 2 * square + 3 * part
    assert backward <= 2 * square + 3 * part
    assert convolution <= images + 5 * part < 3 * images
    assert of_convolution <= 3 * images + 3 * part  # and no columns, nine times as many as images
