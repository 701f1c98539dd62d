"""Functions that JAX writes out in a program, found by the programs that JAX itself writes for them.

A softmax is a maximum, a difference, an exponential, a sum and a quotient. Where a program has these equations on one
operand, they become one call of a jitted function, whose name a recipe's entry has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from qcore.law.carrier import CARRIERS
from qjax._parameters import parameters
from qjax.recipes.layers import function_name
from qjax.recipes.norms import norms

_PRIMITIVES = {"exp": "exp", "tanh": "tanh", "logistic": "sigmoid"}
_SUMS = ("reduce_sum", "reduce_max")


class FunctionCall(NamedTuple):
    """A call of a function of which a recipe may have the formats of the steps.

    Attributes:
        kind: its name in a recipe.
        options: its further arguments.
        reason: the reason why its steps are not known, or "".
        missing: how many parameters at the end it has not, which are None.
    """

    kind: str
    options: dict[str, Any]
    reason: str = ""
    missing: int = 0


def function_call(equation: Any) -> FunctionCall | None:
    """The function that an equation calls, by its name or its primitive; None for all others."""
    name = equation.primitive.name
    kind = _PRIMITIVES.get(name) or function_name(equation)
    if kind is not None and (ours := re.fullmatch(r"(layer|rms)_norm\((.+),(\d)\)", kind)):
        count = 2 if ours[1] == "layer" else 1
        return FunctionCall(f"{ours[1]}_norm", {"eps": float(ours[2])}, missing=count - int(ours[3]))
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


@lru_cache
def _softmax(axis: int) -> Callable[..., Any]:
    return lambda eps, x: jax.nn.softmax(x, axis)


@lru_cache
def _mapped_softmax(axis: int, place: int) -> Callable[..., Any]:
    return lambda eps, x: jax.vmap(lambda y: jax.nn.softmax(y, axis), in_axes=place)(x)


def gelu_tanh(eps: float, x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


def gelu_erf(eps: float, x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def silu(eps: float, x: Any) -> Any:
    return x * jax.nn.sigmoid(x)


def outlined(jaxpr: Any) -> Any:
    """The program, in which functions that are written out are calls of jitted functions with their names."""
    makers = {one: equation for equation in jaxpr.eqns for one in equation.outvars}
    has_norms = any(one.primitive.name == "rsqrt" for one in jaxpr.eqns)
    found = [_called(equation, makers, has_norms) or equation for equation in jaxpr.eqns]
    if all(new is old for new, old in zip(found, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=_used(found, jaxpr.outvars))


def _called(equation: Any, makers: dict[Any, Any], has_norms: bool) -> Any:
    """The call whose result an equation is the last step of; None if there is none."""
    result = equation.outvars[0]
    if equation.primitive.name not in _LAST or result.aval.dtype.name not in CARRIERS:
        return None
    shape, dtype = result.aval.shape, result.aval.dtype
    for name, function, count in _written_out(equation, makers, has_norms and len(shape) > 0):
        program = _program(name, function, _sentinel, count, shape, dtype).jaxpr
        operands, eps = _operands_of(program, program.invars, equation, makers)
        if operands is None:
            continue
        call = _program(name, function, eps, count, shape, dtype, is_call=True).jaxpr.eqns[0]
        return call.replace(invars=operands, outvars=[result], source_info=equation.source_info)
    return _softmax_of_attention(equation, makers)


def _softmax_of_attention(equation: Any, makers: dict[Any, Any]) -> Any:
    """The call of a softmax that `vmap` maps over an axis, which it brings to the front of the exponents alone."""
    result, axis = equation.outvars[0], _axis_of_sum(equation, makers)
    if not axis:
        return None
    shape, dtype = result.aval.shape, result.aval.dtype
    for place in range(1, len(shape)):
        given = (*shape[1 : place + 1], shape[0], *shape[place + 1 :])
        program = _program("softmax", _mapped_softmax(axis - 1, place), 0.0, 0, given, dtype).jaxpr
        exponents = [one.invars[0] for one in program.eqns if one.primitive.name == "sub"]
        operands, _ = _operands_of(program, exponents, equation, makers)
        if operands is not None:
            call = _program("softmax", _softmax(axis), 0.0, 0, shape, dtype, is_call=True).jaxpr.eqns[0]
            return call.replace(invars=operands, outvars=[result], source_info=equation.source_info)
    return None


def _axis_of_sum(equation: Any, makers: dict[Any, Any]) -> int | None:
    """The axis that a quotient's denominator is the sum along; None if it is another number."""
    if equation.primitive.name != "div" or not isinstance(equation.invars[1], core.Var):
        return None
    total = makers.get(equation.invars[1])
    while total is not None and total.primitive.name in _COPIES:
        total = makers.get(total.invars[0])
    if total is None or total.primitive.name != "reduce_sum" or len(parameters(total).axes) != 1:
        return None
    return int(parameters(total).axes[0])


_LAST = ("div", "mul", "copy", "add")
_COPIES = ("broadcast_in_dim", "reshape", "convert_element_type")
_sentinel = 0.0123  # an epsilon that stands for all others
Written = tuple[str, Callable[..., Any], int]  # a name, (eps, *arrays) -> the result, and the number of parameters


def _written_out(equation: Any, makers: dict[Any, Any], has_norms: bool) -> Iterator[Written]:
    """The functions whose last step an equation may be."""
    name = equation.primitive.name
    axis = _axis_of_sum(equation, makers)
    if axis is not None:
        yield "softmax", _softmax(axis), 0
    if name in ("mul", "copy"):
        yield from (("gelu", gelu_tanh, 0), ("gelu", gelu_erf, 0), ("silu", silu, 0))
    if name in ("mul", "add") and has_norms:
        yield from norms(equation.outvars[0].aval.shape[-1])


@lru_cache(maxsize=256)
def _program(name: str, function: Any, eps: float, count: int, shape: Any, dtype: Any, is_call: bool = False) -> Any:
    """The program that JAX writes for a function, or for a call of it by its name."""

    def named(*arrays: Any) -> Any:
        return function(eps, *arrays)

    named.__name__ = f"{name}({eps},{count})" if name.endswith("_norm") else name
    arrays = [jax.ShapeDtypeStruct(shape, dtype), *[jax.ShapeDtypeStruct(shape[-1:], np.float32)] * count]
    return jax.make_jaxpr(jax.jit(named) if is_call else named)(*arrays)


def _operands_of(
    template: Any, inputs: list[Any], equation: Any, makers: dict[Any, Any]
) -> tuple[list[Any] | None, float]:
    """What stands for variables of a template whose steps an equation ends, and epsilon; None if it has other steps."""
    own = {one: each for each in template.eqns for one in each.outvars}
    bound: dict[Any, Any] = {}
    eps = [0.0]

    def are_same(theirs: Any, atom: Any) -> bool:
        if not isinstance(theirs, core.Var):
            if isinstance(atom, core.Var):
                return False
            if theirs.val == np.float32(_sentinel):
                eps[0] = float(atom.val)
                return True
            return np.array_equal(theirs.val, atom.val)
        if not isinstance(atom, core.Var) or theirs in bound:
            return bound.get(theirs) is atom
        bound[theirs] = atom
        return theirs not in own or (atom in makers and do_same(own[theirs], makers[atom]))

    def do_same(theirs: Any, equation: Any) -> bool:
        if theirs.primitive is not equation.primitive or theirs.params != equation.params:
            return False
        return all(map(are_same, theirs.invars, equation.invars))

    if not do_same(own[template.outvars[0]], equation) or any(one not in bound for one in (*inputs, *template.invars)):
        return None, 0.0
    operands = [bound[one] for one in inputs]
    fits = all(one.aval.shape == each.aval.shape for one, each in zip(operands, inputs, strict=True))
    return (operands, eps[0]) if fits else (None, 0.0)


def _used(equations: list[Any], results: Any) -> list[Any]:
    """The equations that results need, or that have effects."""
    needed, kept = {one for one in results if isinstance(one, core.Var)}, []
    for equation in reversed(equations):
        if equation.effects or any(one in needed for one in equation.outvars):
            needed |= {one for one in equation.invars if isinstance(one, core.Var)}
            kept.append(equation)
    return kept[::-1]
