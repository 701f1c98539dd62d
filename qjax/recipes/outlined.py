"""Functions that JAX writes out in a program, found by the programs that JAX itself writes for them.

A softmax is a maximum, a difference, an exponential, a sum and a quotient. Where a program has these equations on one
operand, they become one call of a jitted function, whose name a recipe's entry has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from qcore.law.carrier import CARRIERS
from qjax._parameters import parameters
from qjax.recipes.layers import function_name

_PRIMITIVES = {"exp": "exp", "tanh": "tanh", "logistic": "sigmoid"}
_SUMS = ("reduce_sum", "reduce_max")


class FunctionCall(NamedTuple):
    """A call of a function of which a recipe may have the formats of the steps.

    Attributes:
        kind: its name in a recipe.
        options: its further arguments.
        reason: the reason why its steps are not known, or "".
    """

    kind: str
    options: dict[str, Any]
    reason: str = ""


def function_call(equation: Any) -> FunctionCall | None:
    """The function that an equation calls, by its name or its primitive; None for all others."""
    name = equation.primitive.name
    kind = _PRIMITIVES.get(name) or function_name(equation)
    if kind not in ("softmax", "gelu", "silu", *_PRIMITIVES.values(), "layer_norm", "rms_norm"):
        return None
    inner = [] if name in _PRIMITIVES else list(_equations(parameters(equation).program))
    operands = [atom.aval for atom in equation.invars]
    if kind in ("layer_norm", "rms_norm") or len(operands) != 1 or operands[0].shape != equation.outvars[0].aval.shape:
        return FunctionCall(kind, {}, "the meaning of the arguments of a function of this name is not known")
    if operands[0].dtype.name not in ("float32", "bfloat16", "float16"):
        return FunctionCall(kind, {}, f"its numbers are of {operands[0].dtype}; allowed are float32, bfloat16, float16")
    if kind == "gelu":
        is_tanh = any(one.primitive.name == "tanh" for one in inner)
        return FunctionCall(kind, {"approximate": "tanh" if is_tanh else "none"})
    if kind == "softmax":
        axes = {parameters(one).axes for one in inner if one.primitive.name in _SUMS}
        if len(axes) != 1 or len(next(iter(axes))) != 1:
            return FunctionCall(kind, {}, "a softmax along other than one axis")
        return FunctionCall(kind, {"axis": next(iter(axes))[0]})
    return FunctionCall(kind, {})


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program and of the programs inside of it."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _softmax(axis: int) -> Callable[..., Any]:
    return lambda x: jax.nn.softmax(x, axis)


def gelu_tanh(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


def gelu_erf(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def silu(x: Any) -> Any:
    return x * jax.nn.sigmoid(x)


@lru_cache(maxsize=256)
def _template(kind: str, axis: int, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """The program that JAX writes for a function of an array, and the equation that calls it by its name."""
    functions = {"gelu tanh": gelu_tanh, "gelu erf": gelu_erf, "silu": silu, "softmax": _softmax(axis)}
    function, x = functions[kind], jax.ShapeDtypeStruct(shape, dtype)

    def named(x: Any) -> Any:
        return function(x)

    named.__name__ = kind.split()[0]
    return jax.make_jaxpr(function)(x).jaxpr, jax.make_jaxpr(jax.jit(named))(x).jaxpr.eqns[0]


def outlined(jaxpr: Any) -> Any:
    """The program, in which functions that are written out are calls of jitted functions with their names."""
    makers = {one: equation for equation in jaxpr.eqns for one in equation.outvars}
    found = [_called(equation, makers) or equation for equation in jaxpr.eqns]
    if all(new is old for new, old in zip(found, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=_used(found, jaxpr.outvars))


def _called(equation: Any, makers: dict[Any, Any]) -> Any:
    """The call whose result an equation is the last step of; None if there is none."""
    name, (result, *_) = equation.primitive.name, equation.outvars
    if name not in ("div", "mul", "copy") or result.aval.dtype.name not in CARRIERS:
        return None
    if name != "div":
        kinds, axis = ("gelu tanh", "gelu erf", "silu"), 0
    else:
        total = makers.get(equation.invars[1]) if isinstance(equation.invars[1], core.Var) else None
        while total is not None and total.primitive.name in _COPIES:
            total = makers.get(total.invars[0])
        if total is None or total.primitive.name != "reduce_sum" or len(parameters(total).axes) != 1:
            return None
        kinds, axis = ("softmax",), parameters(total).axes[0]
    for kind in kinds:
        program, call = _template(kind, axis, result.aval.shape, result.aval.dtype)
        operand = _operand_of(program, equation, makers)
        if operand is not None:
            return call.replace(invars=[operand], outvars=[result], source_info=equation.source_info)
    return None


_COPIES = ("broadcast_in_dim", "reshape", "convert_element_type")


def _operand_of(template: Any, equation: Any, makers: dict[Any, Any]) -> Any:
    """The variable on which an equation ends the steps of a template; None if they are others."""
    own = {one: each for each in template.eqns for one in each.outvars}
    bound: dict[Any, Any] = {}

    def are_same(theirs: Any, atom: Any) -> bool:
        if not isinstance(theirs, core.Var):
            return not isinstance(atom, core.Var) and np.array_equal(theirs.val, atom.val)
        if not isinstance(atom, core.Var) or theirs in bound:
            return bound.get(theirs) is atom
        bound[theirs] = atom
        return theirs not in own or (atom in makers and do_same(own[theirs], makers[atom]))

    def do_same(theirs: Any, equation: Any) -> bool:
        if theirs.primitive is not equation.primitive or theirs.params != equation.params:
            return False
        return all(map(are_same, theirs.invars, equation.invars))

    return bound.get(template.invars[0]) if do_same(own[template.outvars[0]], equation) else None


def _used(equations: list[Any], results: Any) -> list[Any]:
    """The equations that results need, or that have effects."""
    needed, kept = {one for one in results if isinstance(one, core.Var)}, []
    for equation in reversed(equations):
        if equation.effects or any(one in needed for one in equation.outvars):
            needed |= {one for one in equation.invars if isinstance(one, core.Var)}
            kept.append(equation)
    return kept[::-1]
