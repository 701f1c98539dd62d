"""The sites of a traced program: equations that round, by their name scopes (see `qjax._rounding.scopes`)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from jax.extend import core

from qcore.insight import Site
from qcore.insight.record import KINDS
from qjax._rounding.scopes import MARK, PREFIX, PRODUCT, ROUND, ROUNDING, UNWATCHED

_TRANSFORMATION = re.compile(r"\w+\(|\)")
_INNER = ("checkpoint", "rematted_computation", "while", "body", "closed_call")  # scopes of JAX itself


class Rounded(NamedTuple):
    """What an equation rounds.

    Attributes:
        site: where.
        number: the text of the format.
        batched: True under vmap, where the array's first axis is that of the examples.
    """

    site: Site
    number: str
    batched: bool


def stack_of(outer: str, equation: Any) -> str:
    """The name stack of an equation in a program that runs in another stack."""
    return "/".join(part for part in (outer, str(equation.source_info.name_stack)) if part)


def site_of(stack: str, equation: Any) -> Rounded | None:
    """What an equation rounds; None if it is no rounding, or none to be watched."""
    name = equation.params.get("name") if equation.primitive.name in ("jit", "pjit") else None
    if name not in (ROUNDING, MARK) or len(equation.invars) < 2 or len(equation.outvars) != 1:
        return None
    if ROUND not in stack or (UNWATCHED in stack and name == ROUNDING):
        return None
    number = stack.rpartition(ROUND)[2]
    number = number.partition("/")[0]
    return Rounded(_site(stack), number.rstrip(")") if "(" not in number else _balanced(number), "vmap(" in stack)


def is_product(equation: Any) -> bool:
    """True if an equation is a product of `qjax.linalg`."""
    return equation.primitive.name == PRODUCT


def path_of(stack: str) -> str:
    """The dotted path of the scopes that users and modules name."""
    plain = _TRANSFORMATION.sub("", "/".join(part for part in stack.split("/") if PREFIX not in part))
    return ".".join(part for part in plain.split("/") if part and part not in _INNER)


def product_site(stack: str, which: str) -> Site:
    role = {"forward": "", "grad_a": "grad_input", "grad_b": "grad_weight"}[which]
    return Site(path_of(stack), "accumulator", role)


def _site(stack: str) -> Site:
    kinds = [part.partition(PREFIX)[2].split(":") for part in stack.split("/") if PREFIX in part]
    found = [kind for kind in kinds if kind[0] in KINDS]
    if not found:
        return Site(path_of(stack), "output")
    kind, role, path = found[-1]
    return Site(path or path_of(stack), kind, role)


def _balanced(text: str) -> str:
    """A text without closing brackets that transformations left behind it."""
    while text.count(")") > text.count("("):
        text = text[: text.rindex(")")]
    return text


def has_sites(jaxpr: Any, outer: str) -> bool:
    """True if a program, or one within it, has a site."""
    for equation in jaxpr.eqns:
        stack = stack_of(outer, equation)
        if site_of(stack, equation) or is_product(equation):
            return True
        if any(has_sites(inner, stack) for inner in core.jaxprs_in_params(equation.params)):
            return True
    return False
