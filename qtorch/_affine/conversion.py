"""Quantize, dequantize and requantize: by kernels for plain tensors on the CPU, by the law for other tensors."""

from __future__ import annotations

from functools import partial

import torch

from qcore import affine
from qcore.affine import AffineInteger, QParams
from qcore.affine.operations import check_requantized
from qcore.affine.parameters import check_input, check_qparams
from qtorch._affine import exported
from qtorch._affine.launch import dequantize_on_cpu, quantize_on_cpu, requantize_on_cpu
from qtorch._affine.namespace import Names
from qtorch._affine.programs import law
from qtorch._affine.traced import of_traced_sizes
from qtorch._conversion import HALVES, converted
from qtorch._rounding.paths.choice import are_plain_tensors, check_device, is_plain_tensor


def quantize(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """`qcore.affine.quantize_affine`, which raises the same errors."""
    check_input(x, Names)  # before its shape is read
    check_qparams(qparams, form, tuple(x.shape), Names)
    return quantize_to(x, qparams, form)


def quantize_to(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """`quantize` without checks of the parameters; x is checked."""
    check_input(x, Names)
    check_device("scale", qparams.scale, x.device, "x")
    check_device("zero_point", qparams.zero_point, x.device, "x")
    values = quantize_on_cpu(x, qparams, form) if _is_served(x, qparams.scale, qparams.zero_point) else None
    if values is not None:
        return values
    if exported.is_wanted():
        return exported.quantize(x, qparams, form)
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        x = of_traced_sizes(x, x.dim() < 2)
    if x.dtype in HALVES:  # as the law does; traced programs need this conversion outside of it
        x = converted(x, torch.float32)
    empty = partial(torch.empty_like, x, dtype=getattr(torch, form.storage))
    return law(affine.quantize_affine, (x, qparams), form, Names, empty=empty)


def dequantize(values: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """`qcore.affine.dequantize` of integers that fit their parameters."""
    numbers = dequantize_on_cpu(values, qparams) if _is_served(values, qparams.scale, qparams.zero_point) else None
    if numbers is not None:
        return numbers
    if exported.is_wanted():
        return exported.dequantize(values, qparams, form)
    empty = partial(torch.empty_like, values, dtype=torch.float32)
    return law(affine.dequantize, (values, qparams), form, "float32", Names, empty=empty)


def requantize(
    sums: torch.Tensor,
    input_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output: QParams,
    form: AffineInteger,
) -> torch.Tensor:
    """`qcore.affine.requantize` with channels along the last dimension, which raises the same errors."""
    given = input_scale, weight_scale, *([] if bias is None else [bias]), output.scale, output.zero_point
    if sums.dtype in (torch.int32, torch.float32) and _is_served(sums, *given):
        check_requantized(sums, input_scale, weight_scale, bias, output, form, xp=Names)
        values = requantize_on_cpu(sums, input_scale, weight_scale, bias, output, form)
        if values is not None:
            return values
    if exported.is_wanted():
        return exported.requantize(sums, input_scale, weight_scale, bias, output, form, sums.dim() - 1)
    return affine.requantize(sums, input_scale, weight_scale, bias, output, form, xp=Names)


def _is_served(x: torch.Tensor, *parameters: torch.Tensor) -> bool:
    """True if kernels may read all tensors: they are not subclasses, transformed, traced or empty."""
    return is_plain_tensor(x) and x.is_cpu and x.numel() > 0 and are_plain_tensors(parameters) and parameters[0].is_cpu
