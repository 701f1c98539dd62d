"""Evaluates a traced program whose layers are replaced, with a state for each of them, through JAX's control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.extend.source_info_util import current_name_stack, user_context

from qjax.quantization.layers import Layer, LayerWeight, Source, Use, layer_of
from qjax.recipes.evaluate import bind
from qjax.recipes.programs import INLINED, inner_programs, scan_parts

States = dict[str, Any]
Replace = Callable[[Any, Layer, list[Any], Any], tuple[Any, Any]]

_CASTS = ("convert_element_type", "copy", "stop_gradient", "sharding_constraint", "reshard", "pvary")
_CUSTOM = ("custom_jvp_call", "custom_vjp_call")
_CHECKPOINT = core.primitives.remat_p.name


def find_layers(jaxpr: Any, sources: Sequence[Any]) -> dict[str, list[Use]]:
    """The parameters of a program's layers, and how they are used, in order; of branches those of the longest.

    Raises:
        ValueError: if a layer is where it cannot be replaced.
    """
    found: dict[str, list[Use]] = {}
    known = dict(zip(jaxpr.invars, sources, strict=True))
    for equation in jaxpr.eqns:
        inputs = [_source(known, atom) for atom in equation.invars]
        layer = layer_of(equation, inputs)
        if layer is not None:
            found.setdefault(layer.source.path, []).append(layer.source.use)
        alternatives: dict[str, list[Use]] = {}
        for inner, _, origins in _programs(equation, inputs):
            uses = find_layers(inner, origins)
            if uses and equation.primitive.name == "shard_map":
                raise ValueError(
                    f"shard_map holds layers, of {', '.join(uses)}; allowed are jit with shardings, scan, while_loop, "
                    "cond, checkpoint and functions with their own derivative"
                )
            for path, more in uses.items():
                before = alternatives.get(path, [])
                longest = max(before, more, key=len)
                alternatives[path] = longest if equation.primitive.name == "cond" else before + more
        for path, more in alternatives.items():
            found.setdefault(path, []).extend(more)
        known.update(zip(equation.outvars, _results(equation, inputs), strict=True))
    return found


def _source(known: dict[Any, Any], atom: Any) -> Any:
    return known.get(atom) if isinstance(atom, core.Var) else None


def _results(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """What the results of an equation are; those of functions are new."""
    name = equation.primitive.name
    first = inputs[0] if inputs else None
    if name == "transpose" and first is not None:
        first = first.transposed(equation.params["permutation"])
    elif name not in _CASTS:
        first = None
    return [first] * len(equation.outvars)


def _programs(equation: Any, inputs: Sequence[Any]) -> list[tuple[Any, Sequence[Any], list[Any]]]:
    """The programs that an equation runs, with their captured arrays and what their inputs are."""
    programs = inner_programs(equation, list(inputs)) or []
    found = []
    for jaxpr, consts, origins in programs:
        kept: list[Any] = [one if isinstance(one, Source) else None for one in origins]
        if equation.primitive.name == "scan":
            _, first = scan_parts(equation)
            kept[first:] = [None if one is None else one.sliced() for one in kept[first:]]
        found.append((jaxpr, consts, kept))
    return found


class Walk:
    """One evaluation of programs.

    Args:
        replace: replace(equation, layer, operands, state) is a layer's result and its next state. Operands that are
            parameters are what the caller passed for them.
        layers: the parameters whose layers are replaced, and how they are used.
    """

    def __init__(self, replace: Replace, layers: dict[str, Use]) -> None:
        self.replace, self.layers = replace, layers

    def run(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], sources: Sequence[Any], states: States
    ) -> tuple[list[Any], States]:
        """The results of a program for its flat arguments, and the states after it."""
        values = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
        known = dict(zip(jaxpr.invars, sources, strict=True))
        states = dict(states)
        for equation in jaxpr.eqns:
            scope = current_name_stack() + equation.source_info.name_stack
            with user_context(equation.source_info.traceback, name_stack=scope), equation.ctx.manager:
                operands = [values[atom] if isinstance(atom, core.Var) else atom.val for atom in equation.invars]
                inputs = [_source(known, atom) for atom in equation.invars]
                results, states = self._equation(equation, operands, inputs, states)
            values.update(zip(equation.outvars, results, strict=True))
            known.update(zip(equation.outvars, _results(equation, inputs), strict=True))
        outputs = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in jaxpr.outvars]
        ends = [_source(known, atom) for atom in jaxpr.outvars]
        return [_floats(*three) for three in zip(outputs, ends, jaxpr.outvars, strict=True)], states

    def _equation(
        self, equation: Any, operands: list[Any], inputs: list[Any], states: States
    ) -> tuple[Sequence[Any], States]:
        layer = layer_of(equation, inputs)
        if layer is not None and self.layers.get(layer.source.path) == layer.source.use:
            path = layer.source.path
            result, state = self.replace(equation, layer, operands, states.get(path))
            return [result], states | {path: state}
        programs = _programs(equation, inputs)
        inside = {path for jaxpr, _, origins in programs for path in find_layers(jaxpr, origins)} & self.layers.keys()
        if inside:
            operands = _opened(equation, programs, operands, inputs)
            return _CALLS[equation.primitive.name](self, equation, programs, operands, states, inside)
        name = equation.primitive.name
        if isinstance(operands[0] if operands else None, LayerWeight) and (name == "transpose" or name in _CASTS):
            return [operands[0]], states
        return bind(
            equation, [_floats(*three) for three in zip(operands, inputs, equation.invars, strict=True)]
        ), states

    def _inlined(
        self, equation: Any, programs: Any, operands: list[Any], states: States, inside: set[str]
    ) -> tuple[Sequence[Any], States]:
        ((jaxpr, consts, sources),) = programs
        return self.run(jaxpr, consts, operands, sources, states)

    def _checkpoint(
        self, equation: Any, programs: Any, operands: list[Any], states: States, inside: set[str]
    ) -> tuple[Sequence[Any], States]:
        ((jaxpr, consts, sources),) = programs

        def body(operands: list[Any], states: States) -> Any:
            return self.run(jaxpr, consts, operands, sources, states)

        params = equation.params
        prevent = params["prevent_cse"]
        prevent = prevent if isinstance(prevent, bool) else (True, *prevent)
        results, after = jax.checkpoint(body, prevent_cse=prevent, policy=params["policy"])(
            operands, {path: states[path] for path in inside}
        )
        return results, states | after

    def _scan(
        self, equation: Any, programs: Any, operands: list[Any], states: States, inside: set[str]
    ) -> tuple[Sequence[Any], States]:
        params = equation.params
        count, split = scan_parts(equation)
        ((jaxpr, consts, sources),) = programs
        along = {source.path for source in sources[split:] if source is not None} & inside

        def body(carry: Any, slices: Any) -> tuple[Any, Any]:
            values, kept = carry
            xs, own = slices
            results, after = self.run(jaxpr, consts, [*operands[:count], *values, *xs], sources, kept | own)
            ends = {path: after[path] for path in kept}, {path: after[path] for path in along}
            return (results[: split - count], ends[0]), (results[split - count :], ends[1])

        kept = {path: states[path] for path in inside - along}
        first = operands[count:split], kept
        slices = operands[split:], {path: states[path] for path in along}
        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        (carry, kept), (stacked, own) = jax.lax.scan(body, first, slices, **options)
        return [*carry, *stacked], states | kept | own

    def _while(
        self, equation: Any, programs: Any, operands: list[Any], states: States, inside: set[str]
    ) -> tuple[Sequence[Any], States]:
        first = equation.params["cond_nconsts"]
        second = first + equation.params["body_nconsts"]
        (condition, fixed, ends), (body, consts, sources) = programs

        def go_on(state: Any) -> Any:
            return self.run(condition, fixed, [*operands[:first], *state[0]], ends, state[1])[0][0]

        def step(state: Any) -> Any:
            return self.run(body, consts, [*operands[first:second], *state[0]], sources, state[1])

        kept = {path: states[path] for path in inside}
        results, after = jax.lax.while_loop(go_on, step, (operands[second:], kept))
        return results, states | after

    def _cond(
        self, equation: Any, programs: Any, operands: list[Any], states: States, inside: set[str]
    ) -> tuple[Sequence[Any], States]:
        index, *rest = operands
        kept = {path: states[path] for path in inside}
        branches = [
            lambda kept, *rest, program=program: self.run(program[0], program[1], rest, program[2], kept)
            for program in programs
        ]
        results, after = jax.lax.switch(index, branches, kept, *rest)
        return results, states | after


def _opened(equation: Any, programs: Any, operands: list[Any], inputs: list[Any]) -> list[Any]:
    """The operands of a loop, with numbers in the place of parameters that are none inside."""
    if equation.primitive.name == "scan":
        inside = programs[0][2]
    elif equation.primitive.name == "while":
        second = equation.params["cond_nconsts"] + equation.params["body_nconsts"]
        inside = [*inputs[:second], *[None] * (len(inputs) - second)]
    else:
        return operands
    return [
        _floats(x, source, atom) if inner is None else x
        for x, source, inner, atom in zip(operands, inputs, inside, equation.invars, strict=True)
    ]


def _floats(value: Any, source: Any, atom: Any) -> Any:
    """What an equation that is no layer takes for a parameter: its numbers, with axes and dtype of the variable."""
    if not isinstance(value, LayerWeight):
        return value
    numbers, order = value.dequantize(), source.use.order
    left = numbers.ndim - len(order)
    return numbers.transpose((*range(left), *(left + axis for axis in order))).astype(atom.aval.dtype)


_CALLS: dict[str, Any] = {
    **dict.fromkeys((*INLINED, *_CUSTOM), Walk._inlined),
    _CHECKPOINT: Walk._checkpoint,
    "scan": Walk._scan,
    "while": Walk._while,
    "cond": Walk._cond,
}
