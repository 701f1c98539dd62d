"""The operations of a traced program that are layers, by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qcore.law.carrier import CARRIERS
from qjax.recipes.origins import Origin, is_constant, is_input


class Group(NamedTuple):
    """The names of JAX's primitives, and of functions under jit, custom_jvp or custom_vjp, that are layers."""

    primitives: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


def _group(primitives: str = "", functions: str = "") -> Group:
    return Group(frozenset(primitives.split()), frozenset(functions.split()))


GROUPS = {
    "conv": _group("conv_general_dilated"),
    "linear": _group("dot_general ragged_dot_general"),
    "embedding": _group("gather dynamic_slice"),
    "pool": _group("reduce_window reduce_window_max reduce_window_min reduce_window_sum"),
    "pad": _group("pad", "_pad"),
    "activation": _group(
        "tanh logistic",
        "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid log_softmax mish relu "
        "relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus swish",
    ),
    "normalization": _group("", "batch_norm group_norm instance_norm layer_norm rms_norm standardize"),
}

_BY_PRIMITIVE = {name: label for label, group in GROUPS.items() for name in group.primitives}
_BY_FUNCTION = {name: label for label, group in GROUPS.items() for name in group.functions}


def group_of(equation: Any, origins: Sequence[Origin]) -> str | None:
    """The group of an equation whose operands have these origins; None if it is no layer."""
    label = _BY_PRIMITIVE.get(equation.primitive.name) or _BY_FUNCTION.get(function_name(equation) or "")
    if label is None or all(map(is_constant, origins)) or not any(map(is_carrier, equation.outvars)):
        return None
    if label == "embedding" and (not is_input(origins[0]) or all(map(is_constant, origins[1:]))):
        return None  # a part of a computed value, such as the logits of labels, or at constant indices
    return label


def function_name(equation: Any) -> str | None:
    """The name of the Python function that an equation calls; None if it calls none."""
    params = equation.params
    if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
        return params["call_jaxpr"].jaxpr.debug_info.func_name
    return params.get("name") if "jaxpr" in params else None


def is_carrier(variable: Any) -> bool:
    """True if values of a variable of a jaxpr can be rounded."""
    return getattr(getattr(variable.aval, "dtype", None), "name", None) in CARRIERS
