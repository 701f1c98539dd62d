"""What the benchmark against other packages times: pairs of calls, theirs and ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
import torch

import qcore
import qtorch
from benchmarks.support.timing import Call
from qcore.formats.number import check_number
from qcore.law.rounding import RoundingName

KEY = 7


class Match(NamedTuple):
    """A peer's call and ours; `framework` is where both compute."""

    call: str
    framework: str
    number: str
    rounding: str
    theirs: Call
    ours: Call


def on_torch(call: str, theirs: Call, x: np.ndarray, number: Any, rounding: str = "nearest", **options: Any) -> Match:
    label = check_number(number).text + (" saturating" if options else "")
    options |= {"key": KEY} if rounding.startswith("stochastic") else {}
    ours = partial(qtorch.quantize, torch.from_numpy(x), number, cast("RoundingName", rounding), **options)
    return Match(call, "torch", label, rounding, theirs, ours)


def on_numpy(call: str, theirs: Call, x: np.ndarray, number: Any, rounding: str = "nearest") -> Match:
    ours = partial(
        qcore.quantize,
        x,
        number,
        cast("RoundingName", rounding),
        key=KEY if rounding.startswith("stochastic") else None,
    )
    return Match(call, f"numpy {x.dtype}", check_number(number).text, rounding, theirs, ours)


def on_jax(call: str, theirs: Callable[[Any], Any], x: np.ndarray, number: Any) -> Match:
    jax, qjax = import_module("jax"), import_module("qjax")
    array = jax.numpy.asarray(x)
    functions = (jax.jit(theirs), jax.jit(partial(qjax.quantize, number=number, rounding="nearest")))
    calls = [lambda jitted=jitted: jitted(array).block_until_ready() for jitted in functions]
    return Match(call, "jax jit", check_number(number).text, "nearest", *calls)
