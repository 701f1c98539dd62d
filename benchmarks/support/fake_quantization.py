"""Affine fake quantization, forward and backward: the bits of qtorch and qjax beside qcore's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from time import perf_counter
from typing import Any

import jax
import numpy as np
import torch

import qjax.quantization
import qtorch.quantization
from benchmarks.support.backends import eager_kernels
from benchmarks.support.comparison import Case, Extent, Piece
from benchmarks.support.compiled import DTYPES, to_array, to_tensor, to_words
from benchmarks.support.inputs import random_bits
from qcore.affine import AffineInteger, QParams, fake_quantize

FORMS = AffineInteger(0, 255), AffineInteger(-127, 127), AffineInteger(-8, 7)
AXES = {"one scale": None, "scales of rows": 0, "scales of channels": 1, "scales of columns": 2}
_SHAPE = 30, 24, 35  # no multiples of a vector

Run = Callable[[np.ndarray, QParams, AffineInteger, np.ndarray], list[np.ndarray]]


Row = tuple[AffineInteger, str, str, bool]  # a range, layout of scales, dtype, and whether torch.compile takes it


def rows(extent: Extent) -> list[Row]:
    """All ranges, layouts of scales and dtypes; quickly, pairs of a range and a layout.

    Programs for torch.compile take seconds each: all of them, one for each dtype and layout, or none.
    """
    found = []
    for (i, form), (j, layout), (k, dtype) in product(enumerate(FORMS), enumerate(AXES), enumerate(DTYPES)):
        if extent != "quick":
            found.append((form, layout, dtype, extent == "all" or (j == k and i == k % len(FORMS))))
        elif (i + j) % len(DTYPES) == k:
            found.append((form, layout, dtype, False))
    return found


def compare_fake_quantization(work: Sequence[Row]) -> Iterator[list[Case]]:
    """For each row a case of each backend; the first backend is the reference."""
    backends: dict[str, Run] = {
        "numpy": _by_numpy,
        eager_kernels(): lambda *arguments: _by_torch(_torch_step, *arguments),
        "torch compiled": _by_compiled_torch(torch.compile(_torch_step, fullgraph=True, dynamic=False)),
        "jax jit": _by_jax,
    }
    for form, layout, name, compiled in work:
        rng, dtype = np.random.default_rng(0), DTYPES[name]
        qparams = _parameters(rng, form, AXES[layout])
        x, gradient = _hard(rng, qparams, dtype), random_bits(math.prod(_SHAPE), dtype, rng).reshape(_SHAPE)
        if gradient.itemsize == 2:  # XLA and Inductor select them as float32, and give NaNs other bits on the way back
            gradient[~(np.abs(gradient.astype(np.float32)) <= np.inf)] = 1
        left_out = set() if compiled else {"torch compiled"}
        left_out |= {"jax jit"} if dtype is np.float64 else set()  # which JAX has where a process asks for it
        piece, expected, cases = Piece(to_words(x)), None, []
        for backend, run in backends.items():
            if backend in left_out:
                continue
            run(x, qparams, form, gradient)  # which may compile
            begin = perf_counter()
            found = run(x, qparams, form, gradient)
            seconds = perf_counter() - begin
            expected = found if expected is None else expected
            cases.append(Case(form.text, f"fake quantization, {layout}, {name}", backend))
            for wanted, got in zip(expected, found, strict=True):
                cases[-1].add(piece, to_words(wanted), to_words(got), seconds / 2)
        yield cases


def _parameters(rng: np.random.Generator, form: AffineInteger, axis: int | None) -> QParams:
    count = () if axis is None else (_SHAPE[axis],)
    scales = np.exp2(rng.uniform(-8, 4, count)).astype(np.float32)
    return QParams(scales, rng.integers(form.qmin, form.qmax + 1, count).astype(np.int32), axis)


def _hard(rng: np.random.Generator, qparams: QParams, dtype: Any) -> np.ndarray:
    """Random bits, and numbers at and beside the middle between two integers, in the range and around its ends."""
    x = random_bits(math.prod(_SHAPE), dtype, rng).reshape(_SHAPE)
    shape = [-1 if axis == qparams.axis else 1 for axis in range(3)]
    steps = rng.integers(-600, 600, _SHAPE) / 2 + rng.choice([-1e-6, 0, 1e-6], _SHAPE)
    ties = (steps * np.reshape(qparams.scale, shape if qparams.axis is not None else ())).astype(dtype)
    return np.where(rng.random(_SHAPE) < 0.5, x, ties)


def _by_numpy(x: np.ndarray, qparams: QParams, form: AffineInteger, gradient: np.ndarray) -> list[np.ndarray]:
    y, mask = fake_quantize(x, qparams, form)
    return [y, np.where(mask, gradient, np.zeros((), gradient.dtype))]


def _torch_step(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, axis: int | None, low: int, high: int) -> Any:
    if axis is None:
        return qtorch.quantization.fake_quantize_per_tensor_affine(x, scale, zero, low, high)
    return qtorch.quantization.fake_quantize_per_channel_affine(x, scale, zero, axis, low, high)


def _by_torch(
    step: Callable[..., torch.Tensor], x: np.ndarray, qparams: QParams, form: AffineInteger, gradient: np.ndarray
) -> list[np.ndarray]:
    given, incoming = to_tensor(x).requires_grad_(), to_tensor(gradient)
    scale, zero = (torch.as_tensor(one) for one in (qparams.scale, qparams.zero_point))
    y = step(given, scale, zero, qparams.axis, form.qmin, form.qmax)
    return [to_array(one.detach()) for one in (y, *torch.autograd.grad(y, given, incoming))]


def _by_compiled_torch(step: Callable[..., torch.Tensor]) -> Run:
    """A run of a compiled step, of which torch keeps as many programs as there are cases."""

    def run(*arguments: Any) -> list[np.ndarray]:
        with torch._dynamo.config.patch(recompile_limit=len(FORMS) * len(AXES) * len(DTYPES)):
            return _by_torch(step, *arguments)

    return run


def _by_jax(x: np.ndarray, qparams: QParams, form: AffineInteger, gradient: np.ndarray) -> list[np.ndarray]:
    def step(x: jax.Array) -> jax.Array:
        return qjax.quantization.fake_quantize(x, qparams, form)

    y, pull = jax.vjp(step, x)
    return [np.asarray(one) for one in (y, *pull(jax.numpy.asarray(gradient)))]
