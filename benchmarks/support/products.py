"""Products with accumulators, forward and of both gradients: the bits of qtorch and qjax beside qcore's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import qjax
import qtorch
from benchmarks.support.comparison import Case, Extent, Piece
from qcore import Accumulator, Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import Geometry, convolution_geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry, Shape

HALF, KEY = "float(6,9)", 7
ACCUMULATORS = (
    Accumulator(),
    Accumulator(HALF, chunk=64),
    Accumulator(HALF, chunk=1),
    Accumulator("float16", chunk=16, rounding="stochastic"),
    Accumulator(HALF, chunk=1, rounding="stochastic", random_bits=14),
    Accumulator(HALF, chunk=32, inner=Accumulator(HALF, chunk=1)),
    Accumulator(chunk=4, fraction_bits=23, output="toward_zero"),
)
OPERANDS = (("e4m3fn", "e5m2"), (None, None))
GEOMETRIES: dict[str, tuple[Geometry, Shape, Shape, dict[str, Any]]] = {
    "matmul": (MatrixGeometry(), (33, 97), (97, 40), {}),
    "conv2d": (
        convolution_geometry(2, 2, 1, 1, 2),
        (3, 4, 9, 8),
        (6, 2, 3, 3),
        {"stride": 2, "padding": 1, "groups": 2},
    ),
}


Row = tuple[str, Accumulator, tuple[str | None, str | None]]  # a product, its accumulator, and operands


def rows(extent: Extent) -> list[Row]:
    """All products, accumulators and operands; quickly, matrices with three accumulators."""
    if extent == "quick":
        return [("matmul", accumulator, OPERANDS[0]) for accumulator in ACCUMULATORS[1:4]]
    return [*itertools.product(GEOMETRIES, ACCUMULATORS, OPERANDS)]


def compare_products(work: Sequence[Row]) -> Iterator[list[Case]]:
    """For each row a case of each backend; the first backend is the reference."""
    for product, accumulator, operands in work:
        geometry, shape_a, shape_b, arguments = GEOMETRIES[product]
        rng = np.random.default_rng(0)
        arrays = [_hard(rng, shape) for shape in (shape_a, shape_b, geometry.result(shape_a, shape_b))]
        products = Product(*operands, accumulator), *(Product(None, one, accumulator) for one in operands[::-1])
        options = arguments | {"operands": operands, "accumulator": accumulator, "key": KEY}
        expected, seconds = _timed(lambda: _reference(geometry, products, *arrays))  # noqa: B023
        found = {"numpy": (expected, seconds)}
        for name, run in (("torch kernel", _by_torch), ("jax jit", _by_jax)):
            found[name] = _timed(lambda: run(product, options, *arrays))  # noqa: B023
        mode = f"{product}, {accumulator.rounding.value}, operands {operands[0]} and {operands[1]}"
        cases = [Case(accumulator.text, mode, name) for name in found]
        for case, (result, seconds) in zip(cases, found.values(), strict=True):
            case.add(Piece(expected), expected, result, seconds)
        yield cases


def _hard(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Numbers of many magnitudes, with zeros, and in some rows subnormal and special ones."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 8, shape))
    x[rng.random(shape) < 0.1] = -0.0
    x[-1, ::7], x[::5, -1] = np.inf, np.nan
    x[-2] *= 2.0**-130
    return x.astype(np.float32)


def _timed(call: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    start = perf_counter()
    return call(), perf_counter() - start


def _flat(results: Any) -> np.ndarray:
    return np.concatenate([np.asarray(one).ravel() for one in results])


def _reference(geometry: Geometry, products: Any, a: np.ndarray, b: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    calls = ((FORWARD, a, b, b), (GRAD_A, gradient, b, a), (GRAD_B, gradient, a, b))
    pairs = zip(calls, products, strict=True)
    return _flat(multiply_arrays(geometry, call[0], one, *call[1:3], call[3].shape, KEY) for call, one in pairs)


def _by_torch(product: str, options: dict[str, Any], *arrays: np.ndarray) -> np.ndarray:
    a, b, gradient = map(torch.from_numpy, arrays)
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    y = getattr(qtorch.linalg, product)(a, b, **options)
    return _flat(one.detach() for one in (y, *torch.autograd.grad(y, (a, b), gradient)))


def _by_jax(product: str, options: dict[str, Any], *arrays: np.ndarray) -> np.ndarray:
    def both(a: jax.Array, b: jax.Array, gradient: jax.Array) -> Any:
        y, pull = jax.vjp(lambda a, b: getattr(qjax.linalg, product)(a, b, **options), a, b)
        return y, *pull(gradient)

    return _flat(jax.jit(both)(*map(jnp.asarray, arrays)))
