"""What `OptimLP` takes as quantizers, and what it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from qcore import Number, Quantization, Rounding
from qcore.arguments import quoted
from qcore.formats.number import check_number
from qtorch._rounding.many import Tensors
from qtorch.quant import Quantizer

Function = Callable[[torch.Tensor], torch.Tensor]
Quantizers = Mapping[str, Quantization | Function | None]  # what `check_quantizer` made of each argument


def check_quantizer(name: str, quantizer: Any) -> Quantization | Function | None:
    """A quantizer as the rounding of its forward direction, or as a function; None where it rounds nothing."""
    if quantizer is None:
        return None
    if isinstance(quantizer, Quantizer):
        return None if quantizer.quantization.forward_number is None else quantizer.quantization
    if isinstance(quantizer, (Number, str)):
        return _nearest(check_number(quantizer, name))
    if callable(quantizer):
        return quantizer  # type: ignore[return-value]
    raise TypeError(
        f"{name}={quoted(quantizer)} is a {type(quantizer).__name__}; allowed are a function of a tensor, a "
        "Quantizer, a Number or its name, and None"
    )


@cache
def _nearest(number: Number) -> Quantization:
    return Quantization(number, forward_rounding=Rounding.NEAREST)


def is_stochastic(told: Quantization | Function | None) -> bool:
    """Whether keys are needed; a function has its own source of random bits, if any."""
    return isinstance(told, Quantization) and told.forward_rounding is Rounding.STOCHASTIC


def apply_function(name: str, function: Function, tensors: Tensors) -> list[torch.Tensor]:
    """The function's results for copies, which it may keep or work on in place."""
    results = [function(x.clone()) for x in tensors]
    for x, y in zip(tensors, results, strict=True):
        if not isinstance(y, torch.Tensor) or y.shape != x.shape:
            got = f"shape {tuple(y.shape)}" if isinstance(y, torch.Tensor) else f"type {type(y).__name__}"
            raise ValueError(f"{name} returned a result of {got}; allowed is a tensor of shape {tuple(x.shape)}")
    return results


def describe(quantizer: Any) -> str:
    """A quantizer for `repr`."""
    if isinstance(quantizer, (Number, str)):
        return f"{quantizer}, nearest"
    return getattr(quantizer, "__name__", None) or str(quantizer)
