"""The layers that have quantized successors: their weights in torch's layout, and what they become."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.workflow.observing import FloatFunctional, Observed
from qjax.nnx.workflow.stubs import QuantStub

WEIGHTED: dict[type[nnx.Module], Any] = {nnx.Linear: quantized.Linear, nnx.Conv: quantized.Conv}


def is_whole(module: nnx.Module) -> bool:
    """True of a module that is observed and converted as one."""
    return isinstance(module, (Observed, Fused, FloatFunctional, quantized.Quantized, quantized.QuantizedWeight))


def why_float(module: nnx.Module) -> str:
    """Why `prepare` leaves a module as it is, or "" where it does not.

    Example:
        >>> why_float(nnx.LayerNorm(2, rngs=nnx.Rngs(0)))
        'there is no quantized LayerNorm'
    """
    kind = type(module)
    if kind in (QuantStub, FloatFunctional) or isinstance(module, Observed):
        return ""
    if isinstance(module, Fused):
        return why_float(module.layer)
    if kind not in WEIGHTED:
        bases = [base.__name__ for base in WEIGHTED if isinstance(module, base)]
        if bases:
            return f"it is of a subclass of {bases[0]}, and only exact types are swapped"
        return f"there is no quantized {kind.__name__}"
    return _unusual_conv(module) if isinstance(module, nnx.Conv) else ""


def _unusual_conv(conv: nnx.Conv) -> str:
    dilation = conv.input_dilation
    if dilation is not None and jnp.any(jnp.asarray(dilation) != 1):
        return f"it has input_dilation={dilation}"
    if conv.mask is not None:
        return "it has a mask"
    if isinstance(conv.padding, str) and conv.padding not in ("SAME", "VALID", "CAUSAL"):
        return f"it has padding={conv.padding!r}"
    return ""


def torch_layout(layer: Any) -> jax.Array:
    """A layer's kernel, outputs first and inputs second, as torch has it."""
    kernel = layer.kernel[...]
    return jnp.moveaxis(kernel, (-1, -2), (0, 1))


def flax_layout(weight: Any) -> Any:
    """A weight of torch's in flax's layout, inputs and outputs last."""
    return jnp.moveaxis(jnp.asarray(weight), (0, 1), (-1, -2))


def bias_of(layer: Any) -> jax.Array | None:
    """A layer's bias in float32, or None."""
    return None if layer.bias is None else layer.bias[...].astype(jnp.float32)
