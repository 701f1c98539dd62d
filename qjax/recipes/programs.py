"""Equations of traced programs: their names, and the programs that they contain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jax.extend import core

from qjax.recipes.origins import COMPUTED, CONSTANT, is_constant

INLINED = frozenset(("jit", "pjit", "closed_call", "core_call", core.primitives.remat_p.name))
_TRANSFORMATION = re.compile(r"\w+\(|\)")


def is_backward(equation: Any) -> bool:
    """True if an equation is a part of a reverse-mode derivative."""
    return "transpose(" in str(equation.source_info.name_stack)


def name_of(scope: str, equation: Any) -> str:
    """The dotted name scope of an equation of a jaxpr that runs in a scope.

    Without the names of transformations, and the formulas that `jnp.einsum` has as names.
    """
    own = _TRANSFORMATION.sub("", str(equation.source_info.name_stack))
    return ".".join(part for part in (scope, *own.split("/")) if part and "->" not in part)


def scan_parts(equation: Any) -> tuple[int, int]:
    """Where the operands of a scan that are carried begin, after its constants, and where its slices do.

    JAX has these numbers as parameters up to 0.10, and from 0.12 on the trees of operands instead.
    """
    params = equation.params
    if "num_consts" in params:
        constants, carried = params["num_consts"], params["num_carry"]
    else:
        constants, carried, _ = (len(list(part)) for part in params["ft_in"].unpack())
    return constants, constants + carried


def trips(equation: Any) -> int | None:
    """How often the programs in an equation run; None if that follows from values."""
    if equation.primitive.name == "while":
        return None
    return equation.params["length"] if equation.primitive.name == "scan" else 1


def inner_programs(equation: Any, origins: Sequence[Any]) -> list[tuple[Any, Sequence[Any], Sequence[Any]]] | None:
    """The programs that an equation runs, each with its captured arrays and the origins of its inputs."""
    params, name = equation.params, equation.primitive.name
    carried = CONSTANT if all(map(is_constant, origins)) else COMPUTED
    if name == "scan":
        first, second = scan_parts(equation)
        carry = [carried] * (second - first)
        return [_closed(params["jaxpr"], [*origins[:first], *carry, *origins[second:]])]
    if name == "while":
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = [carried] * (len(origins) - second)
        return [
            _closed(params["cond_jaxpr"], [*origins[:first], *carry]),
            _closed(params["body_jaxpr"], [*origins[first:second], *carry]),
        ]
    if name == "cond":
        return [_closed(branch, origins[1:]) for branch in params["branches"]]
    if name in ("custom_jvp_call", "custom_vjp_call"):
        return [_closed(params["call_jaxpr"], origins)]
    if name == "shard_map" or name in INLINED:
        return [_closed(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"], origins)]
    return None


def _closed(jaxpr: Any, origins: Sequence[Any]) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    return (jaxpr.jaxpr, jaxpr.consts, origins) if isinstance(jaxpr, core.ClosedJaxpr) else (jaxpr, (), origins)
