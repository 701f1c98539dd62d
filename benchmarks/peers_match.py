"""What the benchmark against other packages times: pairs of calls, theirs and ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

import qcore
import qtorch
from benchmarks.timing import Call
from qcore import BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint

KEY = 7


class Match(NamedTuple):
    """A peer's call and ours; `framework` is where both compute."""

    call: str
    framework: str
    number: str
    rounding: str
    theirs: Call
    ours: Call


_LABELS: dict[Any, str] = {
    FloatingPoint(5, 2): "float (5,2)",
    FixedPoint(8, 4): "fixed (8,4)",
    BlockFloatingPoint(8): "block wl 8",
    qcore.p3109(8, 4): "p3109 (8,4)",
    BinaryFloat(5, 2): "e5m2",
    BinaryFloat(8, 7): "bfloat16",
}


def _label(number: Any) -> str:
    return _LABELS.get(number) or str(number)


def on_torch(call: str, theirs: Call, x: np.ndarray, number: Any, rounding: str = "nearest", **options: Any) -> Match:
    label = _label(number) + (" saturating" if options else "")
    options |= {"key": KEY} if rounding == "stochastic" else {}
    ours = partial(qtorch.quantize, torch.from_numpy(x), number, rounding, **options)
    return Match(call, "torch", label, rounding, theirs, ours)


def on_numpy(call: str, theirs: Call, x: np.ndarray, number: Any, rounding: str = "nearest") -> Match:
    ours = partial(qcore.quantize, x, number, rounding, key=KEY if rounding == "stochastic" else None)
    return Match(call, f"numpy {x.dtype}", _label(number), rounding, theirs, ours)


def on_jax(call: str, theirs: Callable[[Any], Any], x: np.ndarray, number: Any) -> Match:
    jax, qjax = import_module("jax"), import_module("qjax")
    array = jax.numpy.asarray(x)
    functions = (jax.jit(theirs), jax.jit(partial(qjax.quantize, number=number, rounding="nearest")))
    calls = [lambda jitted=jitted: jitted(array).block_until_ready() for jitted in functions]
    return Match(call, "jax jit", _label(number), "nearest", *calls)
