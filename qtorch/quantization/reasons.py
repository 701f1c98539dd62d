"""The reasons why layers stay in floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from qcore.affine.rows import OPERATIONS
from qcore.names import full_name
from qcore.workflow.settings import FOR_INTEGERS, KEEPS_SCALE, UNPREPARED, why_no_form
from qtorch._affine import moves
from qtorch._classes import plain_class
from qtorch.quantization.computed import why_computed
from qtorch.quantization.quantization_mappings import (
    get_default_dynamic_quant_module_mappings,
    get_default_static_quant_module_mappings,
)
from qtorch.quantization.rounding import is_stack
from qtorch.quantization.stubs import DeQuantStub
from qtorch.quantization.subclasses import SamePad


def _layers(rounds: bool = False) -> tuple[type[nn.Module], ...]:
    """The layers of torch.nn that the rows of operations name as such, and that round their results."""
    return tuple(getattr(nn, name) for row in OPERATIONS.values() for name in row.passing if row.rounds or not rounds)


# Layers that take integers as they take floats: results have the input's scale.
PASSING = (
    nn.Identity,
    SamePad,
    *(getattr(nn, name) for name in moves.LAYERS),
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    *_layers(),
)
# The layers among them whose results are rounded to that scale.
ROUNDING = _layers(rounds=True)


def is_conv1d(module: Any) -> bool:
    """True for GPT-2's linear layer of transformers, whose weight has the shape (inputs, outputs)."""
    return plain_class(module).__name__ == "Conv1D" and hasattr(module, "nf")


def why_float(module: nn.Module, mapping: Mapping[Any, Any]) -> str:
    """Why `convert` leaves a layer as it is.

    Example:
        >>> why_float(nn.Linear(1, 1), {nn.Linear: None})
        'it has no qconfig'
    """
    if hasattr(module, "left_because"):
        return module.left_because  # type: ignore[return-value]
    if isinstance(module, PASSING):
        return KEEPS_SCALE
    if not hasattr(module, "qconfig"):
        return "it has no qconfig"
    if module.qconfig is None:
        return "its qconfig is None"
    if is_conv1d(module):
        return "it is transformers' Conv1D, with its weight the other way round: quantize_model makes it a Linear"
    if isinstance(module, nn.MultiheadAttention):
        return "attention is not quantized: nn.Linear layers with scaled_dot_product_attention behind them are"
    if computed := why_computed(module):
        return computed
    plain = plain_class(module)
    if plain in mapping:
        return FOR_INTEGERS if plain is DeQuantStub else UNPREPARED
    kind, own = full_name(plain, nn), dict(module.named_parameters(recurse=False))
    inner = next(module.children(), None) is not None
    bases = [base.__name__ for base in mapping if isinstance(module, base)]
    dynamic = plain in get_default_dynamic_quant_module_mappings() and plain is not nn.Embedding
    reason = why_no_form(
        kind,
        bases,
        [*own] if inner else [],
        f"nn.{kind}" if dynamic else "",
        plain in get_default_static_quant_module_mappings(),
        f": quantize_model takes trusted=[{plain.__name__}], convert a mapping with it, and formats and weights alone "
        "(QConfig(None, ...)) any class",
    )
    stacks = [name for name, parameter in own.items() if is_stack(parameter)]
    if stacks and not (inner or bases or plain.__module__.startswith("torch.")):
        return f'{reason}: QConfig(None, "mxfp4") or another format stores its {", ".join(stacks)} as codes'
    return reason
