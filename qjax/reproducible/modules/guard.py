"""The guard of a model: it traces the model, and refuses functions without defined bits."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core

from qcore.names import shown
from qjax._jaxprs import Program, inner_programs, walk
from qjax._models import run_in_scopes
from qjax._parameters import parameters
from qjax._rounding.scopes import LAW, LAYER, PRODUCT, layer_of

# What moves numbers and rounds none, also in the gradient.
_EXACT = set(
    "argmax argmin concatenate copy copy_p neg optimization_barrier pvary reshape reshard rev select_n "
    "sharding_constraint squeeze stop_gradient transpose".split()
)
_tracing = ContextVar("tracing", default=False)


@cache
def guarded(class_: type[nnx.Module]) -> type[nnx.Module]:
    """A class of modules that are checked before they run; it has the name of its base."""

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if not _tracing.get():
            _check(self, arguments, options)
        return class_.__call__(self, *arguments, **options)  # type: ignore[operator]

    members = {"__call__": call, "guarded": class_, "__module__": class_.__module__, "__doc__": class_.__doc__}
    return type(class_.__name__, (class_,), members)


def kind_of(layer: nnx.Module) -> type[nnx.Module]:
    """A layer's class, without the guard that it may have."""
    return getattr(type(layer), "guarded", type(layer))


class _Array(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any


def _check(model: nnx.Module, arguments: Any, options: Any) -> None:
    """Raises ValueError if a model calls a function that has no defined bits."""
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten((state, arguments, options))
    given = tuple([_Array(x.shape, x.dtype) if hasattr(x, "dtype") else x for x in leaves])
    _check_program(graph, tree, given)


@lru_cache(maxsize=256)
def _check_program(graph: Any, tree: Any, given: tuple[Any, ...]) -> None:
    def program(*arrays: Any) -> Any:
        rest = iter(arrays)
        leaves = [next(rest) if isinstance(kind, _Array) else kind for kind in given]
        state, arguments, options = jax.tree.unflatten(tree, leaves)
        model: Any = nnx.merge(graph, state)
        run_in_scopes(model, LAYER)
        return [x for x in jax.tree.leaves(model(*arguments, **options)) if hasattr(x, "dtype")]

    token = _tracing.set(True)
    try:
        arrays = [jax.ShapeDtypeStruct(*kind) for kind in given if isinstance(kind, _Array)]
        program_ = jax.make_jaxpr(program)(*arrays)
    finally:
        _tracing.reset(token)
    for layer, name in _undefined(program_.jaxpr, "", (), [False] * len(arrays)):
        raise ValueError(
            f"{shown(layer)} calls {name}, whose order of operations is not defined; allowed are the functions of "
            "qjax.reproducible, and what moves numbers only"
        )


def _undefined(jaxpr: Any, layer: str, names: tuple[str, ...], fixed: Sequence[bool]) -> list[tuple[str, str]]:
    """The layers that call functions of floats without defined bits, with these functions' names.

    `names` are the functions that call the program, outermost first; `fixed` is True for constant arguments.
    """
    found: list[tuple[str, str]] = []

    def step(_: int, equation: Any, fixed: list[bool]) -> list[bool]:
        results = [False] * len(equation.outvars)
        stack = str(equation.source_info.name_stack)
        if equation.primitive.name == PRODUCT or LAW in stack:
            return results
        inside, name = layer_of(stack) or layer, equation.primitive.name
        programs = inner_programs(equation, fixed, carried=False)
        if programs is None:
            inner = core.jaxprs_in_params(equation.params)
            programs = [Program(one, (), [False] * len(one.invars)) for one in inner]
        if programs:
            called = parameters(equation).name
            for one in programs:
                found.extend(_undefined(one.jaxpr, inside, (*names, called) if called else names, one.inputs))
        elif _is_exact(name, equation, fixed):
            return [all(fixed)] * len(results)
        else:
            found.append((inside, names[0] if names else name))
        return results

    walk(jaxpr, [True] * len(jaxpr.constvars), fixed, step, lambda literal: True)
    return found


def _is_exact(name: str, equation: Any, fixed: Sequence[bool]) -> bool:
    given, made = ([x.aval for x in side] for side in (equation.invars, equation.outvars))
    if name in _EXACT or not any(_is_float(aval) for aval in given):
        return True
    if name == "broadcast_in_dim":  # else its gradient is a sum
        return given[0].size == made[0].size or fixed[0]
    return name == "convert_element_type" and given[0].dtype == made[0].dtype


def _is_float(aval: Any) -> bool:
    return jnp.issubdtype(getattr(aval, "dtype", jnp.int32), jnp.inexact)
