"""The reasons why layers stay in floats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import quoted
from qcore.names import full_name
from qcore.workflow.settings import FOR_INTEGERS, KEEPS_SCALE, why_no_form
from qjax._models import children_of
from qjax.nnx.activations import Activation, PReLU, ReLU, ReLU6
from qjax.nnx.flattened import axes_of
from qjax.nnx.intrinsic import Fused, LinearReLU
from qjax.nnx.quantization.observing import FloatFunctional, Observed
from qjax.nnx.quantization.quantization_mappings import (
    CELLS,
    GENERAL,
    NORMS,
    RECURRENT,
    RELU,
    SIGMOID,
    TANH,
    WEIGHTED,
)
from qjax.nnx.quantization.stubs import DeQuantStub, Identity, QuantStub
from qjax.nnx.quantized.conv import NAMED_PADDINGS

PASSING = (ReLU, ReLU6, Identity, nnx.Dropout)


def why_float(module: nnx.Module) -> str:
    """The reason why `prepare` does not change a module, or "" if it does.

    Example:
        >>> why_float(nnx.RMSNorm(2, rngs=nnx.Rngs(0)))
        'there is no quantized RMSNorm'
    """
    kind = type(module)
    if reason := getattr(module, "left_because", ""):
        return reason
    if kind in (QuantStub, FloatFunctional) or isinstance(module, (Observed, Activation, PReLU)):
        return ""
    if isinstance(module, PASSING):
        return KEEPS_SCALE
    if kind is DeQuantStub:
        return FOR_INTEGERS
    if isinstance(module, Fused):
        return why_float(module.layer)
    if is_stacked(module):
        return STACKED
    if kind in NORMS:
        return _unusual_norm(module)
    if kind in GENERAL:
        return _unusual_general(module)
    if kind is nnx.ConvTranspose:
        return _unusual_transposed(module)
    if kind is nnx.Embed:
        return "its results are floats"
    if kind is nnx.PReLU:
        return "there is no quantized nnx.PReLU: qjax.nnx.PReLU is its quantized twin"
    if kind not in WEIGHTED:
        name, is_dynamic = full_name(kind, nnx), kind in (nnx.RNN, *CELLS, *RECURRENT)
        if is_dynamic and (reason := why_not_dynamic(module)):
            return f"there is no quantized {name} with fixed ranges, and no dynamic one, since {reason}"
        dynamic = f"{'qjax.' * (kind in RECURRENT)}nnx.{kind.__name__}" if is_dynamic else ""
        return why_no_form(
            name, _bases(module, (*WEIGHTED, *GENERAL, nnx.ConvTranspose, *NORMS)), _own(module), dynamic
        )
    return _unusual_conv(module) if isinstance(module, nnx.Conv) else ""


def _bases(module: nnx.Module, known: Iterable[type]) -> list[str]:
    """The names of the classes among others of which a module's class is a subclass."""
    return [base.__name__ for base in known if isinstance(module, base)]


def _own(module: nnx.Module) -> list[str]:
    """The names of the parameters that code of a container uses."""
    names = [name for name, value in vars(module).items() if isinstance(value, nnx.Param)]
    return names if children_of(module) else []


IN_ATTENTION = (
    "the code of its attention computes in floats between the layers: quantize_model of a model without a QuantStub "
    "quantizes them, and so do formats"
)
STACKED = (
    "its parameters are those of several layers, made by nnx.vmap: allowed are layers one by one, or prepare_fn of "
    "qjax.quantization, which quantizes stacks"
)


def is_stacked(module: Any) -> bool:
    """True for a layer with the stacked parameters of several layers, over which a model maps or scans."""
    if isinstance(module, nnx.Linear):
        return module.kernel.ndim > 2
    if isinstance(module, nnx.LinearGeneral):
        return module.kernel.ndim > len(module.in_features) + len(module.out_features) + len(module.batch_axis)
    if isinstance(module, nnx.Einsum):
        return module.kernel.ndim > len(module.kernel_shape)
    if isinstance(module, (nnx.Conv, nnx.ConvTranspose)):
        return module.kernel.ndim > len(module.kernel_size) + 2
    return isinstance(module, tuple(NORMS)) and any(one.ndim > 1 for one in jax.tree.leaves(nnx.state(module)))


def _unusual_general(layer: Any) -> str:
    try:
        axes_of(layer)
    except ValueError as error:
        return str(error)
    return ""


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


def why_not_dynamic(module: Any) -> str:
    """The reason why `quantize_dynamic` does not change a module, or "" if it does.

    Example:
        >>> why_not_dynamic(nnx.Conv(1, 1, (1,), rngs=nnx.Rngs(0)))
        'there is no dynamic Conv: a QConfig, and data, quantize it'
    """
    kind = type(module)
    if is_stacked(module):
        return STACKED
    if kind in (nnx.Linear, LinearReLU, nnx.Embed, *RECURRENT):
        return ""
    if kind in GENERAL:
        return _unusual_general(module)
    if kind is nnx.RNN:
        return why_not_dynamic(module.cell)
    if kind not in CELLS:
        bases, static = _bases(module, (nnx.Linear, *GENERAL, nnx.RNN, *RECURRENT, *CELLS)), not why_float(module)
        return why_no_form(full_name(kind, nnx), bases, _own(module), static=static)
    if getattr(module, "gate_fn", nnx.sigmoid) not in SIGMOID:
        return "its gate_fn is not sigmoid"
    if module.activation_fn not in (TANH + RELU if kind is nnx.SimpleCell else TANH):
        return "its activation_fn is not tanh" + (" or relu" if kind is nnx.SimpleCell else "")
    if getattr(module, "residual", False):
        return "its residual is True"
    return ""
