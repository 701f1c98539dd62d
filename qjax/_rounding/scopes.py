"""Name scopes that mark the roundings of a traced program; `qjax.insight.watch` reads them.

They cost nothing when a compiled program runs. The scopes around a rounding are read from the outside:

    encoder.linear1 / qjax.gradient / qjax.round:e5m2       the site's path, its kind (and role), the format
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import jax
from jax.core import Tracer

from qcore.formats.number import FormatTexts, Number
from qjax._parameters import parameters

PREFIX = "qjax."
ROUND = "qjax.round:"
PRODUCT = "qjax_product"  # the name of a primitive
SITE = "qjax.site:"  # begins the scope of a product that a recipe lowers, and is followed by its place in reports
LAW = "qjax.law"  # a function of `qjax.reproducible`
UNWATCHED = "qjax.unwatched"  # roundings that are not sites, or whose sites are marked
_LONGEST = 512  # characters of a format's text in a scope, which a compiled program has at each operation
DECODE = "qjax.decode:"
OPERATION = "qjax.operation:"  # begins the scope inside an operation that `qjax.export` reads whole
LAYER = "layer "  # begins the scopes of layers
ROUNDING, MARK = "_straight_through", "_marked"  # the names of jitted functions


def text_in_scope(number: Number) -> str:
    """The text of a format, or where it is long a name that `check_number` understands in this process."""
    text = number.text
    if len(text) <= _LONGEST:
        return text
    name = f"{type(number).__name__}_{sha256(text.encode()).hexdigest()[:16]}"
    setattr(FormatTexts.known, name, number)
    return name


def kind_scope(kind: str, role: str = "", path: str = "") -> Any:
    """The scope of roundings of a kind, see `qcore.insight.Site`; with a path if the surrounding scopes have none."""
    return jax.named_scope(f"{PREFIX}{kind}:{role}:{path}")


def mark(x: Any, y: Any, number: Number) -> Any:
    """y, the rounded x, as the result of a call that a traced program shows."""
    if not isinstance(y, Tracer):
        return y
    with jax.named_scope(f"{ROUND}{text_in_scope(number)}"):
        return _marked(x, y)


@jax.jit
def _marked(x: jax.Array, y: jax.Array) -> jax.Array:
    return y


def operation(name: str, *operands: Any, **settings: Any) -> Any:
    """The scope of all that a jitted function does, for programs that read the function as one operation.

    It has what the function's equation does not say: its static arguments, and how many dimensions its operands had
    before `vmap` or another transformation gave them more.

    Args:
        name: of the operation.
        operands: the arrays that are passed to the jitted function, in their order; None is skipped.
        settings: the static arguments, which JSON can hold.
    """
    ndims = [operand.ndim for operand in operands if operand is not None]
    return jax.named_scope(OPERATION + json.dumps({"name": name, "ndims": ndims, **settings}))


def operation_of(equation: Any) -> dict[str, Any] | None:
    """The operation that an equation calls, as its scope has it; None for other equations."""
    program = parameters(equation).program
    inner = getattr(program, "jaxpr", program)
    for one in getattr(inner, "eqns", ())[:1]:
        scopes = one.source_info.name_stack.stack
        if scopes and getattr(scopes[0], "name", "").startswith(OPERATION):
            found: dict[str, Any] = json.loads(scopes[0].name.removeprefix(OPERATION))
            if found["ndims"] == [len(operand.aval.shape) for operand in equation.invars]:
                return found
    return None


def text_of(stack: str, scope: str) -> str:
    """The text behind `scope` in the innermost scope that begins with it."""
    text = stack.rpartition(scope)[2].partition("/")[0]
    return text.rstrip(")") if "(" not in text else _balanced(text)


def _balanced(text: str) -> str:
    """A text without closing brackets that transformations left behind it."""
    while text.count(")") > text.count("("):
        text = text[: text.rindex(")")]
    return text


def layer_of(stack: str) -> str:
    """The name of the innermost layer in a name stack; "" if it has none."""
    named = [scope.partition(LAYER)[2] for scope in stack.split("/") if scope.startswith(LAYER)]
    return named[-1] if named else ""
