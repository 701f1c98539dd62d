"""The layers that have quantized successors: their weights in torch's layout, and what they become."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import quoted
from qjax.nnx import quantized
from qjax.nnx.activations import Activation, PReLU, ReLU, ReLU6
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantized import dynamic
from qjax.nnx.quantized.conv import NAMED_PADDINGS
from qjax.nnx.recurrent import GRU, LSTM
from qjax.nnx.rounded import RoundedLayer
from qjax.nnx.workflow.observing import FloatFunctional, Observed
from qjax.nnx.workflow.stubs import Identity, QuantStub

WEIGHTED: dict[type[nnx.Module], Any] = {nnx.Linear: quantized.Linear, nnx.Conv: quantized.Conv}
# Layers with a weight that is not fake-quantized in training, as in torch.
UNTRAINED: dict[type[nnx.Module], Any] = {nnx.ConvTranspose: quantized.ConvTranspose, PReLU: quantized.PReLU}
NORMS: dict[type[nnx.Module], Any] = {
    nnx.BatchNorm: quantized.BatchNorm,
    nnx.LayerNorm: quantized.LayerNorm,
    nnx.GroupNorm: quantized.GroupNorm,
    nnx.InstanceNorm: quantized.GroupNorm,
}

PASSING = (ReLU, ReLU6, Identity, nnx.Dropout)
CELLS = (nnx.OptimizedLSTMCell, nnx.LSTMCell, nnx.GRUCell, nnx.SimpleCell)
_WHOLE = (
    *(Observed, Fused, FloatFunctional, RoundedLayer),
    *(quantized.Quantized, quantized.QuantizedWeight, quantized.Embed),
)
RECURRENT = {LSTM: dynamic.LSTM, GRU: dynamic.GRU}
_DYNAMIC = (dynamic.Linear, dynamic.Cell, dynamic.Recurrent)


def is_whole(module: nnx.Module) -> bool:
    """True of a module that is observed and converted as one."""
    if isinstance(module, nnx.RNN):
        return isinstance(module.cell, (*CELLS, dynamic.Cell))
    return isinstance(module, (*_WHOLE, *CELLS, *_DYNAMIC))


def why_float(module: nnx.Module) -> str:
    """Why `prepare` leaves a module as it is, or "" where it does not.

    Example:
        >>> why_float(nnx.RMSNorm(2, rngs=nnx.Rngs(0)))
        'there is no quantized RMSNorm'
    """
    kind = type(module)
    if kind in (QuantStub, FloatFunctional) or isinstance(module, (Observed, Activation, PReLU)):
        return ""
    if isinstance(module, PASSING):
        return "its result has the scale of its input"
    if isinstance(module, Fused):
        return why_float(module.layer)
    if is_stacked(module):
        return STACKED
    if kind in NORMS:
        return _unusual_norm(module)
    if kind is nnx.ConvTranspose:
        return _unusual_transposed(module)
    if kind is nnx.Embed:
        return "its results are floats"
    if kind is nnx.PReLU:
        return "there is no quantized nnx.PReLU: qjax.nnx.PReLU is its quantized twin"
    if kind not in WEIGHTED:
        bases = [base.__name__ for base in (*WEIGHTED, nnx.ConvTranspose, *NORMS) if isinstance(module, base)]
        if bases:
            return f"it is of a subclass of {bases[0]}, and only exact types are swapped"
        return f"there is no quantized {kind.__name__}"
    return _unusual_conv(module) if isinstance(module, nnx.Conv) else ""


STACKED = (
    "its parameters are those of several layers, made by nnx.vmap: allowed are layers one by one, or prepare_fn of "
    "qjax.quantization, which quantizes stacks"
)


def is_stacked(module: Any) -> bool:
    """True of a layer with parameters of several, which a model maps or scans over."""
    if isinstance(module, nnx.Linear):
        return module.kernel.ndim > 2
    if isinstance(module, (nnx.Conv, nnx.ConvTranspose)):
        return module.kernel.ndim > len(module.kernel_size) + 2
    return isinstance(module, tuple(NORMS)) and any(one.ndim > 1 for one in jax.tree.leaves(nnx.state(module)))


def _unusual_conv(conv: nnx.Conv) -> str:
    dilation = conv.input_dilation
    if dilation is not None and jnp.any(jnp.asarray(dilation) != 1):
        return f"it has input_dilation={dilation}"
    if conv.mask is not None:
        return "it has a mask"
    if isinstance(conv.padding, str) and conv.padding not in NAMED_PADDINGS:
        return f"it has padding={quoted(conv.padding)}"
    return ""


def _unusual_transposed(conv: Any) -> str:
    for name in ("mask", "transpose_kernel"):
        if (value := getattr(conv, name)) is not None and value is not False:
            return f"it has {name}={value}" if name == "transpose_kernel" else "it has a mask"
    if isinstance(conv.padding, str) and conv.padding not in ("SAME", "VALID"):
        return f"it has padding={quoted(conv.padding)}"
    return ""


def _unusual_norm(norm: Any) -> str:
    for name in ("axis", "feature_axes", "reduction_axes"):
        axes = getattr(norm, name, None)
        if axes is not None and (name, type(norm)) != ("reduction_axes", nnx.GroupNorm) and axes not in (-1, (-1,)):
            return f"it has {name}={axes}"
    if isinstance(norm, nnx.GroupNorm) and norm.reduction_axes is not None:
        return f"it has reduction_axes={norm.reduction_axes}"
    return ""


def bias_of(layer: Any) -> jax.Array | None:
    """A layer's bias in float32, or None."""
    return None if getattr(layer, "bias", None) is None else layer.bias[...].astype(jnp.float32)
