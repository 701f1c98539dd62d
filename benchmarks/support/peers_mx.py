"""Microscaling (MX) quantization: torchao's, and by operations on float32 numbers, as in microxcaling (not on PyPI)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch._inductor.exc import InductorError

import qtorch
from benchmarks.support.peers_match import Match, on_torch
from benchmarks.support.timing import Call
from qcore import NAMED


def mx_by_floats(x: torch.Tensor, number: Any) -> torch.Tensor:
    """Rounds rows, each of which is a block, to an MX format.

    The steps are those of OCP Microscaling Formats Specification 1.0, section 6.3, with logarithms for exponents and
    powers for shifts. Logarithms are inexact, and so may be what lies next to powers of two.

    Args:
        x: float32 numbers in two dimensions.
        number: a `BlockScaled` of floating point elements, with the rule "floor".

    Returns:
        The rounded numbers, in float32.
    """
    magnitudes, man = number.element.magnitudes, number.element.man
    count, step = magnitudes.largest
    largest = count * 2.0**step
    top = count.bit_length() - 1 + step
    shared = torch.log2(x.abs().amax(1, keepdim=True)).floor() - top
    powers = torch.exp2(shared.clamp(-127, 127))
    y = x / powers
    quanta = torch.exp2(torch.log2(y.abs()).floor().clamp(min=magnitudes.lowest) - man)
    return (torch.round(y / quanta) * quanta).clamp(-largest, largest) * powers


def torchao_mx_matches(x: np.ndarray) -> Iterator[Match]:
    to_mx = import_module("torchao.prototype.mx_formats.mx_tensor").MXTensor.to_mx
    rows = x.reshape(-1, 32)

    def there_and_back(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return to_mx(x, dtype, 32).dequantize(torch.float32)

    for name, dtype in (("mxfp8_e4m3", torch.float8_e4m3fn), ("mxfp4", torch.float4_e2m1fn_x2)):
        tensor = torch.from_numpy(rows)
        ours = partial(qtorch.encode, tensor, name)
        yield Match("MXTensor.to_mx", "torch", f"{name}, codes", "nearest", partial(to_mx, tensor, dtype, 32), ours)
        for what, function in _eager_and_compiled(partial(there_and_back, dtype=dtype), rows):
            yield on_torch(f"MXTensor.to_mx, and back{what}", function, rows, name)


def mx_matches(x: np.ndarray) -> Iterator[Match]:
    rows = x.reshape(-1, 32)
    for name in ("mxfp8_e4m3", "mxfp4"):
        for what, function in _eager_and_compiled(partial(mx_by_floats, number=NAMED[name][0]), rows):
            yield on_torch(f"microxcaling-like{what}", function, rows, name)


def _eager_and_compiled(function: Callable[[torch.Tensor], Any], x: np.ndarray) -> Iterator[tuple[str, Call]]:
    """The function's call as it is, and compiled where Inductor can: it knows no float8_e8m0fnu on the CPU, say."""
    tensor = torch.from_numpy(x)
    yield "", partial(function, tensor)
    compiled = partial(torch.compile(function), tensor)
    logging.disable()  # of what Inductor cannot do there are pages
    try:
        compiled()
    except InductorError:
        return
    finally:
        logging.disable(logging.NOTSET)
    yield ", compiled", compiled
